"""Bounds of canaries and attacks on file, held against the scores and guesses that they rest on."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from pfl_bench.runs.audit import RunAudit, audit_run
from pfl_bench.runs.runner import run
from privacy.audit.check import Check
from privacy.audit.checks_release import attack_bounds, check_canaries, differing
from privacy.audit.evidence import gather
from privacy.empirical.one_run import Guesses, epsilon_lower_bound, guess_grid
from privacy.ledger import iterate_ledger
from tests.helpers import make_config

KINDS: dict[str, dict[str, Any]] = {
    "one_run": {"kind": "one_run", "count": 80},
    "one_run by given guesses": {"kind": "one_run", "count": 60, "guesses": [20, 20]},
    "one_run by sums": {"kind": "one_run", "count": 60, "bound": "gaussian"},
    "one_shot": {"kind": "one_shot", "count": 20},
    "one_shot of every round": {"kind": "one_shot", "count": 20, "access": "every_round"},
    "worst_case": {"kind": "worst_case", "count": 20},
    "worst_case of any noise": {
        "kind": "worst_case",
        "count": 20,
        "step_bound": "clopper_pearson",
    },
}


@cache
def audited(what: str) -> tuple[Path, RunAudit]:
    """A finished run with canaries and little noise, and its audit; it must not be changed."""
    folder = Path(mkdtemp()) / "run"
    config = make_config(
        "private_federated",
        federated__num_rounds=4,
        privacy__mechanism={"name": "gaussian", "clip_norm": 0.5},
        privacy__noise_cohort_size=None,
        privacy__noise_multiplier=0.3,
        privacy__epsilon=None,
        privacy__audit=KINDS[what],
    )
    run(config, folder)
    return folder, audit_run(folder)


def check(what: str, **changes: Any) -> Check:
    """The check of canaries, of a run whose ``canaries.json`` was changed."""
    folder, done = audited(what)
    assert done.inputs.canaries is not None
    evidence = gather(iterate_ledger(folder / "ledger.jsonl"))
    canaries = {**done.inputs.canaries, **changes}
    return check_canaries(evidence, replace(done.inputs, canaries=canaries))


@pytest.mark.parametrize("what", KINDS)
def test_a_sound_run_s_canaries_come_to_what_is_on_file(what: str) -> None:
    made = {check.name: check for check in audited(what)[1].checks}
    for name in ("canaries", "outcome"):
        assert made[name].outcome == "passed", made[name].evidence
    assert "anew" in made["canaries"].evidence


@pytest.mark.parametrize("what", [what for what in KINDS if "given" not in what])
def test_a_number_that_the_scores_do_not_come_to_fails(what: str) -> None:
    canaries = audited(what)[1].inputs.canaries or {}
    for key, value in canaries.items():
        if key in ("scores", "included"):
            continue
        if key == "noise_multiplier_upper_bound" or (key == "lower_bound" and "sums" in what):
            continue  # of sums that are in no file
        changed: Any = 0.37 * value + 0.01 if isinstance(value, float) else value
        if isinstance(value, int):
            changed = not value if key == "knows_others" else value // 2
        if isinstance(value, list):
            changed = value[1:]
        if isinstance(value, Mapping):
            changed = {name: number / 2 for name, number in value.items()}
        if isinstance(value, str):
            changed = "other"
        if key == "trials":
            changed = {**value, "misses": value["misses"] + 5, "sum_in": value["sum_in"] / 2}
        found = check(what, **{key: changed})
        assert found.outcome == "failed", key
        assert "canaries.json" in found.evidence, key


def test_a_bound_that_canaries_did_not_show_is_named_with_the_one_that_they_did() -> None:
    canaries = audited("one_run")[1].inputs.canaries
    assert canaries is not None
    right, lower = canaries["num_correct"], canaries["lower_bound"]
    assert lower > 0.0
    found = check("one_run", lower_bound=0.0, num_correct=right // 2)
    assert found.outcome == "failed"
    assert f"canaries.json: num_correct is {right // 2}, but comes to {right}" in found.evidence
    assert f"lower_bound is 0.0, but comes to {lower!r:.6}" in found.evidence


@pytest.mark.parametrize(
    "changes",
    [{"scores": None}, {"scores": [0.5]}, {"included": ["x"]}, {"method": None}, {"rounds": "x"}],
    ids=str,
)
def test_a_damaged_file_fails_and_ends_in_no_traceback(changes: dict[str, Any]) -> None:
    assert check("one_run", **changes).outcome == "failed"


def test_a_file_without_scores_is_no_pass() -> None:
    found = check("one_run", method="none", scores=None, lower_bound=0.0, estimate=None)
    assert found.outcome == "incomplete"


def test_canaries_that_are_not_on_file_are_missed() -> None:
    folder, done = audited("one_run")
    evidence = gather(iterate_ledger(folder / "ledger.jsonl"))
    assert check_canaries(evidence, replace(done.inputs, canaries=None)).outcome == "incomplete"


def test_trials_are_those_of_the_metrics(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(audited("worst_case")[0], tmp_path / "run"))
    path = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[0]["canaries/right"] -= 3
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = {check.name: check for check in audit_run(folder).checks}
    assert made["outcome"].outcome == "failed"
    assert "guesses (right) follow from trials, but metrics.jsonl has" in made["outcome"].evidence


def test_a_verdict_on_users_comes_to_its_guesses() -> None:
    guesses, users, level = Guesses(50, 50), 100, 0.01 / 6.0 / 4.0 / len(guess_grid(100))
    verdict = {
        "refuted": False,
        "wealth": 1.5,
        "wealth_limit": 600.0,
        "epsilon": epsilon_lower_bound(users, 100, 90, 1e-6, 1.0 - level),
        "guesses": guesses._asdict(),
        "num_correct": 90,
        "num_users": users,
        "confidence": 0.99,
    }
    attack: dict[str, Any] = {"shadows": 8, "claim": {"delta": 1e-6}, "verdict": verdict}
    assert verdict["epsilon"] > 0.5

    def problems(**changes: Any) -> str:
        one = copy.deepcopy(attack)
        one["verdict"] |= changes
        return "; ".join(differing(one["verdict"], attack_bounds("lira", one), "attack.json"))

    assert problems() == ""
    assert "epsilon is 0.0, but comes to" in problems(epsilon=0.0)
    assert "epsilon is" in problems(num_correct=95)
    assert "refuted is False, but comes to True" in problems(wealth=700.0)
    assert problems(wealth=700.0, refuted=True) == ""
    assert "wealth_limit is 700.0, but comes to 599.9" in problems(wealth_limit=700.0)
