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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from privacy.errors import PrivacyError

Array = NDArray[np.float64]
Pair = tuple[Callable[[Array], Array], Callable[[Array], Array]]

# Of delta: what each of the three bounds on rare events may come to.
_RARE = 1e-4
# Of epsilon: the sum of all rounding errors.
_RESOLUTION = 5e-4
_LEAST_RESOLUTION = 1e-5
_LARGEST_GRID = 1 << 22
# Of delta, an FFT and a round of its power: more than exact Gaussians show.
_FFT_ERROR = 2.0**-51
# exp() of larger losses overflows.
_LARGEST_LOSS = 600.0
# Of an integral: some seconds, and a gigabyte or two.
_MOST_POINTS = 1 << 25


class Bounds(NamedTuple):
    """Bounds of the smallest epsilon at a delta."""

    lower: float  # at most the truth
    upper: float  # at least the truth; infinite where none could be computed


@dataclass(frozen=True, slots=True)
class Loss:
    """The law of a round's privacy loss, of one of the two directions."""

    cdf: Callable[[Array], Array]  # P(L < l) of losses l, shape (n,), to full precision near 0
    sf: Callable[[Array], Array]  # P(L >= l), to full precision near 0
    nodes: Array  # losses, shape (m,), by which integrals over the law are computed
    weights: Array  # their weights, shape (m,), of sum 1


def composed_bounds(losses: list[Loss], count: int, delta: float, near: float) -> Bounds:
    """Bounds of epsilon of ``count`` equal rounds: the larger of all directions', if all have some.

    ``near``, an epsilon of the right size, sets the resolution: what is claimed.
    """
    found = [_bounds(loss, count, delta, near) for loss in losses]
    upper = max(one.upper for one in found)
    return Bounds(max(one.lower for one in found) if math.isfinite(upper) else 0.0, upper)


def sampled_gaussian_losses(
    rate: float, noise: float, count: int, delta: float, finer: int = 1
) -> list[Loss]:
    """Losses of a Poisson-sampled Gaussian: a user removed, and a user added.

    ``rate`` is in (0, 1], ``noise`` in multiples of the sensitivity; ``count`` rounds will be
    composed, at ``delta``. Points of the integrals are ``finer`` times closer than usual.
    """
    from scipy.special import ndtr

    reach = _reach(delta, count) * noise
    points = gaussian_points(noise, -reach, 1.0 + reach, finer)

    def place(loss: Array) -> Array:
        """The output whose loss of removal this is; -inf below the smallest loss."""
        return noise**2 * _exponent(rate, loss) + 0.5

    masses = [np.exp(-0.5 * ((points - shift) / noise) ** 2) for shift in (0.0, 1.0)]
    nodes = log_mixture(rate, (points - 0.5) / noise**2)
    tails = (lambda x: ndtr(x / noise)), (lambda x: ndtr(-x / noise))
    return _sampled(rate, tails, (place, place), nodes, masses)


def fixed_size_gaussian_loss(rate: float, noise: float, count: int, delta: float) -> Loss:
    """Loss of a pair that dominates every round of a fixed-size cohort whose user is replaced.

    Losses above 0 have the law of a user removed under Poisson sampling, those below 0 that of a
    user added, and the rest of the probability is at 0: of the divergence of every order, the
    larger of the two directions. ``rate``, in (0, 1), is cohort over population; ``noise`` is in
    multiples of the clipping bound, of which a replaced user moves the sum by two.
    """
    # Integrals are cut at loss 0, where quadrature is no longer exact: so much finer.
    removed, added = sampled_gaussian_losses(rate, noise / 2.0, count, delta, finer=256)
    above, below = removed.nodes > 0.0, added.nodes < 0.0
    masses = np.concatenate([added.weights[below], removed.weights[above]])
    zero = max(0.0, 1.0 - float(masses.sum()))
    return Loss(
        cdf=lambda loss: np.where(loss > 0.0, 1.0 - removed.sf(loss), added.cdf(loss)),
        sf=lambda loss: np.where(loss > 0.0, removed.sf(loss), 1.0 - added.cdf(loss)),
        nodes=np.concatenate([added.nodes[below], removed.nodes[above], [0.0]]),
        weights=np.concatenate([masses, [zero]]),
    )


def full_cohorts(population: int, cap: int, rate: float) -> tuple[float, float]:
    """Probability that the others fill a cohort that is cut, and then of a user to get a place.

    The second is given the first, and 0 where that is 0. ``cap`` is the most users of a round;
    each tosses a head with probability ``rate``.
    """
    from scipy import stats

    heads = np.arange(cap, population)
    masses = stats.binom.pmf(heads, population - 1, rate)
    full = float(masses.sum())
    return full, float(masses @ (rate * cap / (heads + 1.0))) / full if full > 0.0 else 0.0


def mixed_loss(one: Loss, other: Loss, share: float) -> Loss:
    """Loss of one pair of laws or, with probability ``share``, another, where it is told which."""
    return Loss(
        cdf=lambda loss: (1.0 - share) * one.cdf(loss) + share * other.cdf(loss),
        sf=lambda loss: (1.0 - share) * one.sf(loss) + share * other.sf(loss),
        nodes=np.concatenate([one.nodes, other.nodes]),
        weights=np.concatenate([(1.0 - share) * one.weights, share * other.weights]),
    )


