"""Central DP-SGD: the unit is an example, nothing is simulated."""

from __future__ import annotations

import math
from typing import Any

import pytest

from privacy.amplification import Participation
from privacy.calibration import epsilon_of_rounds
from privacy.errors import PlanError, PrivacyError
from privacy.plan.budget import Budget
from privacy.plan.example_level import (
    ExampleLevelPlan,
    ExampleLevelRequest,
    make_example_level_plan,
)


def plan(**changes: Any) -> ExampleLevelPlan:
    settings: dict[str, Any] = {
        "num_examples": 60_000,
        "batch_size": 256,
        "steps": 3000,
        "clip_norm": 1.0,
        "epsilon": None,
        "noise_multiplier": 1.1,
        "delta": 1e-5,
        "accountant": "rdp",
        "num_parameters": 26_010,
    }
    settings |= changes
    budget = Budget(
        *(settings.pop(name) for name in ("epsilon", "noise_multiplier", "delta", "accountant"))
    )
    return make_example_level_plan(ExampleLevelRequest(budget=budget, **settings))


@pytest.mark.parametrize("accountant", ["rdp", "pld", "prv"])
def test_both_epsilons_are_that_of_poisson_sampled_steps(accountant: str) -> None:
    statement = plan(accountant=accountant).statement(3000)
    examples = Participation.named("poisson", 60_000, 256)
    wanted = epsilon_of_rounds(examples, 1.1, 3000, 1e-5, accountant)
    assert statement.simulated == statement.actual
    assert statement.actual.epsilon == wanted
    assert (statement.unit, statement.rounds, statement.num_parameters) == ("example", 3000, 26_010)
    assert "epsilon (actual)" in statement.to_text()
    assert any("several" in note for note in statement.notes)


def test_opacus_counts_the_same() -> None:
    """Referee: Opacus' own RDP accountant, fed step by step."""
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    for _ in range(200):
        accountant.step(noise_multiplier=1.1, sample_rate=256 / 60_000)
    statement = plan().statement(200)
    assert statement.actual.epsilon == pytest.approx(accountant.get_epsilon(1e-5), rel=0.01)


def test_epsilon_alone_calibrates() -> None:
    calibrated = plan(epsilon=2.0, noise_multiplier=None, delta=None)
    assert calibrated.setting.delta == pytest.approx(60_000**-1.1)
    assert calibrated.max_steps == 3000
    statement = calibrated.statement(3000)
    assert 1.99 < statement.actual.epsilon <= 2.0
    assert statement.budget_epsilon == 2.0


def test_noise_alone_has_no_budget_and_both_stop_in_time() -> None:
    assert plan().max_steps is None
    both = plan(epsilon=1.0, noise_multiplier=1.0)
    assert both.max_steps is not None
    assert 0 < both.max_steps < 3000
    assert both.statement(both.max_steps).actual.epsilon <= 1.0
    assert both.statement(both.max_steps + 1).actual.epsilon > 1.0


def test_every_line_of_the_ledger_has_both_settings() -> None:
    constants = plan(plugins={"mine": "sha256:1"}).ledger_constants("sha256:0")
    assert constants["plugins"] == {"mine": "sha256:1"}
    assert constants["simulated"] == {
        "population_size": 60_000,
        "cohort_size": 256,
        "noise_multiplier": 1.1,
        "delta": 1e-5,
    }
    assert constants["actual"] == constants["simulated"]


def test_a_statement_says_what_is_planned_and_by_which_plug_ins() -> None:
    statement = plan(plugins={"mine": "sha256:1"}).statement(5, "planned")
    assert statement.status == "planned"
    assert "at hand: mine (sha256:1)" in " ".join(statement.notes)


def test_no_noise_is_noted() -> None:
    statement = plan(noise_multiplier=0.0).statement(1)
    assert statement.actual.epsilon == math.inf
    assert any("no guarantee" in note for note in statement.notes)


def test_refusals() -> None:
    with pytest.raises(PlanError, match="neither epsilon nor"):
        plan(noise_multiplier=None)
    with pytest.raises(PlanError, match="publishing one example at random would satisfy it"):
        plan(delta=1e-3)
    with pytest.raises(PlanError, match="not even one step"):
        plan(epsilon=0.01, noise_multiplier=0.3)
    sizes = {"num_examples": 1000, "batch_size": 20, "steps": 1000}
    with pytest.raises(PlanError, match="prv"):
        plan(accountant="prv", noise_multiplier=0.06, **sizes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clip_norm": math.inf}, "clip_norm"),
        ({"clip_norm": 0.0}, "clip_norm"),
        ({"batch_size": 60_001}, "more than population_size"),
        ({"delta": 2.0}, "delta"),
        ({"accountant": "gdp"}, "accountant"),
        ({"steps": -1}, "rounds"),
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
    ],
)
def test_numbers_out_of_range(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PrivacyError, match=message):
        plan(**changes)
