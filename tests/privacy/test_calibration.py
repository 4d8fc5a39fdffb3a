"""Calibration: the smallest noise that meets the budget, and it does meet it."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from privacy.amplification import Participation
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
    participation = Participation.named("poisson", population, cohort)
    noise = calibrate_noise_multiplier(2.0, delta, participation, rounds, accountant)
    wanted, tolerance = {"rdp": (rdp, 0.005), "pld": (pld, 0.005), "prv": (pld, 0.01)}[accountant]
    assert noise == pytest.approx(wanted, rel=tolerance)
    arguments = (rounds, delta, accountant)
    assert epsilon_of_rounds(participation, noise, *arguments) <= 2.0
    assert epsilon_of_rounds(participation, noise * (1 - 1e-4), *arguments) > 2.0


def test_opacus_golden_multipliers() -> None:
    arguments = (2.0, FLAIR_DELTA, Participation.named("poisson", 41_131, 5000), 5000)
    assert calibrate_noise_multiplier(*arguments, "prv") == pytest.approx(17.41, rel=0.01)
    assert calibrate_noise_multiplier(*arguments, "rdp") == pytest.approx(18.672, rel=0.01)


@settings(max_examples=6, deadline=None, derandomize=True)
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
    participation = Participation.named(scheme, population, cohort)
    noise = calibrate_noise_multiplier(epsilon, 1e-6, participation, rounds, accountant)
    arguments = (rounds, 1e-6, accountant)
    assert epsilon_of_rounds(participation, noise, *arguments) <= epsilon
    assert epsilon_of_rounds(participation, noise * (1 - 1e-4), *arguments) > epsilon


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_calibration_of_fixed_size_sampling(accountant: str) -> None:
    participation = Participation.named("fixed_size", 41_131, 5000)
    noise = calibrate_noise_multiplier(2.0, 1e-5, participation, 5000, accountant)
    assert epsilon_of_rounds(participation, noise, 5000, 1e-5, accountant) <= 2.0
    assert epsilon_of_rounds(participation, 0.9999 * noise, 5000, 1e-5, accountant) > 2.0
    # Replacing a user costs more than adding one to half the noise.
    poisson = Participation.named("poisson", 41_131, 5000)
    assert noise > 2 * calibrate_noise_multiplier(2.0, 1e-5, poisson, 5000, accountant)


@pytest.mark.parametrize("accountant", ["rdp", "pld", "prv"])
def test_max_rounds_is_the_last_round_within_the_budget(accountant: str) -> None:
    participation = Participation.named("poisson", 1000, 200)
    rounds = max_rounds(2.0, 1e-5, participation, 8.0, accountant)
    assert 300 < rounds < 400
    assert epsilon_of_rounds(participation, 8.0, rounds, 1e-5, accountant) <= 2.0
    assert epsilon_of_rounds(participation, 8.0, rounds + 1, 1e-5, accountant) > 2.0
    for limit in (1, rounds - 1, rounds, rounds + 1):
        found = max_rounds(2.0, 1e-5, participation, 8.0, accountant, limit)
        assert found == min(limit, rounds)


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
    participation = Participation.named("poisson", 5000, 100)
    rounds = max_rounds(epsilon, 1e-6, participation, noise, accountant, limit)
    assert 0 <= rounds <= limit
    assert epsilon_of_rounds(participation, noise, rounds, 1e-6, accountant) <= epsilon
    if rounds < limit:
        assert epsilon_of_rounds(participation, noise, rounds + 1, 1e-6, accountant) > epsilon


def test_max_rounds_without_noise_is_none_at_all() -> None:
    assert max_rounds(2.0, 1e-5, Participation.named("poisson", 1000, 10), 0.0, "rdp") == 0


def test_default_delta_is_that_of_the_papers() -> None:
    assert default_delta(41_131) == pytest.approx(8.4026e-6, rel=1e-4)
    with pytest.raises(PrivacyError, match="set delta"):
        default_delta(1)


def test_fixed_size_by_prv_is_refused() -> None:
    participation = Participation.named("fixed_size", 1000, 10)
    with pytest.raises(PlanError, match="use the accountant rdp or pld"):
        calibrate_noise_multiplier(2.0, 1e-5, participation, 10, "prv")
    with pytest.raises(PlanError, match="use the accountant rdp or pld"):
        max_rounds(2.0, 1e-5, participation, 1.0, "prv")


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
    users = [arguments.pop(name) for name in ("scheme", "population_size", "cohort_size")]

    def calibrate() -> float:
        participation = Participation.named(*users)
        return calibrate_noise_multiplier(participation=participation, **arguments)

    with pytest.raises(PrivacyError, match=message):
        calibrate()


def test_a_limit_out_of_range() -> None:
    with pytest.raises(PrivacyError, match="limit is 0"):
        max_rounds(2.0, 1e-5, Participation.named("poisson", 1000, 10), 1.0, "rdp", limit=0)
