"""Privacy bugs, planted one at a time into a real run: each is refused, or fails the audit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pfl_bench.runs.runner import run
from privacy.ledger import read_ledger
from tests.sabotage.bugs import BUGS, UNSEEN
from tests.sabotage.folder_bugs import noise_named_by_seed
from tests.sabotage.planting import (
    ADAPTIVE,
    BANDED,
    CYCLIC,
    FIXED_SIZE,
    LAPLACE,
    LOCAL,
    PRIVUNIT,
    ROUNDS,
    SELECTED,
    SELECTED_BANDED,
    SEQUENTIAL,
    TREE,
    Bug,
    Patch,
)
from tests.sabotage.running import (
    audited,
    configured,
    copy_finished,
    drive,
    remembering,
    run_planted,
)
from tests.sabotage.table import DOCUMENT, listed

# What no run here has: canaries; and a budget, in most of them.
ALWAYS_SKIPPED = {"canaries", "budget"}
NO_REPORTS = {"report_noise"}
CORRELATED = {"noise_multiplier"}
NO_ELEMENTWISE_LAW = {"noise_replay"} | CORRELATED
# Of users who are selected the devices' clock is not replayed.
NO_LAW = {"cohort_replay"}
HONEST: dict[str, tuple[dict[str, Any], set[str]]] = {
    "gaussian": ({}, set()),
    "gaussian, seed 4": ({"seed": 4}, set()),
    "gaussian, seed 5": ({"seed": 5}, set()),
    "gaussian, sequential engine": (SEQUENTIAL, set()),
    "adaptive_gaussian": (ADAPTIVE, set()),
    "adaptive_gaussian, sequential engine": ({**ADAPTIVE, **SEQUENTIAL}, set()),
    "adaptive_gaussian, seed 4": ({**ADAPTIVE, "seed": 4}, set()),
    "fixed_size": (FIXED_SIZE, set()),
    "cyclic_poisson": (CYCLIC, set()),
    "cyclic_poisson, seed 4": ({**CYCLIC, "seed": 4}, set()),
    "banded_matrix_factorization": (BANDED, CORRELATED),
    "tree_aggregation": (TREE, CORRELATED),
    "laplace": (LAPLACE, set()),
    "local_gaussian": (LOCAL, {"noise_multiplier"}),
    "privunit": (PRIVUNIT, NO_ELEMENTWISE_LAW),
    "selected": (SELECTED, NO_LAW),
    "selected, adaptive_gaussian": ({**SELECTED, **ADAPTIVE}, NO_LAW),
    "selected, banded": (SELECTED_BANDED, NO_LAW | CORRELATED),
}


@pytest.fixture(autouse=True, scope="module")
def _remembering() -> Iterator[None]:
    with remembering():
        yield


def is_local(changes: dict[str, Any]) -> bool:
    """Whether clients add the noise."""
    return changes in (LOCAL, PRIVUNIT)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_refused_or_fails_the_audit(bug: Bug, tmp_path: Path) -> None:
    caught = run_planted(bug, tmp_path / "run")
    if bug.words:
        assert caught.refused is not None, sorted(caught.failed)
        assert bug.words in caught.refused
        return
    assert caught.refused is None
    if bug.lacks:
        assert not caught.failed
        assert caught.incomplete == set(bug.lacks)
        return
    assert set(bug.expects) <= caught.failed


@pytest.mark.parametrize(("changes", "may_skip"), HONEST.values(), ids=HONEST.keys())
def test_a_run_without_a_bug_passes_every_check(
    changes: dict[str, Any], may_skip: set[str], tmp_path: Path
) -> None:
    copy_finished(configured(changes), tmp_path / "run")
    checks = audited(tmp_path / "run")
    assert not [c for c in checks.values() if c.outcome in ("failed", "incomplete")]
    skipped = {name for name, check in checks.items() if check.outcome == "skipped"}
    assert skipped <= ALWAYS_SKIPPED | may_skip | (set() if is_local(changes) else NO_REPORTS)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Outcomes of a run that has all that there is to check, and that was interrupted."""
    folder = tmp_path_factory.mktemp("sound") / "run"
    changes = {**ADAPTIVE, **CYCLIC, "privacy__epsilon": 100.0}
    resumed = Bug("none", "", "", unseen="no bug", changes=changes, interrupt_after=ROUNDS // 2 + 3)
    drive(resumed, folder)
    return {name: check.outcome for name, check in audited(folder).items()}


def test_an_interrupted_run_within_its_budget_passes_every_check(sound: dict[str, str]) -> None:
    assert {name for name, outcome in sound.items() if outcome != "passed"} == {
        "canaries",
        "report_noise",
    }


def test_every_check_that_a_bug_must_fail_passes_without_one(sound: dict[str, str]) -> None:
    assert {name for bug in BUGS for name in bug.expects} <= set(sound) - {"canaries"}


def test_names_are_unique_and_there_are_enough_bugs() -> None:
    names = [bug.name for bug in (*BUGS, *UNSEEN)]
    assert len(set(names)) == len(names)
    assert len(BUGS) >= 20


@pytest.mark.parametrize("bug", UNSEEN, ids=lambda bug: bug.name)
def test_what_the_record_cannot_show_passes(bug: Bug, tmp_path: Path) -> None:
    """The limits that the documentation owns to: a check that came to see one would end here."""
    caught = run_planted(bug, tmp_path / "run")
    assert caught.refused is None
    assert not caught.failed


def first_noise(folder: Path) -> list[list[float]]:
    return [entry["noise"]["head"] for entry in read_ledger(folder / "ledger.jsonl")]


@pytest.mark.parametrize("shared", [True, False])
def test_two_ledgers_show_noise_that_two_runs_share(
    shared: bool, tmp_path: Path, monkeypatch: Patch
) -> None:
    if shared:
        noise_named_by_seed(monkeypatch)
    own = {"privacy__nonce": None}
    run(configured({**own, "federated__local_learning_rate": 0.1}), tmp_path / "slower")
    run(configured(own), tmp_path / "run")
    one, other = (first_noise(tmp_path / name) for name in ("run", "slower"))
    alike = [
        first == pytest.approx(second, abs=1e-4) for first, second in zip(one, other, strict=True)
    ]
    assert alike == [shared] * ROUNDS


def _outcome(bug: Bug) -> tuple[str, ...]:
    if bug.lacks:
        return (f"incomplete: {bug.lacks[0]}", *bug.lacks[1:])
    return ("refused",) if bug.words else bug.expects


def test_the_documentation_lists_these_bugs_and_the_checks_that_catch_them() -> None:
    found = listed(DOCUMENT.read_text(encoding="utf-8"))
    wanted = {bug.name: _outcome(bug) for bug in BUGS}
    assert found == wanted | {bug.name: ("unseen",) for bug in UNSEEN}
    assert list(found) == [bug.name for bug in (*BUGS, *UNSEEN)]
