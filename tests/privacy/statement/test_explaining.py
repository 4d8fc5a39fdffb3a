"""The words say every assumption, and never promise more than the numbers."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from scipy.stats import norm

from privacy.accountant import compute_epsilon
from privacy.amplification import Participation, sampled_gaussian
from privacy.description import GAUSSIAN
from privacy.mechanisms import local_gaussian, privunit
from privacy.plan.budget import Budget
from privacy.plan.example_level import ExampleLevelRequest, make_example_level_plan
from privacy.statement.assumptions import count, small
from privacy.statement.explaining import NOTHING, detection_bound, explain, sections
from privacy.statement.statement import NOT_COVERED, Accounted, Guarantee, PrivacyStatement

SIMULATED = Accounted(41_131, 5000, "poisson", 5000 / 41_131, 18.668, 8.4026e-6, 1.99999)
ACTUAL = Accounted(41_131, 200, "poisson", 200 / 41_131, 0.74672, 8.4026e-6, 4.32411)
BOTH = Guarantee(
    unit="user",
    adjacency="add-or-remove-one",
    mechanism="gaussian",
    accountant="rdp",
    rounds=5000,
    simulated=SIMULATED,
    actual=ACTUAL,
    mechanism_description=GAUSSIAN,
)
ONE = replace(BOTH, actual=SIMULATED)


def words(guarantee: Guarantee) -> str:
    return " ".join(explain(guarantee).split())


def test_every_assumption_is_said() -> None:
    told = sections(BOTH)
    assert list(told) == ["What is promised", "What it rests on", "What is not covered"]
    subjects = [sentence.partition(":")[0] for sentence in told["What it rests on"]]
    assert subjects == [
        *("Unit", "Adjacency", "Sampling", "Clipping", "Noise", "Trust"),
        *("Delta", "Accountant", "Public", "Composition"),
    ]
    text = words(BOTH)
    for phrase in (
        "one user, with all the data",
        "server is trusted",
        "must stay secret",
        "seeded",
        "5,000 rounds, all of them together",
        "in the run itself 0.74672",
        "in the run itself 0.004863",
        "Public: the probability with which a user takes part",
        "divided by the expected cohort",
        "In the run itself: take any one user.",
        "at most e^4.325 =",
    ):
        assert phrase in text
    assert all(" ".join(sentence.split()) in text for sentence in NOT_COVERED)


def test_both_epsilons_are_labelled_and_rounded_up() -> None:
    text = words(BOTH)
    assert "Epsilon (simulated) is 2 at delta 8.41e-06, for 41,131 users, 5,000 of them" in text
    assert "Epsilon (actual) is 4.325 at delta 8.41e-06, for 41,131 users, 200 of them" in text
    assert "Epsilon is" not in text
    assert "Epsilon is 2 at delta" in words(ONE)
    assert "simulated" not in words(ONE).partition("What is not covered")[0].replace(
        "No other cohort is simulated", ""
    )


@settings(max_examples=100, derandomize=True)
@given(epsilon=st.floats(min_value=0.0, max_value=20.0), delta=st.floats(1e-12, 0.1))
def test_no_number_is_below_its_value(epsilon: float, delta: float) -> None:
    accounted = replace(SIMULATED, epsilon=epsilon, delta=delta)
    text = words(replace(ONE, simulated=accounted, actual=accounted))
    promised = re.search(r"Epsilon is (\S+) at delta (\S+),", text)
    assert promised is not None
    assert float(promised[1]) >= epsilon
    assert float(promised[2]) >= delta
    factor = re.search(r"e\^\S+ = (\S+) times", text)
    assert factor is not None
    assert float(factor[1]) >= math.exp(epsilon)
    found = re.search(r"finds at most (\S+) of 100 present", text)
    assert found is not None
    assert float(found[1]) >= 100 * detection_bound(epsilon, delta, 0.01)


@pytest.mark.parametrize("noise", [0.5, 1.0, 4.0])
def test_no_test_of_a_gaussian_mechanism_beats_the_bound(noise: float) -> None:
    # The best test of one Gaussian against another has this power (Neyman and Pearson).
    composed = sampled_gaussian(Participation.named("full", 100, 100), noise, 1)
    event, adjacency = composed.event, composed.adjacency
    for delta in (1e-3, 1e-6):
        epsilon = compute_epsilon(event, 1, delta, "pld", adjacency)
        for alarms in (1e-4, 0.01, 0.3, 0.9):
            best = norm.cdf(norm.ppf(alarms) + 1.0 / noise)
            assert best <= detection_bound(epsilon, delta, alarms) <= 1.0
    # It is no empty bound: it touches the best test somewhere.
    gaps = [
        detection_bound(epsilon, delta, alarms) - norm.cdf(norm.ppf(alarms) + 1.0 / noise)
        for epsilon, delta in ((compute_epsilon(event, 1, 1e-3, "pld", adjacency), 1e-3),)
        for alarms in [0.5 ** (step / 4) for step in range(1, 60)]
    ]
    assert min(gaps) < 2e-3


def test_detection_at_the_ends() -> None:
    assert detection_bound(0.0, 0.0, 0.01) == pytest.approx(0.01)
    assert detection_bound(math.inf, 0.0, 0.01) == 1.0
    assert detection_bound(1e4, 1e-5, 0.01) == 1.0
    assert detection_bound(0.0, 1.0, 0.01) == 1.0


def test_no_guarantee_is_said() -> None:
    text = words(replace(BOTH, actual=replace(ACTUAL, epsilon=math.inf)))
    assert "In the run itself: nothing is promised, since epsilon is infinite." in text
    assert explain(replace(BOTH, unit="none")).endswith(NOTHING)


@pytest.mark.parametrize(
    ("sampling", "separation", "adjacency", "phrases"),
    [
        ("poisson", 1, "add-or-remove-one", ["Poisson.", "without that user", "stay secret"]),
        ("cyclic_poisson", 8, "add-or-remove-one", ["one of 8 groups", "more than 626 rounds"]),
        ("full", 1, "add-or-remove-one", ["Sampling: none.", "without that user"]),
        (
            "fixed_size",
            1,
            "replace-one",
            ["exactly 5,000 of 41,131", "any other data", "is not protected", "twice"],
        ),
    ],
)
def test_sampling_and_adjacency(
    sampling: str, separation: int, adjacency: str, phrases: list[str]
) -> None:
    accounted = replace(SIMULATED, sampling=sampling, separation=separation)
    cost: dict[str, Any] = {"simulated": accounted, "actual": accounted, "rounds": 5001}
    text = words(replace(ONE, adjacency=adjacency, **cost))
    assert all(phrase in text for phrase in phrases)


@pytest.mark.parametrize("module", [local_gaussian, privunit])
def test_local_mechanisms_trust_no_server(module: Any) -> None:
    described = module.DESCRIPTION
    text = words(replace(ONE, mechanism_description=described, adjacency="replace-one"))
    assert "none in the server" in text
    assert "is trusted" not in text
    assert "may be known to all" in text


def test_an_unknown_mechanism_promises_the_least() -> None:
    text = words(replace(ONE, mechanism="of_tomorrow", mechanism_description=None))
    assert "the mechanism of_tomorrow noises" in text
    assert "Against the server itself nothing is promised" in text


def test_a_useless_delta_is_said() -> None:
    accounted = replace(SIMULATED, delta=1e-3)
    assert "NOT below" in words(replace(ONE, simulated=accounted, actual=accounted))
    small_run = replace(ACTUAL, population_size=300, delta=0.1)
    text = words(replace(BOTH, actual=small_run))
    assert "Delta of the run itself: 0.1, for its 300 users; one over their number is " in text
    assert text.count("this one is NOT below") == 1
    just = replace(SIMULATED, population_size=1000, delta=1e-3)
    assert "NOT below" in words(replace(ONE, simulated=just, actual=just))


def test_a_statement_is_explained_as_it_is_written() -> None:
    statement = make_example_level_plan(
        ExampleLevelRequest(1797, 64, 100, 1.0, Budget(None, 1.5, 1e-5, "rdp"), 650)
    ).statement(100, "planned")
    again = PrivacyStatement.from_json_dict(statement.to_json_dict())
    assert again == statement
    text = words(again)
    assert "Epsilon is at most" in text
    assert "one example." in text
    assert "without that example" in text
    assert "divided by the expected batch" in text
    assert "100 steps" in text
    assert "round" not in text.partition("What is not covered")[0].replace("way round", "")
    assert all(" ".join(note.split()) in text for note in again.notes)
    assert max(map(len, explain(again).splitlines())) <= 96


def test_numbers() -> None:
    assert [small(value) for value in (1e-5, 8.4026e-6, 0.001893, 0.5)] == [
        *("1e-05", "8.41e-06", "0.0019", "0.5")
    ]
    assert small(18.66820, 4) == "18.67"
    assert (count(41_131), count(12.5)) == ("41,131", "12.5")


def test_a_statement_that_describes_no_mechanism_is_explained_by_its_module() -> None:
    request = ExampleLevelRequest(1797, 64, 100, 1.0, Budget(None, 1.5, 1e-5, "rdp"), 650)
    statement = make_example_level_plan(request).statement(100, "planned")
    document = statement.to_json_dict()
    del document["mechanism_description"]
    old = PrivacyStatement.from_json_dict(document)
    assert "each step's sum of clipped gradients" in words(old)
    local = replace(old, unit="user", mechanism="local_gaussian")
    told = words(replace(local, mechanism_description=local_gaussian.DESCRIPTION))
    assert "each client adds Gaussian noise" in told
    assert "the mechanism local_gaussian noises" in words(local)
