"""The second accountant: golden values, exact laws, and the accountants that it referees."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from dp_accounting import dp_event

from privacy.accountant import compose_epsilon
from privacy.amplification import Composition, Participation, sampled_gaussian
from privacy.audit.checks_referee import bounds_of
from privacy.audit.described import Described, banded_sensitivity, tree_sensitivity
from privacy.audit.referee import answers_epsilon, composed_bounds, sampled_gaussian_losses
from privacy.audit.referee_renyi import (
    fixed_size_divergence,
    laplace_divergence,
    rdp_epsilon,
    sampled_gaussian_divergence,
)
from privacy.empirical.gaussian_dp import epsilon_of_mu
from privacy.errors import PrivacyError
from privacy.noise.factorization import optimized_coefficients, squared_sensitivities
from privacy.noise.tree_factorization import tree_squared_sensitivity

# FLAIR's row (5,000 of 41,131 users, 5,000 rounds) and two of a million users, as calibrated in the
# literature to three digits: population, cohort, rounds, delta, noise multiplier, epsilon by pld.
GOLDEN = [
    (41_131, 5_000, 5_000, 8.4026e-6, 18.668, 1.841),
    (41_131, 5_000, 5_000, 8.4026e-6, 17.333, 2.0),
    (1_000_000, 5_000, 5_000, 1e-6, 1.055, 2.0),
    (1_000_000, 1_000, 3_000, 1e-6, 0.633, 2.0),
]
GOLDEN_RDP = [
    (41_131, 5_000, 5_000, 8.4026e-6, 18.668),
    (1_000_000, 5_000, 5_000, 1e-6, 1.106),
    (1_000_000, 1_000, 3_000, 1e-6, 0.727),
]


@pytest.mark.parametrize(("users", "cohort", "rounds", "delta", "noise", "epsilon"), GOLDEN)
def test_golden_epsilons_lie_between_the_bounds(
    users: int, cohort: int, rounds: int, delta: float, noise: float, epsilon: float
) -> None:
    described = Described("sampled gaussian", noise, rounds, cohort / users)
    bounds = bounds_of(described, delta, 2.0)
    # The golden numbers have three digits.
    assert bounds.lower * 0.997 <= epsilon <= bounds.upper * 1.003
    assert bounds.upper < 1.002 * bounds.lower
    assert bounds.lower > 0.8 * epsilon / 0.81


@pytest.mark.parametrize(("users", "cohort", "rounds", "delta", "noise"), GOLDEN_RDP)
def test_golden_epsilons_by_rdp_are_two(
    users: int, cohort: int, rounds: int, delta: float, noise: float
) -> None:
    def divergence(order: float) -> float:
        return rounds * sampled_gaussian_divergence(cohort / users, noise, order)

    assert rdp_epsilon(divergence, delta) == pytest.approx(2.0, rel=0.01)


@pytest.mark.parametrize(
    ("rounds", "noise", "delta"),
    [(1, 1.0, 1e-5), (20, 1.0, 1e-9), (5_000, 20.0, 1e-6), (100_000, 100.0, 1e-8)],
)
def test_bounds_hold_the_exact_epsilon_of_gaussians(
    rounds: int, noise: float, delta: float
) -> None:
    exact = epsilon_of_mu(math.sqrt(rounds) / noise, delta)
    losses = sampled_gaussian_losses(1.0, noise, rounds, delta)
    bounds = composed_bounds(losses, rounds, delta, exact)
    assert bounds.lower <= exact <= bounds.upper
    assert bounds.upper - bounds.lower < 0.003 * exact


@pytest.mark.parametrize("kind", ["sampled gaussian", "fixed-size gaussian"])
def test_noise_that_needs_more_points_than_memory_has_is_refused(kind: str) -> None:
    with pytest.raises(PrivacyError, match=r"needs more than 3\.4e\+07 points"):
        bounds_of(Described(kind, 1e-5, 2, 0.1), 1e-5, 500.0)


@pytest.mark.parametrize("noise", [0.02, 0.03, 0.06, 0.2])
def test_noise_that_hides_almost_nothing_has_bounds_or_none(noise: float) -> None:
    rounds, delta = 20, 1e-4
    losses = sampled_gaussian_losses(4 / 120, noise, rounds, delta)
    bounds = composed_bounds(losses, rounds, delta, 500.0)
    # A round without sampling is worse.
    assert bounds.lower <= epsilon_of_mu(math.sqrt(rounds) / noise, delta)
    assert bounds.upper >= bounds.lower
    assert math.isfinite(bounds.upper) or bounds == (0.0, math.inf)


def test_what_is_beyond_the_precision_has_no_bounds() -> None:
    losses = sampled_gaussian_losses(0.01, 1.0, 1_000_000, 1e-10)
    assert composed_bounds(losses, 1_000_000, 1e-10, 1.0) == (0.0, math.inf)


def event_of(described: Described) -> Composition:
    event: Any = dp_event.GaussianDpEvent(described.noise)
    if "laplace" in described.kind:
        event = dp_event.LaplaceDpEvent(described.noise)
    if described.kind.startswith("sampled"):
        event = dp_event.PoissonSampledDpEvent(described.rate, event)
    if described.kind == "truncated gaussian":
        size = described.sizes[0]
        users = Participation.named("truncated_poisson", size, round(size * described.rate))
        return sampled_gaussian(users, described.noise, described.count)
    if described.kind == "fixed-size gaussian":
        users = Participation.named("fixed_size", 1_000, round(1_000 * described.rate))
        return sampled_gaussian(users, described.noise, described.count)
    return Composition(event, described.count, "add-or-remove-one")


@pytest.mark.parametrize(
    "described",
    [
        Described("sampled gaussian", 0.6, 30, 0.001),
        Described("sampled gaussian", 1.0, 200, 0.05),
        Described("sampled gaussian", 5.0, 1_000, 0.5),
        Described("fixed-size gaussian", 1.0, 1, 0.01),
        Described("fixed-size gaussian", 2.0, 100, 0.05),
        Described("fixed-size gaussian", 20.0, 300, 0.5),
        Described("fixed-size gaussian", 20.0, 30, 1.0),
        Described("truncated gaussian", 1.0, 100, 0.01, sizes=(1_000, 23)),
        Described("truncated gaussian", 0.8, 30, 0.1, sizes=(20, 8)),
        Described("sampled laplace", 1.0, 100, 0.1),
        Described("sampled laplace", 0.3, 20, 0.02),
        Described("laplace", 5.0, 50),
        Described("laplace", 0.5, 1),
    ],
    ids=lambda described: f"{described.kind} {described.noise}",
)
def test_pld_lies_within_the_bounds_to_its_discretisation(described: Described) -> None:
    epsilon = compose_epsilon([event_of(described)], 1e-5, "pld")
    bounds = bounds_of(described, 1e-5, epsilon)
    assert bounds.lower <= epsilon <= 1.01 * bounds.upper
    assert 0.8 * epsilon < bounds.lower


def test_divergences_are_those_of_the_accountant_rdp() -> None:
    for rate, noise in ((0.1, 20.0), (0.2, 5.0), (0.05, 1.0)):
        users = Participation.named("fixed_size", 1_000, int(1_000 * rate))
        claimed = compose_epsilon([sampled_gaussian(users, noise, 100)], 1e-5, "rdp")

        def divergence(order: float, rate: float = rate, noise: float = noise) -> float:
            return 100 * fixed_size_divergence(rate, noise, order)

        assert rdp_epsilon(divergence, 1e-5) == pytest.approx(claimed, rel=1e-6)
    laplace = event_of(Described("laplace", 2.0, 30))
    claimed = compose_epsilon([laplace], 1e-5, "rdp")
    own = rdp_epsilon(lambda order: 30 * laplace_divergence(2.0, order), 1e-5)
    assert own == pytest.approx(claimed, rel=1e-6)


@pytest.mark.parametrize("order", [2.0, 63.0, 1024.0])
def test_whole_orders_need_no_points_however_little_noise_there_is(order: float) -> None:
    assert sampled_gaussian_divergence(1.0, 1e-3, order) == pytest.approx(order / 2e-6, rel=1e-12)
    # All but the largest term vanish: q^a e^(a (a - 1) / 2 z^2).
    expected = (order * math.log(0.01) + order * (order - 1.0) / 2e-6) / (order - 1.0)
    assert sampled_gaussian_divergence(0.01, 1e-3, order) == pytest.approx(expected, rel=1e-12)


def test_randomized_responses_are_composed_exactly() -> None:
    # One response: pure epsilon, or what delta leaves of it.
    truth = 1.0 / (1.0 + math.exp(-1.5))
    for delta in (1e-9, 0.1):
        exact = math.log((truth - delta) / (1.0 - truth))
        assert answers_epsilon(1.5, 1, delta) == pytest.approx(exact, rel=1e-9)
    assert answers_epsilon(0.1, 400, 1e-5) < epsilon_of_mu(0.1 * 20, 1e-5) * 1.05


@pytest.mark.parametrize("apart", [1, 3, 7])
def test_sensitivities_are_added_up_alike(apart: int) -> None:
    for rounds, restart in ((1, None), (20, None), (20, 6), (33, 8)):
        own = tree_sensitivity(rounds, apart, restart)
        assert own == tree_squared_sensitivity(rounds, apart, restart)
    coefficients = optimized_coefficients(20, 5)
    own = banded_sensitivity(np.asarray(coefficients), 20, apart)
    assert own == pytest.approx(float(squared_sensitivities(coefficients, apart, 20)[-1]))
    assert tree_sensitivity(1 << 20, 48, None) is None
