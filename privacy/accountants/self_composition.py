"""A privacy loss distribution composed with itself, as dp-accounting has it, but sooner.

Guarantee: that of ``dp_accounting``'s ``self_compose``, whose bits these are (``test_poisson``).
Rounds are composed in a window that holds all but ``_TAIL``, by Chernoff's bound at the best of
forty orders, of which dp-accounting (0.6.0) tries all; here they are searched.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Probability beyond the window of a composition, which counts as an infinite loss: the default of
# dp-accounting's ``self_compose``. The window is sought at orders of so many, and their negatives.
_TAIL = 1e-15
_ORDERS = 20
# From so many compositions on, dp-accounting makes a sparse distribution of two or more places
# dense. It tells by size ** count, an integer of megabytes that takes seconds to minutes.
_SURELY_DENSE = 64


def self_composed(distribution: Any, count: int) -> Any:
    """``distribution.self_compose(count)`` of a ``dp_accounting`` ``PrivacyLossDistribution``."""
    from dp_accounting.pld import privacy_loss_distribution as distributions

    pmfs = [distribution._pmf_remove]
    if not distribution._symmetric:
        pmfs.append(distribution._pmf_add)
    return distributions.PrivacyLossDistribution(*(_composed(pmf, count) for pmf in pmfs))


def _composed(pmf: Any, count: int) -> Any:
    from dp_accounting.pld.pld_pmf import DensePLDPmf
    from scipy import fft

    if not isinstance(pmf, DensePLDPmf):
        if pmf.size == 1 or count < _SURELY_DENSE:
            return pmf.self_compose(count)
        pmf = pmf.to_dense_pmf()
    first, last = _window(pmf._probs, count)
    size = last - first + 1
    length = fft.next_fast_len(max(size, len(pmf._probs)))
    probs = np.real(fft.ifft(fft.fft(pmf._probs, length) ** count))
    beyond = _TAIL - math.expm1(count * math.log1p(-pmf._infinity_mass))
    return DensePLDPmf(
        pmf._discretization,
        pmf._lower_loss * count + first,
        np.roll(probs, -first)[:size],
        beyond,
        pmf._pessimistic_estimate,
    )


def _window(probs: NDArray[np.float64], count: int) -> tuple[int, int]:
    """First and last place that a sum of ``count`` places of such probabilities, shape (n,), has.

    That of dp-accounting's ``compute_self_convolve_bounds``. With the logarithm of the moment
    generating function, which is convex, a Chernoff bound has one lowest point along the orders.
    """
    from dp_accounting.pld.common import compute_self_convolve_bounds

    places = np.arange(len(probs))
    mean = float(places @ probs)
    variance = max(float((places - mean) ** 2 @ probs), 1e-300)
    # The best order of a normal law.
    best = math.sqrt(2.0 * math.log(2.0 / _TAIL) / (count * variance)) * len(probs)
    guess = round(min(max(best, 1.0), _ORDERS))

    def bounds(multiple: int) -> tuple[int, int]:
        orders = [multiple / len(probs)]
        found: tuple[int, int] = compute_self_convolve_bounds(probs, count, _TAIL, orders)
        return found

    first = -_least(lambda multiple: -bounds(-multiple)[0], guess)
    return first, _least(lambda multiple: bounds(multiple)[1], guess)


def _least(value: Callable[[int], int], guess: int) -> int:
    """The least value at 1 to ``_ORDERS``, of values that fall and then rise, from a guess on."""
    value, at = cache(value), guess
    while True:
        beside = [k for k in (at - 1, at + 1) if 1 <= k <= _ORDERS]
        near = min(beside, key=value)
        if value(near) > value(at):
            return value(at)
        if value(near) == value(at):  # equal, as where no bound is below that of all places
            return min(map(value, range(1, _ORDERS + 1)))
        at = near
