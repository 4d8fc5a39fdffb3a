"""Each of the five numbers: the answer fits the budget, and the next one does not."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from privacy.amplification import Composition, Participation
from privacy.calibration import default_delta, epsilon_of_rounds
from privacy.errors import PlanError, PrivacyError
from privacy.plan.question import LARGEST_ROUNDS, UNKNOWNS, Question
from privacy.plan.solving import Solution, solve
from privacy.sampling_scheme import scheme_named
from privacy.schemes.cyclic_poisson import CyclicPoisson
from privacy.schemes.fixed_size import FixedSize
from privacy.schemes.full import Full

SEARCHED = tuple(name for name in UNKNOWNS if name != "epsilon")
# FLAIR's setting: its z by dp-accounting 0.6.0 (the project's facts) is 18.668, to three places.
FLAIR = Question(2.0, 18.668, 5000, 5000, 41_131)


def epsilon_at(question: Question, solution: Solution, value: float) -> float:
    """Epsilon with another value for the unknown, by another path than the solver's."""
    numbers: dict[str, Any] = {
        "noise_multiplier": solution.noise_multiplier,
        "rounds": solution.rounds,
        "cohort_size": solution.participation.cohort_size,
        "population_size": solution.participation.population_size,
        solution.unknown: value,
    }
    delta = question.delta or default_delta(numbers["population_size"])
    users = Participation(question.scheme, numbers["population_size"], numbers["cohort_size"])
    noise, rounds = numbers["noise_multiplier"], numbers["rounds"]
    return epsilon_of_rounds(users, noise, rounds, delta, question.accountant)


def check(question: Question, solution: Solution) -> None:
    assert question.epsilon is not None
    at_the_answer = epsilon_at(question, solution, solution.value)
    assert at_the_answer == solution.epsilon <= question.epsilon
    following = {
        "noise_multiplier": solution.value * (1 - 1e-4),
        "rounds": solution.value + 1,
        "cohort_size": solution.value + 1,
        "population_size": solution.value - 1,
    }[solution.unknown]
    if solution.beyond is None:
        # There is no next one.
        with pytest.raises(PrivacyError):
            epsilon_at(question, solution, following)
        return
    assert solution.beyond[0] == following
    assert solution.beyond[1] == epsilon_at(question, solution, following) > question.epsilon


# Noise by the numerical accountants is calibration's own, and tested there.
@pytest.mark.parametrize(
    ("unknown", "accountant"),
    [
        *((name, "rdp") for name in SEARCHED),
        *((name, slow) for name in SEARCHED[1:] for slow in ("pld", "prv")),
    ],
)
def test_every_accountant_agrees_with_the_answer(unknown: str, accountant: str) -> None:
    question = Question(2.0, 3.0, 100, 2000, 20_000, delta=1e-4, accountant=accountant)
    asked = replace(question, **{unknown: None})
    check(asked, solve(asked))


def test_golden_values() -> None:
    for unknown, value in (("rounds", 5000), ("cohort_size", 5000), ("population_size", 41_131)):
        assert solve(replace(FLAIR, **{unknown: None})).value == pytest.approx(value, rel=1e-3)
    assert solve(replace(FLAIR, noise_multiplier=None)).value == pytest.approx(18.668, rel=1e-3)
    assert solve(replace(FLAIR, epsilon=None)).value == pytest.approx(2.0, rel=1e-3)


@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    unknown=st.sampled_from(["cohort_size", "population_size", "rounds"]),
    epsilon=st.floats(min_value=0.5, max_value=30.0),
    noise=st.floats(min_value=0.6, max_value=20.0),
    rounds=st.integers(min_value=1, max_value=20_000),
    cohort=st.integers(min_value=1, max_value=2000),
    scheme=st.sampled_from(["poisson", "cyclic_poisson"]),
    delta=st.sampled_from([None, 1e-6]),
)
def test_the_answer_fits_and_the_next_does_not(
    unknown: str,
    epsilon: float,
    noise: float,
    rounds: int,
    cohort: int,
    scheme: str,
    delta: float | None,
) -> None:
    separation = 7 if scheme == "cyclic_poisson" else 1
    question = replace(
        Question(
            epsilon, noise, rounds, cohort, 50_000, delta, scheme_named(scheme, separation), "rdp"
        ),
        **{unknown: None},
    )
    try:
        solution = solve(question)
    except PrivacyError as error:
        if "fits" not in str(error):
            raise
        return
    check(question, solution)


def test_cohorts_of_a_fixed_size() -> None:
    question = Question(2.0, 5.0, 20, None, 2000, 1e-4, FixedSize())
    check(question, solve(question))


