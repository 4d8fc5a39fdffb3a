"""The privacy statement: two labelled epsilons, and JSON that is JSON."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privacy.errors import PrivacyError
from privacy.statement.statement import (
    NOT_COVERED,
    Accounted,
    PrivacyStatement,
    round_down,
    round_up,
)

SIMULATED = Accounted(41_131, 5000, "poisson", 5000 / 41_131, 18.668, 8.4026e-6, 2.0)
ACTUAL = Accounted(41_131, 200, "poisson", 200 / 41_131, 0.74672, 8.4026e-6, 4.324)
STATEMENT = PrivacyStatement(
    unit="user",
    adjacency="add-or-remove-one",
    mechanism="adaptive_gaussian",
    accountant="rdp",
    rounds=5000,
    num_parameters=11_182_161,
    clip={"kind": "adaptive", "initial_clip_norm": 0.1, "quantile": 0.1},
    noise_multiplier=18.668,
    update_noise_multiplier=18.681,
    count_noise_stddev=250.0,
    simulated=SIMULATED,
    actual=ACTUAL,
    budget_epsilon=2.0,
    notes=("A note.",),
)


def test_both_epsilons_are_labelled_in_the_text_and_none_is_bare() -> None:
    lines = STATEMENT.to_text().splitlines()
    assert sum("epsilon (simulated)  2 " in line for line in lines) == 1
    assert sum("epsilon (actual)     4.324 " in line for line in lines) == 1
    for line in lines:
        bare = line.replace("epsilon (simulated)", "").replace("epsilon (actual)", "")
        assert "epsilon" not in bare or "not covered" in line
    assert 12 <= len(lines) <= 20
    assert "11182161 parameters" in STATEMENT.to_text()
    assert "18.668 in effect, 18.681 on the updates" in STATEMENT.to_text()
    apart = dataclasses.replace(SIMULATED, separation=2, delta=8.4021e-6)
    text = dataclasses.replace(STATEMENT, simulated=apart).to_text()
    assert "2 at delta 8.403e-06: 5000 of 41131 per round (poisson, 2 rounds apart, q = " in text
    assert "\n  rounds               5000, " in text
    text = dataclasses.replace(STATEMENT, unit="example").to_text()
    assert "5000 of 41131 per step (poisson, q = " in text
    assert "\n  steps                5000, " in text
    assert str(STATEMENT) == STATEMENT.to_text(), "print(statement) is for a person too"
    assert all(sentence in STATEMENT.to_text() for sentence in NOT_COVERED)


def test_json_has_the_agreed_keys() -> None:
    document = json.loads(json.dumps(STATEMENT.to_json_dict(), allow_nan=False))
    assert set(document) == {
        "unit",
        "adjacency",
        "mechanism",
        "mechanism_description",
        "accountant",
        "rounds",
        "num_parameters",
        "clip",
        "noise_multiplier",
        "update_noise_multiplier",
        "count_noise_stddev",
        "simulated",
        "actual",
        "budget_epsilon",
        "not_covered",
        "notes",
        "status",
    }
    keys = {
        "population_size",
        "cohort_size",
        "sampling",
        "sampling_probability",
        "separation",
        "max_participations",
        "noise_multiplier",
        "delta",
        "epsilon",
    }
    assert set(document["simulated"]) == set(document["actual"]) == keys
    assert document["actual"]["epsilon"] == 4.324


def test_what_is_not_covered_is_named() -> None:
    text = " ".join(NOT_COVERED)
    topics = ("Validation", "selection", "tuning", "preparation", "settings taken", "seeded")
    others = ("the training split where it is evaluated", "How many users", "one more or less")
    for topic in (*topics, *others, "Weights that the training began with"):
        assert topic in text


@pytest.mark.parametrize("epsilon", [2.0, math.inf])
def test_json_round_trips(epsilon: float) -> None:
    statement = dataclasses.replace(
        STATEMENT, actual=dataclasses.replace(ACTUAL, epsilon=epsilon), budget_epsilon=None
    )
    text = json.dumps(statement.to_json_dict(), allow_nan=False)
    assert ('"inf"' in text) == math.isinf(epsilon)
    assert PrivacyStatement.from_json_dict(json.loads(text)) == statement


def test_damaged_json_is_refused() -> None:
    document = STATEMENT.to_json_dict()
    with pytest.raises(PrivacyError, match="lacks \\['rounds'\\]"):
        PrivacyStatement.from_json_dict({k: v for k, v in document.items() if k != "rounds"})
    with pytest.raises(PrivacyError, match="foreign keys \\['sigma'\\]"):
        PrivacyStatement.from_json_dict({**document, "sigma": 1.0})
    for epsilon in ("small", True):
        actual = {**document["actual"], "epsilon": epsilon}
        with pytest.raises(PrivacyError, match="actual epsilon"):
            PrivacyStatement.from_json_dict({**document, "actual": actual})


def test_no_privacy_is_said_in_as_many_words() -> None:
    nothing = dataclasses.replace(ACTUAL, epsilon=math.inf, delta=None, noise_multiplier=0.0)
    statement = dataclasses.replace(
        STATEMENT, unit="none", adjacency="none", simulated=nothing, actual=nothing
    )
    assert "no privacy" in statement.to_text()
    assert "A note." in statement.to_text()
    assert statement.to_json_dict()["actual"]["epsilon"] == "inf"


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (2.0049, 3, "2.01"),
        (2.0, 3, "2"),
        (3.99990, 3, "4"),
        (4.3238, 4, "4.324"),
        (12.4501, 3, "12.5"),
        (165432.1, 3, "166000"),
        (0.00012341, 3, "0.000124"),
        (0.0, 3, "0"),
        (math.inf, 3, "inf"),
    ],
)
def test_an_epsilon_is_never_written_below_its_value(value: float, digits: int, text: str) -> None:
    assert round_up(value, digits) == text


@given(st.floats(1e-9, 1e9), st.integers(2, 6))
def test_rounding_up_is_above_and_near(value: float, digits: int) -> None:
    written = float(round_up(value, digits))
    assert value <= written <= value * (1 + 10.0 ** (1 - digits)) * (1 + 1e-12)
    below = float(round_down(value, digits))
    assert value >= below >= value * (1 - 10.0 ** (1 - digits)) * (1 - 1e-12)


def test_a_planned_statement_says_so() -> None:
    planned = dataclasses.replace(STATEMENT, status="planned")
    assert "at most" in planned.to_text()
    assert "at most" not in STATEMENT.to_text().replace("(simulated) at most", "")
    assert PrivacyStatement.from_json_dict(planned.to_json_dict()) == planned
