"""Privacy loss of a Gaussian, sampled by Poisson or not, as dp-accounting has it, but sooner.

Guarantee: that of ``dp_accounting``'s ``from_gaussian_mechanism``: the distribution dominates a
round, in each of the two directions of adding and removing a user. dp-accounting (0.6.0) inverts
the privacy loss for one point of the grid after another; here it is inverted for all of them at
once, by the same operations in the same order. Rounds are composed in a window that holds all but
``_TAIL``, by Chernoff's bound at the best of forty orders, of which dp-accounting tries all; here
they are searched. ``test_poisson`` compares the bits.
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


def rounds_pld(noise_multiplier: float, rate: float | None, count: int, interval: float) -> Any:
    """Privacy loss of ``count`` rounds, as in dp-accounting's accountant; no rate: unsampled."""
    if rate is None:
        return sampled_pld(noise_multiplier / math.sqrt(count), 1.0, interval)
    return self_composed(sampled_pld(noise_multiplier, rate, interval), count)


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
        return pmf.self_compose(count)
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


def sampled_pld(noise_multiplier: float, rate: float, interval: float) -> Any:
    """A ``dp_accounting`` ``PrivacyLossDistribution`` of a round, with pessimistic rounding.

    On a grid of losses ``interval`` apart. The noise multiplier is positive; ``rate`` is the
    probability of each user to take part, in (0, 1]. At 1 both directions are one.
    """
    from dp_accounting.pld import privacy_loss_distribution as distributions
    from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots_fixed_gap

    pmfs = []
    for removes in (True,) if rate == 1.0 else (True, False):
        loss = gaussian_loss(noise_multiplier, rate, removes)
        first, last = grid_of(loss, interval)
        deltas = deltas_of(loss, removes, np.arange(first, last + 1) * interval)
        pmfs.append(create_pmf_pessimistic_connect_dots_fixed_gap(interval, first, last, deltas))
    return distributions.PrivacyLossDistribution(*pmfs)


def gaussian_loss(noise_multiplier: float, rate: float, removes: bool) -> Any:
    """``dp_accounting``'s privacy loss of a sampled Gaussian when a user is removed, or added."""
    from dp_accounting.pld import privacy_loss_mechanism as mechanisms

    directions = mechanisms.AdjacencyType
    return mechanisms.GaussianPrivacyLoss(
        noise_multiplier,
        sampling_prob=rate,
        adjacency_type=directions.REMOVE if removes else directions.ADD,
    )


def grid_of(loss: Any, interval: float) -> tuple[int, int]:
    """First and last point of the grid of losses, in multiples of ``interval``."""
    bounds = loss.connect_dots_bounds()
    return math.floor(bounds.epsilon_lower / interval), math.ceil(bounds.epsilon_upper / interval)


def deltas_of(loss: Any, removes: bool, epsilons: NDArray[np.floating]) -> NDArray[np.float64]:
    """Deltas of ``loss.get_delta_for_epsilon`` at epsilons, shape (n,), in one direction."""
    rate = loss.sampling_prob
    edge = math.log1p(-rate) if rate < 1.0 else -math.inf
    inside = epsilons > edge if removes else epsilons < -edge
    deltas = np.zeros(epsilons.shape)
    if removes:
        deltas[~inside] = -np.expm1(epsilons[~inside])
    inner = epsilons[inside]
    places = _places(loss, removes, inner)
    above = np.exp(inner + loss.mu_lower_log_cdf(places))
    deltas[inside] = loss.mu_upper_cdf(places) - above
    return np.clip(deltas, 0.0, 1.0)


def _places(loss: Any, removes: bool, epsilons: NDArray[np.floating]) -> NDArray[np.float64]:
    """Places where the privacy loss is each epsilon: those of ``loss.inverse_privacy_loss``."""
    unsampled = epsilons if loss.sampling_prob == 1.0 else _unsampled(loss, removes, epsilons)
    sensitivity, variance = loss.sensitivity, loss.standard_deviation**2
    places: NDArray[np.float64] = -0.5 * sensitivity - unsampled * variance / sensitivity
    return places if removes else sensitivity + places


def _unsampled(loss: Any, removes: bool, epsilons: NDArray[np.floating]) -> NDArray[np.float64]:
    """Log of 1 + (exp(epsilon) - 1) / rate: the losses without sampling."""
    rate = loss.sampling_prob
    signed = epsilons if removes else -epsilons
    factor, offset = 1 / rate, 1 - 1 / rate
    scaled, log_offset = signed + np.log(factor), np.log(-offset)
    with np.errstate(divide="ignore", invalid="ignore"):
        unsampled: NDArray[np.float64] = scaled + np.log1p(-np.exp(log_offset - scaled))
    unsampled[signed == 0.0] = np.log(factor + offset)
    # As ``math.isclose`` has it.
    edge = math.log(1 - rate)
    apart = 1e-9 * np.maximum(np.abs(signed), abs(edge))
    unsampled[np.abs(signed - edge) <= apart] = -math.inf
    return unsampled if removes else -unsampled
