"""Renyi divergences for the second accountant, computed anew, and the epsilon of their sum.

Guarantee: none of its own. Nothing here comes from dp-accounting or Opacus, nor from
``privacy.accountant``. Integrals are sums by the trapezoid rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from privacy.audit.referee import Array, gaussian_points, log_mixture

# Of larger orders, the theorem's bound by moments is not worth its digits.
_MOST_MOMENTS = 256


def rdp_epsilon(
    divergence: Callable[[float], float], delta: float, is_whole: bool = False
) -> float:
    """Epsilon of Renyi divergences of all rounds together, by the best of the usual orders.

    ``is_whole``: of whole orders alone.

    Source: Canonne, Kamath, Steinke 2020, proposition 12; Bretagnolle, Huber 1979 (the distance).
    """
    orders = [1.0 + tenth / 10.0 for tenth in range(1, 100)]
    orders += [*map(float, range(11, 64)), 128.0, 256.0, 512.0, 1024.0]
    best = math.inf
    for order in orders:
        if is_whole and not order.is_integer():
            continue
        value = divergence(order)
        # Of two laws whose distance is at most delta, epsilon is 0.
        if -math.expm1(-value) < delta**2:
            return 0.0
        value += math.log1p(-1.0 / order)
        best = min(best, value - math.log(delta * order) / (order - 1.0))
    return max(0.0, best)


def sampled_gaussian_divergence(rate: float, noise: float, order: float) -> float:
    """Renyi divergence of a Poisson-sampled Gaussian, of an order above 1.

    ``rate`` is in (0, 1], ``noise`` in multiples of the sensitivity. Of a whole order it is a sum,
    of another by quadrature, which takes the more points the less noise there is.

    Source: Mironov, Talwar, Zhang 2019, section 3.3 (whole orders).
    """
    if order.is_integer():
        k = np.arange(order + 1.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            stays = np.where(k < order, (order - k) * np.log1p(-rate), 0.0)
        terms = _log_choose(order, k) + stays + k * math.log(rate)
        return float(np.logaddexp.reduce(terms + k * (k - 1.0) / (2.0 * noise**2))) / (order - 1.0)
    # Where the integrand lies: about 0, and about the order's multiple of the shift.
    points = gaussian_points(noise, -9.0 * noise, order + 9.0 * noise)
    logs = order * log_mixture(rate, (points - 0.5) / noise**2)
    return _log_mean(noise, points, logs) / (order - 1.0)


def _log_choose(order: float, k: Array) -> Array:
    from scipy.special import gammaln

    return np.asarray(gammaln(order + 1.0) - gammaln(k + 1.0) - gammaln(order - k + 1.0))


def _log_mean(noise: float, points: Array, logs: Array) -> float:
    """Logarithm of the mean of e^f over normal noise, from f at evenly spaced points."""
    total = float(np.logaddexp.reduce(logs - 0.5 * (points / noise) ** 2))
    return total + math.log((points[1] - points[0]) / noise) - 0.5 * math.log(2.0 * math.pi)


def fixed_size_divergence(rate: float, noise: float, order: float) -> float:
    """Bound of the Renyi divergence of a Gaussian sampled without replacement, of a user replaced.

    ``rate``, in (0, 1], is cohort over population; ``noise`` is in multiples of the clipping bound,
    of which a replaced user moves the sum by two. Between whole orders, cumulants are interpolated.

    Source: Wang, Balle, Kasiviswanathan 2019, theorem 27 and corollary 10.
    """
    low, high = math.floor(order), math.ceil(order)
    if low == high:
        return _fixed_size_cumulant(rate, noise, low) / (order - 1.0)
    share = order - low
    first = _fixed_size_cumulant(rate, noise, low) if low > 1 else 0.0
    last = _fixed_size_cumulant(rate, noise, high)
    return ((1.0 - share) * first + share * last) / (order - 1.0)


@lru_cache(maxsize=4096)
def _fixed_size_cumulant(rate: float, noise: float, order: int) -> float:
    j = np.arange(2.0, order + 1.0)
    # Of the Gaussian itself, of multiplier z / 2: its divergence of order j is 2 j / z^2.
    bound = math.log(2.0) + (j - 1.0) * 2.0 * j / noise**2
    if order <= _MOST_MOMENTS:
        below, above = 2 * (j // 2).astype(int), 2 * ((j + 1) // 2).astype(int)
        moments = {even: _log_moment(noise / 2.0, even) for even in range(2, int(above[-1]) + 1, 2)}
        mean = [0.5 * (moments[a] + moments[b]) for a, b in zip(below, above, strict=True)]
        bound = np.minimum(bound, math.log(4.0) + np.array(mean))
    terms = bound + j * math.log(rate) + _log_choose(order, j)
    return float(np.logaddexp(0.0, np.logaddexp.reduce(terms)))


@lru_cache(maxsize=4096)
def _log_moment(noise: float, even: int) -> float:
    """Logarithm of E[(p / q - 1)^k] under q, of two normal laws 1 apart; k even."""
    points = gaussian_points(noise, -9.0 * noise, even + 9.0 * noise)
    exponent = (points - 0.5) / noise**2
    with np.errstate(divide="ignore"):
        near = np.log(np.abs(np.expm1(np.minimum(exponent, 30.0))))
    return _log_mean(noise, points, even * (near + np.maximum(0.0, exponent - 30.0)))


def laplace_divergence(scale: float, order: float) -> float:
    """Renyi divergence of the Laplace mechanism, of an order above 1, of a scale in sensitivities.

    Source: Mironov 2017, proposition 6.
    """
    first = math.log(order / (2.0 * order - 1.0)) + (order - 1.0) / scale
    second = math.log((order - 1.0) / (2.0 * order - 1.0)) - order / scale
    return float(np.logaddexp(first, second)) / (order - 1.0)
