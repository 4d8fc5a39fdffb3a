"""A second accountant, independent of those that runs are accounted by: epsilon between two bounds.

Guarantee: for the pair of laws that dominates a round (Poisson-sampled Gaussian or Laplace noise),
composed T times, ``composed_bounds`` gives a lower and an upper bound of the smallest epsilon at a
delta. Both hold up to the rounding of float64, of which ``_FFT_ERROR`` a round is set aside.

How: the privacy loss L of a round is rounded to the nearest point of a grid of width h and shifted
by a constant so that its mean is right. Each rounding error then has mean 0 and a range of h, so
that by Hoeffding's inequality the errors of T rounds add up to more than
t = h sqrt(T ln(1 / eta) / 2) with probability at most eta, on either side. The rounded loss is
composed by an FFT, in a window that it leaves with probability at most eta (Chernoff's bound), of a
noise whose own tails beyond probability eta / T are cut off. So the true delta(epsilon) lies
between that of the rounded loss at epsilon + t, less 3 eta, and at epsilon - t, plus 3 eta.

Nothing here comes from dp-accounting or Opacus, nor from ``privacy.accountant``.

Source: Gopi, Lee, Wutschitz 2021, "Numerical composition of differential privacy", algorithm 1 and
theorem 5.5 (mean-corrected rounding); Zhu et al. 2022 (the dominating pairs).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Of delta: what each of the three bounds on rare events may come to.
_RARE = 1e-4
# Of epsilon: the sum of all rounding errors.
_RESOLUTION = 2.5e-3
_LEAST_RESOLUTION = 1e-5
_LARGEST_GRID = 1 << 22
# Of delta, an FFT and a round of its power: more than exact Gaussians show.
_FFT_ERROR = 2.0**-51
# Of larger orders, the theorem's bound by moments is not worth its digits.
_MOST_MOMENTS = 256
# exp() of larger losses overflows.
_LARGEST_LOSS = 600.0


class Bounds(NamedTuple):
    """Bounds of the smallest epsilon at a delta.

    Attributes:
        lower: At most the truth.
        upper: At least the truth; infinite where none could be computed.
    """

    lower: float
    upper: float


@dataclass(frozen=True, slots=True)
class Loss:
    """The law of a round's privacy loss, of one of the two directions.

    Attributes:
        cdf: P(L < l) of losses l, shape (n,), to full precision near 0.
        sf: P(L >= l), to full precision near 0.
        nodes: Losses, shape (m,), by which integrals over the law are computed.
        weights: Their weights, shape (m,), of sum 1.
        cut: Probability that the law leaves out.
    """

    cdf: Callable[[Array], Array]
    sf: Callable[[Array], Array]
    nodes: Array
    weights: Array
    cut: float


def composed_bounds(losses: list[Loss], count: int, delta: float, near: float) -> Bounds:
    """Bounds of epsilon of ``count`` equal rounds: the larger of all directions'.

    Args:
        losses: Of each direction.
        count: Rounds, at least 1.
        delta: In (0, 1).
        near: An epsilon of the right size, which sets the resolution: what is claimed.
    """
    found = [_bounds(loss, count, delta, near) for loss in losses]
    return Bounds(max(one.lower for one in found), max(one.upper for one in found))


def sampled_gaussian_losses(rate: float, noise: float, count: int, delta: float) -> list[Loss]:
    """Losses of a Poisson-sampled Gaussian: a user removed, and a user added.

    Args:
        rate: Probability of a user to take part, in (0, 1].
        noise: Standard deviation in multiples of the sensitivity, positive.
        count: Rounds that will be composed.
        delta: At which epsilon is wanted.
    """
    from scipy.special import ndtr

    reach = _reach(delta, count)
    points = _gaussian_points(noise, -reach * noise, 1.0 + reach * noise)
    with_user = (1.0 - rate) * _normal(points, noise) + rate * _normal(points - 1.0, noise)
    without = _normal(points, noise)
    losses = _log_mixture(rate, (points - 0.5) / noise**2)

    def place(loss: Array) -> Array:
        """The output whose loss of removal this is; -inf below the smallest loss."""
        # log(e^l - (1 - q)) - log(q), without overflow and without loss of digits.
        with np.errstate(divide="ignore", invalid="ignore"):
            inner = loss + np.log(-np.expm1(math.log1p(-rate) - loss)) if rate < 1.0 else loss
        inner = np.where(np.isnan(inner), -np.inf, inner)
        return np.asarray(noise**2 * (inner - math.log(rate)) + 0.5)

    def below(x: Array) -> Array:
        return np.asarray((1.0 - rate) * ndtr(x / noise) + rate * ndtr((x - 1.0) / noise))

    def above(x: Array) -> Array:
        return np.asarray((1.0 - rate) * ndtr(-x / noise) + rate * ndtr((1.0 - x) / noise))

    cut = _RARE * delta / count
    removed = Loss(
        cdf=lambda loss: below(place(loss)),
        sf=lambda loss: above(place(loss)),
        nodes=losses,
        weights=with_user / with_user.sum(),
        cut=cut,
    )
    added = Loss(
        cdf=lambda loss: np.asarray(ndtr(-place(-loss) / noise)),
        sf=lambda loss: np.asarray(ndtr(place(-loss) / noise)),
        nodes=-losses,
        weights=without / without.sum(),
        cut=cut,
    )
    return [removed, added]


def replaced_gaussian_losses(rate: float, noise: float, count: int, delta: float) -> list[Loss]:
    """Losses of one pair of data sets whose user is replaced: a lower bound of all pairs.

    All other users send nothing, and the user sends the bound, or its negative.

    Args:
        rate: Probability of a user to be drawn, in (0, 1].
        noise: Standard deviation in multiples of the clipping bound, positive.
        count: Rounds that will be composed.
        delta: At which epsilon is wanted.
    """
    from scipy.special import ndtr

    reach = _reach(delta, count)
    points = _gaussian_points(noise, -1.0 - reach * noise, 1.0 + reach * noise)
    half = 0.5 / noise**2

    def loss_at(x: Array) -> Array:
        up = _log_mixture(rate, x / noise**2 - half)
        return np.asarray(up - _log_mixture(rate, -x / noise**2 - half))

    def place(loss: Array) -> Array:
        """Interpolated: the loss has no inverse in closed form, but rises."""
        return np.interp(loss, dense_losses, dense, left=-np.inf, right=np.inf)

    dense = np.linspace(points[0], points[-1], 1 << 20)
    dense_losses = loss_at(dense)
    weights = (1.0 - rate) * _normal(points, noise) + rate * _normal(points - 1.0, noise)

    def below(x: Array) -> Array:
        return np.asarray((1.0 - rate) * ndtr(x / noise) + rate * ndtr((x - 1.0) / noise))

    def above(x: Array) -> Array:
        return np.asarray((1.0 - rate) * ndtr(-x / noise) + rate * ndtr((1.0 - x) / noise))

    return [
        Loss(
            cdf=lambda loss: below(place(loss)),
            sf=lambda loss: above(place(loss)),
            nodes=loss_at(points),
            weights=weights / weights.sum(),
            cut=_RARE * delta / count,
        )
    ]


def sampled_laplace_losses(rate: float, scale: float) -> list[Loss]:
    """Losses of a Poisson-sampled Laplace mechanism: a user removed, and a user added.

    Args:
        rate: Probability of a user to take part, in (0, 1].
        scale: Of the noise, in multiples of the sensitivity, positive.
    """
    low, high = (float(_log_mixture(rate, np.array(u))) for u in (-1.0 / scale, 1.0 / scale))
    knots, gauss = np.polynomial.legendre.leggauss(400)
    points, gauss = (knots + 1.0) / 2.0, gauss / 2.0
    inner = _log_mixture(rate, (2.0 * points - 1.0) / scale)
    # Without the user, the noise is about 0; with, about 1.
    ends = {False: (0.5, 0.5 * math.exp(-1.0 / scale)), True: (0.5 * math.exp(-1.0 / scale), 0.5)}
    density = {False: np.exp(-points / scale), True: np.exp((points - 1.0) / scale)}

    def below(x: Array, is_in: bool) -> Array:
        y = x - float(is_in)
        half = 0.5 * np.exp(-np.abs(y) / scale)
        return np.asarray(np.where(y < 0.0, half, 1.0 - half))

    def place(loss: Array) -> Array:
        """The first output whose loss is this or more: all below 0 have the least, above 1 most."""
        with np.errstate(divide="ignore", invalid="ignore"):
            inside = loss + np.log(-np.expm1(math.log1p(-rate) - loss)) if rate < 1.0 else loss
            x = ((inside - math.log(rate)) * scale + 1.0) / 2.0
        x = np.where(loss > low, x, -np.inf)
        return np.asarray(np.where(loss > high, np.inf, np.minimum(x, 1.0)))

    def mixed(x: Array) -> Array:
        return np.asarray((1.0 - rate) * below(x, False) + rate * below(x, True))

    def after(loss: Array) -> Array:
        """The first output whose loss is more than this."""
        x = place(loss)
        x = np.where(loss >= low, np.maximum(x, 0.0), -np.inf)
        return np.asarray(np.where(loss >= high, np.inf, x))

    def weights(with_user: bool) -> Array:
        share = rate if with_user else 0.0
        mass = [(1.0 - share) * ends[False][side] + share * ends[True][side] for side in (0, 1)]
        middle = (1.0 - share) * density[False] + share * density[True]
        found = np.concatenate([[mass[0]], middle * gauss / (2.0 * scale), [mass[1]]])
        return np.asarray(found / found.sum())

    nodes = np.concatenate([[low], inner, [high]])
    removed = Loss(
        cdf=lambda loss: mixed(place(loss)),
        sf=lambda loss: 1.0 - mixed(place(loss)),
        nodes=nodes,
        weights=weights(True),
        cut=0.0,
    )
    added = Loss(
        cdf=lambda loss: 1.0 - below(after(-loss), False),
        sf=lambda loss: below(after(-loss), False),
        nodes=-nodes,
        weights=weights(False),
        cut=0.0,
    )
    return [removed, added]


def answers_epsilon(each: float, count: int, delta: float) -> float:
    """Epsilon of so many randomized responses of two answers, exact.

    Args:
        each: Epsilon of one, positive.
        count: How many, at least 1.
        delta: In (0, 1).

    Source: Kairouz, Oh, Viswanath 2015, theorem 3.3.
    """
    from scipy.special import gammaln

    lies = np.arange(count + 1.0)
    log_choose = gammaln(count + 1.0) - gammaln(lies + 1.0) - gammaln(count - lies + 1.0)
    log_mass = log_choose - lies * each - count * math.log1p(math.exp(-each))
    losses = (count - 2.0 * lies) * each

    def excess(epsilon: float) -> float:
        over = losses > epsilon
        return float(np.sum(np.exp(log_mass[over]) * -np.expm1(epsilon - losses[over]))) - delta

    return _root(excess, 0.0, count * each)


def rdp_epsilon(
    divergence: Callable[[float], float], delta: float, is_whole: bool = False
) -> float:
    """Epsilon of composed Renyi divergences, by the best of the usual orders.

    Args:
        divergence: Of all rounds together, of an order above 1.
        delta: In (0, 1).
        is_whole: Whether only whole orders are taken.

    Source: Canonne, Kamath, Steinke 2020, proposition 12.
    """
    orders = [1.0 + tenth / 10.0 for tenth in range(1, 100)]
    orders += [*map(float, range(11, 64)), 128.0, 256.0, 512.0, 1024.0]
    best = math.inf
    for order in orders:
        if is_whole and not order.is_integer():
            continue
        value = divergence(order) + math.log1p(-1.0 / order)
        best = min(best, value - math.log(delta * order) / (order - 1.0))
    return max(0.0, best)


def sampled_gaussian_divergence(rate: float, noise: float, order: float) -> float:
    """Renyi divergence of a Poisson-sampled Gaussian, by quadrature.

    Args:
        rate: Probability of a user to take part, in (0, 1].
        noise: Standard deviation in multiples of the sensitivity, positive.
        order: Above 1.
    """
    # Where the integrand lies: about 0, and about the order's multiple of the shift.
    points = _gaussian_points(noise, -9.0 * noise, order + 9.0 * noise)
    exponents = order * _log_mixture(rate, (points - 0.5) / noise**2) - 0.5 * (points / noise) ** 2
    largest = float(exponents.max())
    total = largest + math.log(float(np.exp(exponents - largest).sum()) * (points[1] - points[0]))
    return (total - math.log(noise) - 0.5 * math.log(2.0 * math.pi)) / (order - 1.0)


def fixed_size_divergence(rate: float, noise: float, order: float) -> float:
    """Bound of the Renyi divergence of a Gaussian sampled without replacement, of a user replaced.

    Args:
        rate: Cohort over population, in (0, 1].
        noise: Standard deviation in multiples of the clipping bound, of which a replaced user
            moves the sum by two.
        order: Above 1; between whole orders, their cumulants are interpolated.

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
    from scipy.special import gammaln

    j = np.arange(2.0, order + 1.0)
    log_choose = gammaln(order + 1.0) - gammaln(j + 1.0) - gammaln(order - j + 1.0)
    # Of the Gaussian itself, of multiplier z / 2: its divergence of order j is 2 j / z^2.
    bound = math.log(2.0) + (j - 1.0) * 2.0 * j / noise**2
    if order <= _MOST_MOMENTS:
        below, above = 2 * (j // 2).astype(int), 2 * ((j + 1) // 2).astype(int)
        moments = {even: _log_moment(noise / 2.0, even) for even in range(2, int(above[-1]) + 1, 2)}
        mean = [0.5 * (moments[a] + moments[b]) for a, b in zip(below, above, strict=True)]
        bound = np.minimum(bound, math.log(4.0) + np.array(mean))
    terms = bound + j * math.log(rate) + log_choose
    return float(np.logaddexp(0.0, np.logaddexp.reduce(terms)))


@lru_cache(maxsize=4096)
def _log_moment(noise: float, even: int) -> float:
    """Logarithm of E[(p / q - 1)^k] under q, of two normal laws 1 apart; k even."""
    points = _gaussian_points(noise, -9.0 * noise, even + 9.0 * noise)
    exponent = (points - 0.5) / noise**2
    with np.errstate(divide="ignore"):
        size = np.log(np.abs(np.expm1(np.minimum(exponent, 30.0)))) + np.maximum(
            0.0, exponent - 30.0
        )
    terms = even * size - 0.5 * (points / noise) ** 2
    total = float(np.logaddexp.reduce(terms)) + math.log(points[1] - points[0])
    return total - math.log(noise) - 0.5 * math.log(2.0 * math.pi)


def laplace_divergence(scale: float, order: float) -> float:
    """Renyi divergence of the Laplace mechanism.

    Args:
        scale: In multiples of the sensitivity, positive.
        order: Above 1.

    Source: Mironov 2017, proposition 6.
    """
    first = math.log(order / (2.0 * order - 1.0)) + (order - 1.0) / scale
    second = math.log((order - 1.0) / (2.0 * order - 1.0)) - order / scale
    return float(np.logaddexp(first, second)) / (order - 1.0)


def _log_mixture(rate: float, exponent: Array) -> Array:
    """log(1 - q + q e^u), without overflow."""
    if rate == 1.0:
        return exponent
    return np.logaddexp(math.log1p(-rate), math.log(rate) + exponent)


def _normal(points: Array, noise: float) -> Array:
    return np.asarray(np.exp(-0.5 * (points / noise) ** 2))


def _reach(delta: float, count: int) -> float:
    """Standard deviations beyond which the noise is cut off."""
    from scipy.special import ndtri

    return -float(ndtri(0.5 * _RARE * delta / count))


def _gaussian_points(noise: float, low: float, high: float) -> Array:
    """Evenly spaced points for the trapezoid rule.

    Its error falls exponentially with one over the step: integrands are analytic up to pi z^2 from
    the real line, where the density ratio has its zeros.
    """
    step = min(noise / 16.0, noise**2 / 4.0)
    return np.asarray(np.arange(math.floor(low / step), math.ceil(high / step) + 1.0) * step)


def _bounds(loss: Loss, count: int, delta: float, near: float) -> Bounds:
    rare = _RARE * delta
    unsure = 3.0 * rare + _FFT_ERROR * (count + 1.0)
    if unsure >= 0.5 * delta:
        return Bounds(0.0, math.inf)
    spread = math.sqrt(count * math.log(1.0 / rare) / 2.0)
    width = max(_LEAST_RESOLUTION, _RESOLUTION * min(near, _LARGEST_LOSS)) / spread
    mean = float(loss.weights @ loss.nodes)
    low, high = (_chernoff(loss, count, rare, sign) for sign in (-1.0, 1.0))
    # The rounded loss is within a grid point of the loss.
    while (high - low) / width + 2.0 * count > _LARGEST_GRID:
        width *= 2.0
    low, high = low - count * width, high + count * width
    if high > _LARGEST_LOSS + 100.0:
        return Bounds(0.0, math.inf)
    values, masses = _rounded(loss, width)
    shift = mean - float(values @ masses) * width
    size = 1 << max(4, math.ceil(math.log2((high - low) / width + 2.0)))
    transformed = np.fft.rfft(np.bincount(values % size, weights=masses, minlength=size))
    composed = np.maximum(0.0, np.fft.irfft(transformed**count, size))
    first = math.floor((low - count * shift) / width)
    index = first + (np.arange(size) - first) % size
    order = np.argsort(index)
    sums = np.asarray(index[order] * width + count * shift, dtype=np.float64)
    error = width * spread
    larger = _epsilon_of(sums, composed[order], delta - unsure)
    smaller = _epsilon_of(sums, composed[order], delta + unsure)
    return Bounds(max(0.0, smaller - error - width), larger + error + width)


def _rounded(loss: Loss, width: float) -> tuple[NDArray[np.int64], Array]:
    """Points of the grid, as multiples of its width, and their probabilities, of sum 1."""
    first = math.floor(float(loss.nodes.min()) / width) - 1
    last = math.ceil(float(loss.nodes.max()) / width) + 1
    values = np.arange(first, last + 1)
    edges = np.asarray((np.arange(first, last + 2) - 0.5) * width, dtype=np.float64)
    below, above = loss.cdf(edges), loss.sf(edges)
    # Differences of whichever tail is small keep their digits.
    masses = np.where(below[1:] < 0.5, np.diff(below), -np.diff(above))
    masses = np.maximum(0.0, masses)
    return values, masses / masses.sum()


def _chernoff(loss: Loss, count: int, rare: float, sign: float) -> float:
    """A sum of losses that is exceeded (sign 1), or not reached (-1), that rarely."""
    nodes = sign * loss.nodes
    largest = float(nodes.max())
    best = count * largest
    for tilt in 2.0 ** np.arange(-14.0, 12.0):
        # At most 0, so that nothing overflows; what underflows is rightly 0.
        log_mean = math.log(float(loss.weights @ np.exp(tilt * (nodes - largest)))) + tilt * largest
        best = min(best, (count * log_mean - math.log(rare)) / tilt)
    return sign * best


def _epsilon_of(sums: Array, masses: Array, delta: float) -> float:
    """Smallest epsilon of a discrete loss, to a point of its grid; at least 0."""
    is_positive = sums > 0.0
    sums, masses = sums[is_positive], masses[is_positive]
    tail = np.cumsum(masses[::-1])[::-1]
    tilted = np.cumsum((masses * np.exp(-sums))[::-1])[::-1]
    if not len(sums) or tail[0] - tilted[0] <= delta:
        return 0.0
    # delta(epsilon) at each point of the grid, where that point itself adds nothing.
    deltas = tail - np.exp(sums) * tilted
    return float(sums[int(np.argmax(deltas <= delta))])


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a falling function crosses 0, from below; ``low`` if it is not positive there."""
    if function(low) <= 0.0:
        return low
    for _ in range(200):
        middle = 0.5 * (low + high)
        if function(middle) > 0.0:
            low = middle
        else:
            high = middle
    return low
