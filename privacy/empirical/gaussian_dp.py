"""Between the shift of a normal score and epsilon: mu-Gaussian differential privacy.

Guarantee: none; this is arithmetic. A mechanism is mu-GDP when telling two neighbouring inputs
apart is at least as hard as telling N(0, 1) from N(mu, 1). Add-or-remove-one of a unit under a
Gaussian mechanism of multiplier z is mu-GDP for mu = 1 / z, and no smaller mu.

Source: Dong, Roth, Su 2022, "Gaussian differential privacy", corollary 2.13 (``delta_of_mu``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from privacy.accountant import LARGEST_EPSILON, check_delta
from privacy.errors import PrivacyError

_STEPS = 200


class Normal(NamedTuple):
    """A normal law of scores; the standard deviation is positive."""

    mean: float
    stddev: float


def delta_of_mu(mu: float, epsilon: float) -> float:
    """Smallest delta at which mu-GDP, of a positive and finite mu, gives (epsilon, delta)."""
    from scipy.special import log_ndtr, ndtr

    near = float(ndtr(-epsilon / mu + mu / 2.0))
    return near - math.exp(epsilon + float(log_ndtr(-epsilon / mu - mu / 2.0)))


def epsilon_of_mu(mu: float, delta: float) -> float:
    """Smallest epsilon at which mu-GDP gives (epsilon, delta), rounded down.

    At least 0, ``LARGEST_EPSILON`` at most, for mu of at least 0.
    """
    from scipy.special import ndtri

    check_delta(delta)
    if not mu >= 0.0:
        raise PrivacyError(f"mu is {mu!r}, but must be at least 0")
    if mu * mu > 2.0 * LARGEST_EPSILON:
        return LARGEST_EPSILON
    if mu == 0.0 or delta_of_mu(mu, 0.0) <= delta:
        return 0.0
    high = mu * mu / 2.0 - mu * float(ndtri(delta))
    return largest(lambda epsilon: delta_of_mu(mu, epsilon) > delta, 0.0, max(high, 0.0))


def epsilon_of_normals(null: Normal, alternative: Normal, delta: float) -> float:
    """Epsilon that telling two normal laws apart amounts to, in the worse direction.

    ``null`` is the law of the score of a unit that was not there, ``alternative`` of one that was.
    At least 0, ``LARGEST_EPSILON`` at most. Both laws must be finite, and vary.

    Source: Andrew et al. 2024, "One-shot empirical privacy estimation for federated learning",
    section 3 (the epsilon of two fitted normals is found numerically).
    """
    check_delta(delta)
    for law in (null, alternative):
        if not (law.stddev > 0.0 and math.isfinite(law.stddev) and math.isfinite(law.mean)):
            raise PrivacyError(f"a law of scores is {law}; it must be finite, and vary")

    def hidden(epsilon: float) -> bool:
        return (
            max(
                _delta_of_normals(alternative, null, epsilon),
                _delta_of_normals(null, alternative, epsilon),
            )
            <= delta
        )

    high = 1.0
    while not hidden(high):
        high *= 2.0
        if high > LARGEST_EPSILON:
            return LARGEST_EPSILON
    return largest(lambda epsilon: not hidden(epsilon), 0.0, high)


def _delta_of_normals(first: Normal, second: Normal, epsilon: float) -> float:
    """P(S) - exp(epsilon) Q(S) on the set S where the density of P exceeds exp(epsilon) of Q's.

    With x in standard deviations of Q from its mean, the log ratio is a parabola, so that S is an
    interval, or what is outside one.
    """
    scale = first.stddev / second.stddev
    shift = (first.mean - second.mean) / second.stddev
    # log ratio - epsilon = a x**2 + b x + c
    a = 0.5 - 0.5 / scale**2
    b = shift / scale**2
    c = -0.5 * shift**2 / scale**2 - math.log(scale) - epsilon
    if abs(a) < 1e-12:
        if b == 0.0:
            return max(0.0, 1.0 - math.exp(epsilon)) if c > 0.0 else 0.0
        edge = -c / b
        low, high = (edge, math.inf) if b > 0.0 else (-math.inf, edge)
        return _mass(low, high, shift, scale, epsilon)
    inside = b * b - 4.0 * a * c
    if inside <= 0.0:
        return 0.0 if a < 0.0 else -math.expm1(epsilon)
    # The root of larger size first, so that no digits cancel.
    larger = -0.5 * (b + math.copysign(math.sqrt(inside), b))
    low, high = sorted((larger / a, c / larger))
    if a < 0.0:
        return _mass(low, high, shift, scale, epsilon)
    below = _mass(-math.inf, low, shift, scale, epsilon)
    return below + _mass(high, math.inf, shift, scale, epsilon)


def _mass(low: float, high: float, shift: float, scale: float, epsilon: float) -> float:
    from scipy.special import log_ndtr, ndtr

    def between(start: float, end: float) -> float:
        if start > 0.0:
            start, end = -end, -start
        return float(ndtr(end) - ndtr(start))

    first = between((low - shift) / scale, (high - shift) / scale)
    if math.isinf(low) or math.isinf(high):
        tail = high if math.isinf(low) else -low
        return first - math.exp(min(epsilon + float(log_ndtr(tail)), 700.0))
    return first - math.exp(min(epsilon, 700.0)) * between(low, high)


def largest(
    holds: Callable[[float], bool],
    low: float,
    high: float,
    absolute: float = 0.0,
    relative: float = 1e-12,
) -> float:
    """Bisect for the largest value of which something holds; where it does, it does below.

    Returned is a value of which it holds, if it does of ``low``, which is taken on trust, as is
    that it does not of ``high``. A value of which it does not hold is within ``absolute``, or
    within ``relative`` parts of itself.
    """
    for _ in range(_STEPS):
        middle = (low + high) / 2.0
        if not low < middle < high or high - low <= max(absolute, relative * abs(high)):
            break
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
