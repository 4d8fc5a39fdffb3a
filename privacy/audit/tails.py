"""Probabilities of what a true run would show, or valid bounds of them.

Guarantee: each function returns at least the probability, under the law that is claimed, of a
deviation as large as the one seen (two-sided), so that a run that does what it claims fails with
no more than the probability that is allowed.

Source: Massart 1990 (the constant of the DKW inequality); Boucheron, Lugosi and Massart 2013,
"Concentration inequalities", sections 2.2 and 2.4 and theorem 2.10 (Chernoff, sub-gamma and
Bernstein bounds); Laurent and Massart 2000, lemma 1 (weighted chi-squares).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Of a Laplace law with variance 1: its scale, the variance of a draw's square, its fourth moment.
_LAPLACE_SCALE = 1.0 / math.sqrt(2.0)
_LAPLACE_SQUARE_VARIANCE = 5.0
_LAPLACE_FOURTH_MOMENT = 6.0
# Largest draws, of which a bound for sums of Laplace squares picks the best.
_LAPLACE_LARGEST = np.geomspace(2.0, 200.0, 60)

Array = NDArray[np.float64]


def squares(shape: str, total: Array | float, count: Array | float, slack: Array | float) -> Array:
    """P-values of sums of squares of so many draws of variance 1.

    The draws are "gaussian" (chi-square, exact) or "laplace" (bounds, loose for few draws);
    ``slack`` is the relative error that rounding may have brought into each sum.
    """
    from scipy import stats

    count = np.asarray(count, dtype=np.float64)
    least = np.asarray(total, dtype=np.float64) / (1.0 + np.asarray(slack))
    most = np.asarray(total, dtype=np.float64) * (1.0 + np.asarray(slack))
    if shape == "laplace":
        low, high = _laplace_below(most, count), _laplace_above(least, count)
    else:
        law: Any = stats.chi2(count)
        low, high = law.cdf(most), law.sf(least)
    return np.asarray(np.minimum(1.0, 2.0 * np.minimum(low, high)))


def _laplace_below(total: Array, count: Array) -> Array:
    """Bernstein's bound of the lower tail, which draws that cannot be negative have alone."""
    missing = np.maximum(0.0, count - total)
    return np.asarray(np.exp(-(missing**2) / (2.0 * _LAPLACE_FOURTH_MOMENT * count)))


def _laplace_above(total: Array, count: Array) -> Array:
    """Some draw is beyond a bound, or else Bernstein's inequality for bounded draws holds."""
    excess = np.maximum(0.0, total - count)
    best = np.ones_like(excess + count)
    for largest in _LAPLACE_LARGEST:
        beyond = count * math.exp(-largest / _LAPLACE_SCALE)
        spread = _LAPLACE_SQUARE_VARIANCE * count + largest**2 * excess / 3.0
        best = np.minimum(best, beyond + np.exp(-(excess**2) / (2.0 * spread)))
    return np.asarray(best)


def distance(shape: str, draws: Array) -> tuple[float, float]:
    """Kolmogorov-Smirnov distance of independent draws, shape (n,), of variance 1 from their law.

    And a bound of its p-value, by the DKW inequality.
    """
    from scipy import stats

    law: Any = stats.laplace(scale=_LAPLACE_SCALE) if shape == "laplace" else stats.norm()
    gap = float(stats.kstest(draws, law.cdf, method="asymp").statistic)
    return gap, min(1.0, 2.0 * math.exp(-2.0 * len(draws) * gap**2))


def chernoff(total: float, count: int, values: Array, weights: Array, above: bool) -> float:
    """Bound of a tail, the upper one or not, of a sum of ``count`` independent, equal draws.

    A draw is one of ``values``, shape (k,), at least 0, with the probabilities ``weights``, shape
    (k,), up to what is too rare to matter.
    """
    from scipy import optimize

    mean = float(np.dot(values, weights)) / float(weights.sum())
    if above == (total <= count * mean):
        return 1.0
    sign = 1.0 if above else -1.0
    logs = np.log(weights)

    def exponent(log_rate: float) -> float:
        tilted = logs + sign * math.exp(log_rate) * values
        top = float(tilted.max())
        moment = top + math.log(float(np.exp(tilted - top).sum()))
        return count * moment - sign * math.exp(log_rate) * total

    scale = math.log(max(float(np.sqrt(np.dot(values**2, weights))), 1e-12))
    found = optimize.minimize_scalar(
        exponent, bounds=(-scale - 15.0, -scale + 8.0), method="bounded"
    )
    return math.exp(min(0.0, float(found.fun)))
