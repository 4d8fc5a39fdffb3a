"""Poisson cohorts that are cut at a cap: draws, and the privacy loss against enumerated cohorts."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from dp_accounting import pld
from scipy import integrate, stats

from privacy.accountant import _PLD_LARGEST_GRID, _least_interval, compute_epsilon
from privacy.accountants.poisson import sampled_pld
from privacy.accountants.truncation import crowding, truncated_pld, untruncated
from privacy.amplification import Participation, sampled_gaussian
from privacy.calibration import calibrate_noise_multiplier
from privacy.errors import PlanError


def users_of(population: int, cohort: int) -> Participation:
    return Participation.named("truncated_poisson", population, cohort)


def epsilon(population: int, cohort: int, noise: float, rounds: int, scheme: str) -> float:
    users = Participation.named(scheme, population, cohort)
    composed = sampled_gaussian(users, noise, rounds)
    return compute_epsilon(composed.event, rounds, 1e-5, "pld", composed.adjacency)


@pytest.mark.parametrize(("population", "rate", "cap"), [(6, 0.5, 2), (7, 0.3, 3), (5, 0.9, 1)])
def test_crowding_is_that_of_enumerated_coins(population: int, rate: float, cap: int) -> None:
    full = placed = 0.0
    for coins in itertools.product((0, 1), repeat=population - 1):
        heads = sum(coins)
        mass = rate**heads * (1.0 - rate) ** (population - 1 - heads)
        if heads >= cap:
            full += mass
            placed += mass * rate * cap / (heads + 1)
    assert crowding(population, rate, cap) == pytest.approx((full, placed / full), rel=1e-12)


def test_draws_are_uniform_and_cut() -> None:
    users = users_of(12, 2)
    cap = users.scheme.largest_cohort(users)
    assert cap == math.ceil(2 + 4 * math.sqrt(2)) == 8
    rng = np.random.default_rng(5)
    draws = [users.scheme.draw(users, rng, 1, None) for _ in range(4000)]
    sizes = np.bincount([len(draw) for draw in draws], minlength=cap + 1)
    law = stats.binom(12, 2 / 12)
    expected = 4000 * np.array([*law.pmf(range(cap)), law.sf(cap - 1)])
    near = expected > 5
    observed, expected = sizes[near], expected[near]
    assert stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > 1e-3
    assert stats.chisquare(np.bincount(np.concatenate(draws))).pvalue > 1e-3


def test_a_cap_that_binds_is_kept() -> None:
    users = users_of(400, 1)
    rng = np.random.default_rng(1)
    # Coins of a hundred times the rate, to see the cut.
    crowd = type("Heads", (), {"binomial": lambda *_: 100, "choice": rng.choice})()
    assert len(users.scheme.draw(users, crowd, 1, None)) == users.scheme.largest_cohort(users) == 5


def densities(population: int, rate: float, cap: int, noise: float) -> list[np.ndarray]:
    """Laws of a round's sum with the user (who sends 1) and without; the others send -1 or 1.

    Returns:
        Grid, density with, density without: shape (n,) each.
    """
    values = [-1.0 if other % 3 else 1.0 for other in range(population - 1)]
    grid = np.linspace(-population - 8 * noise, population + 8 * noise, 4001)
    laws = []
    for everybody in ([1.0, *values], values):
        law = np.zeros_like(grid)
        for coins in itertools.product((0, 1), repeat=len(everybody)):
            heads = [value for value, coin in zip(everybody, coins, strict=True) if coin]
            mass = rate ** len(heads) * (1.0 - rate) ** (len(everybody) - len(heads))
            kept = list(itertools.combinations(heads, min(cap, len(heads))))
            for cohort in kept:
                law += mass / len(kept) * stats.norm.pdf(grid, sum(cohort), noise)
        laws.append(law)
    return [grid, *laws]


def test_enumerated_data_sets_are_dominated() -> None:
    population, rate, cap, noise = 6, 0.5, 3, 1.0
    grid, present, absent = densities(population, rate, cap, noise)
    event = sampled_gaussian(users_of(population, 3), noise, 1).event
    event = type(event)(population, rate, cap, noise)
    loss, simple = truncated_pld(event, 1e-3), untruncated(event)
    rough = sampled_pld(simple.event.noise_multiplier, simple.sampling_probability, 1e-3)
    for upper, lower in ((present, absent), (absent, present)):
        for at in (0.0, 0.3, 0.8):
            excess = np.maximum(0.0, upper - math.exp(at) * lower)
            assert integrate.trapezoid(excess, grid) <= loss.get_delta_for_epsilon(at) + 1e-9
            assert loss.get_delta_for_epsilon(at) <= rough.get_delta_for_epsilon(at)


@pytest.mark.parametrize(("noise", "rounds"), [(1.0, 100)])
def test_the_cap_costs_something_and_less_than_a_replaced_user_would(
    noise: float, rounds: int
) -> None:
    cut = epsilon(1000, 10, noise, rounds, "truncated_poisson")
    event = sampled_gaussian(users_of(1000, 10), noise, rounds).event
    # A peer's bound of the same event, of dp-accounting 0.6.
    accountant = pld.PLDAccountant()
    accountant.compose(event, rounds)
    assert epsilon(1000, 10, noise, rounds, "poisson") < cut < accountant.get_epsilon(1e-5)
    loose = compute_epsilon(untruncated(event), rounds, 1e-5, "pld", "add-or-remove-one")
    assert cut < loose
    # Documented (docs/privacy.md).
    assert cut == pytest.approx(0.8895, rel=1e-3)


def test_noise_is_calibrated_to_its_tolerance() -> None:
    # From 20 on, the grid of losses is coarse, and a search takes seconds.
    users, budget = users_of(60, 30), 25.0
    noise = calibrate_noise_multiplier(budget, 1e-5, users, 6, "pld")
    just_below = noise * (1.0 - 1e-4)
    assert epsilon(60, 30, noise, 6, "truncated_poisson") <= budget
    assert epsilon(60, 30, just_below, 6, "truncated_poisson") > budget


def test_a_cohort_of_everybody_is_never_cut() -> None:
    whole = epsilon(20, 20, 5.0, 30, "truncated_poisson")
    assert whole == pytest.approx(epsilon(20, 20, 5.0, 30, "full"), rel=1e-3)
    assert users_of(20, 20).scheme.largest_cohort(users_of(20, 20)) == 20


@pytest.mark.parametrize("accountant", ["rdp", "prv"])
def test_other_accountants_refuse_it(accountant: str) -> None:
    composed = sampled_gaussian(users_of(100, 10), 1.0, 5)
    with pytest.raises(PlanError, match="use the accountant pld"):
        compute_epsilon(composed.event, 5, 1e-5, accountant, composed.adjacency)


def test_other_noise_is_refused() -> None:
    from dp_accounting import dp_event

    with pytest.raises(PlanError, match="Gaussian noise alone"):
        users_of(100, 10).sampled(dp_event.LaplaceDpEvent(1.0))


@pytest.mark.parametrize("noise", [0.05, 0.1, 0.3])
def test_the_grid_of_a_full_cohort_is_within_the_memory(noise: float) -> None:
    event = sampled_gaussian(users_of(1_000_000, 1), noise, 1).event
    # Largest loss of a Gaussian of half the multiplier.
    points = (2.0 / noise**2 + 20.0 / noise) / _least_interval([(event, 1)])
    assert points == pytest.approx(_PLD_LARGEST_GRID)
