"""Privacy loss of a Poisson-sampled Gaussian, as dp-accounting has it to the last bit, but sooner.

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


def sampled_pld(noise_multiplier: float, rate: float, interval: float) -> Any:
    """A ``dp_accounting`` ``PrivacyLossDistribution`` of a round, with pessimistic rounding.

    On a grid of losses ``interval`` apart. The noise multiplier is positive; ``rate`` is the
    probability of each user to take part, in (0, 1].
    """
    from dp_accounting.pld import privacy_loss_distribution as distributions
    from dp_accounting.pld import privacy_loss_mechanism as mechanisms
    from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots_fixed_gap

    if rate == 1.0:
        return distributions.from_gaussian_mechanism(
            noise_multiplier, value_discretization_interval=interval
        )
    pmfs = []
    for removes in (True, False):
        directions = mechanisms.AdjacencyType
        loss = mechanisms.GaussianPrivacyLoss(
            noise_multiplier,
            sampling_prob=rate,
            adjacency_type=directions.REMOVE if removes else directions.ADD,
        )
        bounds = loss.connect_dots_bounds()
        first = math.floor(bounds.epsilon_lower / interval)
        last = math.ceil(bounds.epsilon_upper / interval)
        deltas = _deltas(loss, removes, np.arange(first, last + 1) * interval)
        pmfs.append(create_pmf_pessimistic_connect_dots_fixed_gap(interval, first, last, deltas))
    return distributions.PrivacyLossDistribution(*pmfs)


def _deltas(loss: Any, removes: bool, epsilons: NDArray[np.float64]) -> NDArray[np.float64]:
    """Deltas of ``loss.get_delta_for_epsilon`` at epsilons, shape (n,), in one direction."""
    rate = loss.sampling_prob
    edge = math.log1p(-rate)
    inside = epsilons > edge if removes else epsilons < -edge
    deltas = np.zeros_like(epsilons)
    if removes:
        deltas[~inside] = -np.expm1(epsilons[~inside])
    inner = epsilons[inside]
    places = _places(loss, removes, inner)
    above = np.exp(inner + loss.mu_lower_log_cdf(places))
    deltas[inside] = loss.mu_upper_cdf(places) - above
    return np.clip(deltas, 0.0, 1.0)


def _places(loss: Any, removes: bool, epsilons: NDArray[np.float64]) -> NDArray[np.float64]:
    """Places where the privacy loss is each epsilon: those of ``loss.inverse_privacy_loss``."""
    rate = loss.sampling_prob
    signed = epsilons if removes else -epsilons
    # Log of 1 + (exp(signed) - 1) / rate: the loss without sampling.
    factor, offset = 1 / rate, 1 - 1 / rate
    scaled, log_offset = signed + np.log(factor), np.log(-offset)
    with np.errstate(divide="ignore", invalid="ignore"):
        unsampled = scaled + np.log1p(-np.exp(log_offset - scaled))
    unsampled[signed == 0.0] = np.log(factor + offset)
    # As ``math.isclose`` has it.
    edge = math.log(1 - rate)
    apart = 1e-9 * np.maximum(np.abs(signed), abs(edge))
    unsampled[np.abs(signed - edge) <= apart] = -math.inf
    if not removes:
        unsampled = -unsampled
    sensitivity, variance = loss.sensitivity, loss.standard_deviation**2
    places: NDArray[np.float64] = -0.5 * sensitivity - unsampled * variance / sensitivity
    return places if removes else sensitivity + places
