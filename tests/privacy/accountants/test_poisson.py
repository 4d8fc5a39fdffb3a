"""The privacy loss of a Gaussian, sampled or not, has the bits of dp-accounting's own."""

from __future__ import annotations

import math
from typing import Any
from unittest import mock

import numpy as np
import pytest
from dp_accounting import dp_event, pld
from dp_accounting.pld import common
from dp_accounting.pld.pld_pmf import SparsePLDPmf
from dp_accounting.pld.privacy_loss_distribution import (
    from_gaussian_mechanism,
    from_randomized_response,
)

from privacy.accountant import _pld_epsilon
from privacy.accountants.poisson import sampled_pld
from privacy.accountants.self_composition import self_composed

CASES = [(0.86, 0.5), (1.1, 0.01), (3.0, 0.2), (0.5, 0.003), (8.0, 1e-6), (0.7, 0.999), (1.0, 1.0)]
# The least loss of a user removed, log(1 - rate), lies on the grid.
CASES += [(1.0, -math.expm1(-0.008))]

BOUNDS = common.compute_self_convolve_bounds


@pytest.mark.parametrize(("noise", "rate"), CASES)
def test_the_bits_are_those_of_dp_accounting(noise: float, rate: float) -> None:
    ours = sampled_pld(noise, rate, 1e-3)
    theirs = from_gaussian_mechanism(noise, sampling_prob=rate, value_discretization_interval=1e-3)
    assert_equal(ours, theirs)
    for count in (1, 2, 60, 3000):
        assert_equal(self_composed(ours, count), theirs.self_compose(count))


def assert_equal(ours: Any, theirs: Any) -> None:
    for side in ("_pmf_remove", "_pmf_add"):
        own, other = getattr(ours, side).to_dense_pmf(), getattr(theirs, side).to_dense_pmf()
        assert own._lower_loss == other._lower_loss
        assert own._infinity_mass == other._infinity_mass
        assert np.array_equal(own._probs, other._probs)


@pytest.mark.parametrize("count", [2, 5, 50, 63, 64, 3000])
def test_a_law_of_few_losses_is_composed_as_by_dp_accounting(count: int) -> None:
    answers = from_randomized_response(0.6, 5, value_discretization_interval=1e-3)
    # Bounds of its window at orders next to each other are equal, and the best is elsewhere.
    rounds = from_gaussian_mechanism(4.0, sampling_prob=1e-3, value_discretization_interval=0.01)
    for losses in (answers, rounds):
        assert_equal(self_composed(losses, count), losses.self_compose(count))


def test_many_rounds_of_few_losses_are_composed_without_a_power_of_megabytes() -> None:
    losses = from_gaussian_mechanism(2.5, sampling_prob=1e-3, value_discretization_interval=1e-3)
    assert isinstance(losses._pmf_remove, SparsePLDPmf)
    with mock.patch.object(SparsePLDPmf, "self_compose", side_effect=AssertionError):
        self_composed(losses, 1_000_000)


def test_the_window_of_a_composition_is_sought_at_few_orders() -> None:
    with mock.patch.object(common, "compute_self_convolve_bounds", wraps=BOUNDS) as asked:
        self_composed(sampled_pld(1.1, 0.01, 1e-4), 1000)
    assert asked.call_count <= 20


def test_rounds_are_composed_as_by_dp_accounting() -> None:
    gaussian = dp_event.GaussianDpEvent
    events = [
        (dp_event.PoissonSampledDpEvent(rate, gaussian(noise)), count)
        for noise, rate, count in ((1.1, 0.05, 40), (2.0, 0.2, 7))
    ]
    events.append((gaussian(3.0), 5))
    accountant = pld.PLDAccountant(value_discretization_interval=1e-4)
    for event, count in events:
        accountant.compose(event, count)
    assert _pld_epsilon(tuple(events), 1e-5, 2.0, 1.0) == accountant.get_epsilon(1e-5)
