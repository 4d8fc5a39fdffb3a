"""Privacy loss of a Gaussian, sampled by Poisson or not, as dp-accounting has it, but sooner.

Guarantee: that of ``dp_accounting``'s ``from_gaussian_mechanism``: the distribution dominates a
round, in each of the two directions of adding and removing a user. dp-accounting (0.6.0) inverts
the privacy loss for one point of the grid after another; here it is inverted for all of them at
once, by the same operations in the same order. ``test_poisson`` compares the bits.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privacy.accountants.self_composition import self_composed


def rounds_pld(noise_multiplier: float, rate: float | None, count: int, interval: float) -> Any:
    """Privacy loss of ``count`` rounds, as in dp-accounting's accountant; no rate: unsampled."""
    if rate is None:
        return sampled_pld(noise_multiplier / math.sqrt(count), 1.0, interval)
    return self_composed(sampled_pld(noise_multiplier, rate, interval), count)


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