def sampled_laplace_losses(rate: float, scale: float) -> list[Loss]:
    """Losses of a Poisson-sampled Laplace mechanism: a user removed, and a user added.

    ``rate`` is in (0, 1], ``scale`` in multiples of the sensitivity.
    """
    from scipy import stats

    knots, gauss = np.polynomial.legendre.leggauss(400)
    # Outputs below 0 all have the least loss, those above 1 the largest.
    nodes = log_mixture(rate, np.concatenate([[-1.0], knots, [1.0]]) / scale)
    low, high = nodes[0], nodes[-1]

    def place(loss: Array) -> Array:
        """The first output whose loss is this or more."""
        x = np.where(loss > low, (_exponent(rate, loss) * scale + 1.0) / 2.0, -np.inf)
        return np.where(loss > high, np.inf, np.minimum(x, 1.0))

    def after(loss: Array) -> Array:
        """The first output whose loss is more than this."""
        x = np.where(loss >= low, np.maximum(place(loss), 0.0), -np.inf)
        return np.where(loss >= high, np.inf, x)

    # Without the user, the noise is about 0; with, about 1.
    near, far = 0.5, 0.5 * math.exp(-1.0 / scale)
    inner = np.exp(-(knots + 1.0) / 2.0 / scale) * gauss / (4.0 * scale)
    without = np.concatenate([[near], inner, [far]])
    law: Any = stats.laplace(scale=scale)
    return _sampled(rate, (law.cdf, law.sf), (place, after), nodes, [without, without[::-1]])


def _sampled(
    rate: float, tails: Pair, places: Pair, nodes: Array, masses: Sequence[Array]
) -> list[Loss]:
    """Losses of noise with 1 added at a rate: the user removed, and the user added.

    ``tails`` are the noise's cumulative distribution, and one less it; ``places`` the first output
    whose loss is so large, and the first whose loss is larger. ``nodes``, shape (m,), are losses of
    removal, and ``masses`` theirs without the user, and with.
    """
    (below, above), (place, after) = tails, places

    def mixed(tail: Callable[[Array], Array], loss: Array) -> Array:
        x = place(loss)
        return (1.0 - rate) * tail(x) + rate * tail(x - 1.0)

    with_user = (1.0 - rate) * masses[0] + rate * masses[1]
    return [
        Loss(partial(mixed, below), partial(mixed, above), nodes, with_user / with_user.sum()),
        Loss(
            cdf=lambda loss: above(after(-loss)),
            sf=lambda loss: below(after(-loss)),
            nodes=-nodes,
            weights=masses[0] / masses[0].sum(),
        ),
    ]


def answers_epsilon(each: float, count: int, delta: float) -> float:
    """Epsilon of so many randomized responses of two answers, each of an epsilon, exact.

    Source: Kairouz, Oh, Viswanath 2015, theorem 3.3.
    """
    from scipy import optimize, stats

    lies = np.arange(count + 1)
    masses = stats.binom.pmf(lies, count, 1.0 / (1.0 + math.exp(each)))
    losses = (count - 2.0 * lies) * each

    def excess(epsilon: float) -> float:
        over = losses > epsilon
        return float(masses[over] @ -np.expm1(epsilon - losses[over])) - delta

    if excess(0.0) <= 0.0:
        return 0.0
    return float(optimize.brentq(excess, 0.0, count * each, xtol=1e-14))


def log_mixture(rate: float, exponent: Array) -> Array:
    """log(1 - q + q e^u), without overflow; of the shape of u."""
    if rate == 1.0:
        return exponent
    return np.logaddexp(math.log1p(-rate), math.log(rate) + exponent)


def _exponent(rate: float, loss: Array) -> Array:
    """The u whose ``log_mixture`` is the loss; -inf where it is below the smallest."""
    # log(e^l - (1 - q)) - log(q), without overflow and without loss of digits.
    with np.errstate(divide="ignore", invalid="ignore"):
        inner = loss + np.log(-np.expm1(math.log1p(-rate) - loss)) if rate < 1.0 else loss
    return np.where(np.isnan(inner), -np.inf, inner) - math.log(rate)


def _reach(delta: float, count: int) -> float:
    """Standard deviations beyond which the noise is cut off."""
    from scipy.special import ndtri

    return -float(ndtri(0.5 * _RARE * delta / count))


def gaussian_points(noise: float, low: float, high: float, finer: int = 1) -> Array:
    """Evenly spaced points for the trapezoid rule, shape (m,).

    Its error falls exponentially with one over the step: integrands are analytic up to pi z^2 from
    the real line, where the density ratio has its zeros. Too many are a PrivacyError.
    """
    step = min(noise / 16.0, noise**2 / 4.0) / finer
    if not (high - low) / step <= _MOST_POINTS:
        raise PrivacyError(f"noise of {noise:.3g} needs more than {_MOST_POINTS:.2g} points")
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
    # Weights that underflow are of outcomes rarer than anything that is set aside here.
    is_there = loss.weights > 0.0
    nodes, log_weights = sign * loss.nodes[is_there], np.log(loss.weights[is_there])
    best = count * float(nodes.max())
    for tilt in 2.0 ** np.arange(-14.0, 12.0):
        # The log of the mean of exp(tilt L): neither overflows nor underflows.
        log_mean = float(np.logaddexp.reduce(log_weights + tilt * nodes))
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
