"""Calibration: the smallest noise that meets the budget, and it does meet it."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from privacy.calibration import (
    calibrate_noise_multiplier,
    default_delta,
    epsilon_of_rounds,
    max_rounds,
)
from privacy.errors import PlanError, PrivacyError

FLAIR_DELTA = 41_131**-1.1
# Origin: dp-accounting 0.6.0, Poisson sampling, add or remove a user, epsilon 2; the project's
# facts. PRV: Opacus for the first row, else within its error of PLD.
ROWS = [
    (41_131, 5000, 5000, FLAIR_DELTA, 18.668, 17.333),
    (41_131, 5000, 41_131, FLAIR_DELTA, 53.449, 49.633),
    (1_000_000, 5000, 5000, 1e-6, 1.106, 1.055),
    (1_000_000, 1000, 3000, 1e-6, 0.727, 0.633),
]


@pytest.mark.parametrize(("population", "cohort", "rounds", "delta", "rdp", "pld"), ROWS)
@pytest.mark.parametrize("accountant", ["rdp", "pld", "prv"])
def test_golden_multipliers(
    accountant: str,
    population: int,
    cohort: int,
    rounds: int,
    delta: float,
    rdp: float,
    pld: float,
) -> None:
    noise = calibrate_noise_multiplier(
        2.0, delta, "poisson", population, cohort, rounds, accountant
    )
    wanted, tolerance = {"rdp": (rdp, 0.005), "pld": (pld, 0.005), "prv": (pld, 0.01)}[accountant]
    assert noise == pytest.approx(wanted, rel=tolerance)
    arguments = (delta, "poisson", population, cohort, rounds, accountant)
    assert epsilon_of_rounds(noise, *arguments) <= 2.0
    assert epsilon_of_rounds(noise * (1 - 1e-4), *arguments) > 2.0


def test_opacus_golden_multipliers() -> None:
    arguments = (2.0, FLAIR_DELTA, "poisson", 41_131, 5000, 5000)
    assert calibrate_noise_multiplier(*arguments, "prv") == pytest.approx(17.41, rel=0.01)
    assert calibrate_noise_multiplier(*arguments, "rdp") == pytest.approx(18.672, rel=0.01)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(
    epsilon=st.floats(min_value=0.2, max_value=5.0),
    cohort=st.integers(min_value=1, max_value=1000),
    rounds=st.integers(min_value=1, max_value=20_000),
    accountant=st.sampled_from(["rdp", "pld"]),
    scheme=st.sampled_from(["poisson", "full"]),
)
def test_calibration_round_trips(
    epsilon: float, cohort: int, rounds: int, accountant: str, scheme: str
) -> None:
    population = cohort if scheme == "full" else 20_000
    arguments = (1e-6, scheme, population, cohort, rounds, accountant)
    noise = calibrate_noise_multiplier(
        epsilon, 1e-6, scheme, population, cohort, rounds, accountant
    )
    assert epsilon_of_rounds(noise, *arguments) <= epsilon
    assert epsilon_of_rounds(noise * (1 - 1e-4), *arguments) > epsilon


def test_calibration_of_fixed_size_sampling() -> None:
    arguments = (1e-5, "fixed_size", 41_131, 5000, 5000, "rdp")
    noise = calibrate_noise_multiplier(2.0, *arguments)
    assert (
        epsilon_of_rounds(noise, *arguments) <= 2.0 < epsilon_of_rounds(0.9999 * noise, *arguments)
    )
    # Replacing a user costs more than adding one, whose multiplier is 18.7.
    assert noise > 2 * 18.668


@pytest.mark.parametrize("accountant", ["rdp", "pld", "prv"])
def test_max_rounds_is_the_last_round_within_the_budget(accountant: str) -> None:
    arguments = (1e-5, "poisson", 10_000, 100)
    rounds = max_rounds(2.0, *arguments, 1.0, accountant)
    assert epsilon_of_rounds(1.0, *arguments, rounds, accountant) <= 2.0
    assert epsilon_of_rounds(1.0, *arguments, rounds + 1, accountant) > 2.0
    for limit in (1, rounds - 1, rounds, rounds + 1):
        assert max_rounds(2.0, *arguments, 1.0, accountant, limit) == min(limit, rounds)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(
    epsilon=st.floats(min_value=0.3, max_value=10.0),
    noise=st.floats(min_value=1.0, max_value=30.0),
    limit=st.integers(min_value=1, max_value=100_000),
    accountant=st.sampled_from(["rdp", "pld"]),
)
def test_max_rounds_never_exceeds(
    epsilon: float, noise: float, limit: int, accountant: str
) -> None:
    arguments = (1e-6, "poisson", 5000, 100)
    rounds = max_rounds(epsilon, *arguments, noise, accountant, limit)
    assert 0 <= rounds <= limit
    assert epsilon_of_rounds(noise, *arguments, rounds, accountant) <= epsilon
    if rounds < limit:
        assert epsilon_of_rounds(noise, *arguments, rounds + 1, accountant) > epsilon


def test_max_rounds_without_noise_is_none_at_all() -> None:
    assert max_rounds(2.0, 1e-5, "poisson", 1000, 10, 0.0, "rdp") == 0


def test_default_delta_is_that_of_the_papers() -> None:
    assert default_delta(41_131) == pytest.approx(8.4026e-6, rel=1e-4)
    with pytest.raises(PrivacyError, match="set delta"):
        default_delta(1)


@pytest.mark.parametrize("accountant", ["pld", "prv"])
def test_fixed_size_by_a_numerical_accountant_is_refused(accountant: str) -> None:
    with pytest.raises(PlanError, match="use the accountant rdp"):
        calibrate_noise_multiplier(2.0, 1e-5, "fixed_size", 1000, 10, 10, accountant)
    with pytest.raises(PlanError, match="use the accountant rdp"):
        max_rounds(2.0, 1e-5, "fixed_size", 1000, 10, 1.0, accountant)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": 0.0}, "epsilon is 0.0"),
        ({"epsilon": -1.0}, "epsilon is -1.0"),
        ({"epsilon": math.inf}, "epsilon is inf"),
        ({"epsilon": math.nan}, "epsilon is nan"),
        ({"epsilon": 1e8}, "at most 1e\\+06"),
        ({"delta": 0.0}, "delta is 0.0"),
        ({"delta": 1.0}, "delta is 1.0"),
        ({"cohort_size": 2000}, "more than population_size"),
        ({"rounds": 0}, "rounds is 0"),
        ({"scheme": "with_replacement"}, "scheme"),
        ({"accountant": "gdp"}, "accountant is 'gdp'"),
        ({"accountant": "prv", "epsilon": 0.005}, "cannot be shown"),
    ],
)
def test_arguments_out_of_range(changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "epsilon": 2.0,
        "delta": 1e-5,
        "scheme": "poisson",
        "population_size": 1000,
        "cohort_size": 10,
        "rounds": 100,
        "accountant": "rdp",
        **changes,
    }
    with pytest.raises(PrivacyError, match=message):
        calibrate_noise_multiplier(**arguments)


def test_a_limit_out_of_range() -> None:
    with pytest.raises(PrivacyError, match="limit is 0"):
        max_rounds(2.0, 1e-5, "poisson", 1000, 10, 1.0, "rdp", limit=0)