@pytest.mark.parametrize("delta", [None, 1e-6])
def test_more_of_what_protects_still_fits(delta: float | None) -> None:
    question = replace(FLAIR, delta=delta, population_size=None)
    solution = solve(question)
    fixed = replace(question, delta=solution.delta)
    for larger in (1, 10, 1000, 100_000):
        assert epsilon_at(fixed, solution, solution.value + larger) <= 2.0


@pytest.mark.parametrize("unknown", ["cohort_size", "population_size"])
@pytest.mark.parametrize("scheme", ["poisson", "cyclic_poisson"])
def test_who_there_is_may_bound_the_answer(unknown: str, scheme: str) -> None:
    separation = 3 if scheme == "cyclic_poisson" else 1
    question = Question(50.0, 40.0, 10, 100, 301, 1e-5, scheme_named(scheme, separation))
    solution = solve(replace(question, **{unknown: None}))
    whole = {"cohort_size": 301 // separation, "population_size": 100 * separation}
    assert solution.value == whole[unknown]
    assert solution.beyond is None
    assert "every" in solution.rule


def test_one_user_has_no_default_delta() -> None:
    solution = solve(Question(50.0, 40.0, 10, 1, None))
    assert (solution.value, solution.beyond) == (2, None)


def test_a_mechanisms_own_composition_is_searched() -> None:
    def weaker(participation: Participation, noise: float, rounds: int) -> Composition:
        from dp_accounting import dp_event

        noise *= 5.0 / participation.cohort_size
        return Composition(dp_event.GaussianDpEvent(noise), rounds, "add-or-remove-one")

    question = Question(2.0, None, 16, 10, 1000, delta=1e-5)
    # 16 Gaussians of multiplier z / 2 are one of z / 8.
    one = solve(replace(question, rounds=1, scheme=Full(), cohort_size=1000)).value
    assert solve(question, weaker).value == pytest.approx(8 * one, rel=2e-4)
    for unknown, wanted in (("rounds", 16), ("cohort_size", 10)):
        asked = replace(question, noise_multiplier=8.001 * one)
        found = solve(replace(asked, **{unknown: None}), weaker)
        assert found.beyond is not None
        assert (found.value, found.beyond[0]) == (wanted, wanted + 1)
        assert found.epsilon == asked.epsilon_at(weaker) <= 2.0
        following = replace(asked, **{unknown: wanted + 1})
        assert found.beyond[1] == following.epsilon_at(weaker) > 2.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "0 of the five numbers are left out"),
        ({"rounds": None, "epsilon": None}, "2 of the five .*rounds"),
        ({"rounds": None, "noise_multiplier": 0.3}, "no number of rounds fits"),
        ({"rounds": None, "noise_multiplier": 1e5}, f"up to {LARGEST_ROUNDS} fits"),
        ({"cohort_size": None, "noise_multiplier": 0.3}, "no cohort fits"),
        ({"population_size": None, "noise_multiplier": 0.0}, "no population up to 1e\\+12 fits"),
        ({"noise_multiplier": None, "epsilon": 1e6, "rounds": 1}, "is so large"),
        ({"rounds": None, "epsilon": 0.0}, "epsilon is 0.0"),
        ({"cohort_size": None, "epsilon": math.nan}, "epsilon is nan"),
        ({"rounds": None, "noise_multiplier": -1.0}, "noise_multiplier is -1.0"),
        ({"cohort_size": None, "rounds": 0}, "rounds is 0"),
        ({"rounds": None, "cohort_size": 50_000}, "more than population_size"),
        ({"cohort_size": None, "population_size": 10**13}, "at most 1e\\+12"),
        ({"cohort_size": None, "delta": 0.0}, "delta is 0.0"),
        ({"cohort_size": None, "accountant": "gdp"}, "accountant is 'gdp'"),
        ({"cohort_size": None, "scheme": CyclicPoisson(0)}, "separation is 0"),
        (
            {"cohort_size": None, "scheme": CyclicPoisson(50_000)},
            "separation is 50000",
        ),
    ],
)
def test_what_has_no_answer_is_said(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PrivacyError, match=message):
        solve(replace(FLAIR, **changes))


@pytest.mark.parametrize("unknown", ["cohort_size", "population_size"])
def test_sizes_under_full_participation_are_refused(unknown: str) -> None:
    question = Question(2.0, 10.0, 10, 100, 100, scheme=Full())
    with pytest.raises(PlanError, match="under full participation"):
        solve(replace(question, **{unknown: None}))


def test_an_accountant_that_does_not_know_the_scheme_is_refused() -> None:
    question = replace(FLAIR, scheme=FixedSize(), accountant="prv", cohort_size=None)
    with pytest.raises(PlanError, match="use the accountant rdp"):
        solve(question)
