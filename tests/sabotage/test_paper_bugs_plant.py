"""Each bug of ``paper_bugs``, planted, runs to the end and changes what it says, and no more."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pfl_bench.runs.checkpoint import load_latest
from tasks.digits import task
from tests.helpers import central_of
from tests.sabotage.paper_bugs import BUGS
from tests.sabotage.paper_planting import PaperBug, drive

# As many take part as most bugs need to show themselves.
SMALL_COHORT = 15
# These are of a few users, or of few reports.
WHOLE = {"clip_spares_testers", "privunit_short_update_sends_nothing"}
# Rounds that most bugs need to show themselves.
FEW = 4
# These take twice as many.
MORE = {
    "accounts_one_participation_in_tree",
    "model_selected_by_another_metric",
    "noise_missing_every_seventh_round",
    "step_taken_twice",
    "tree_never_restarts",
    "tree_nodes_share_draw",
    "tree_restarts_its_noise",
}
# These change nothing before the end; nor do bugs of a resumption.
LATE = {
    "adaptive_rate_doubles",
    "clip_doubled_in_last_round",
    "noise_missing_once_in_one_parameter",
    "noise_of_first_round_in_last",
    "privunit_short_update_sends_nothing",
    "released_model_chosen_by_training_loss",
    "step_bare_in_last_round",
    "sum_of_worker_taken_twice",
}


def smaller(bug: PaperBug) -> PaperBug:
    """The bug in a run of a smaller cohort, and in a shorter one where it shows itself there."""
    rounds = "federated__num_rounds"
    if bug.config.config.federated is None:
        return bug
    changes = dict(bug.changes)
    if bug.name not in WHOLE:
        changes.setdefault("federated__cohort_size", SMALL_COHORT)
    if bug.name not in LATE and not bug.interrupt_after:
        few = 2 * FEW if bug.name in MORE else FEW
        changes[rounds] = min(few, bug.changes.get(rounds, few))
    return replace(bug, changes=changes)


@dataclass(frozen=True)
class Outcome:
    """What a run has left: central parameters, statement, and the ledger's lines."""

    summary: dict[str, Any]
    model: Tensor
    statement: Any
    ledger: list[str]
    kept: list[Tensor]

    @classmethod
    def of(cls, bug: PaperBug, folder: Path, planted: bool) -> Outcome:
        summary = drive(bug, folder, planted)
        statement = json.loads((folder / "privacy.json").read_text())
        lines = (folder / "ledger.jsonl").read_text().splitlines()
        state = load_latest(folder / "checkpoints")
        assert state is not None
        kept = [*state["trainer"].get("buffers", {}).values(), (state["best"] or {}).get("vector")]
        kept = [tensor for tensor in kept if tensor is not None]
        return cls(summary, central_of(folder), statement, lines, kept)

    def differences(self, other: Outcome) -> set[str]:
        found = {
            "model": not self.model.equal(other.model),
            "statement": self.statement != other.statement,
            "ledger": self.ledger != other.ledger,
            "selection": self.summary["selected"] != other.summary["selected"],
            "checkpoint": not all(map(torch.equal, self.kept, other.kept)),
        }
        return {name for name, differs in found.items() if differs}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[PaperBug], Outcome]]:
    """The run without the bug; those of the same row are made once."""
    known: dict[str, Outcome] = {}
    build: Callable[..., Any] = functools.cache(task.build)

    def run_sound(bug: PaperBug) -> Outcome:
        key = f"{bug.config.to_yaml()} {bug.interrupt_after}"
        if key not in known:
            known[key] = Outcome.of(bug, tmp_path_factory.mktemp("sound") / "run", planted=False)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task, "build", build)
        yield run_sound


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_changes_what_it_says(
    bug: PaperBug, sound: Callable[[PaperBug], Outcome], tmp_path: Path
) -> None:
    bug = smaller(bug)
    expected = sound(bug)
    outcome = Outcome.of(bug, tmp_path / "run", planted=True)
    assert outcome.summary["status"] == "finished"
    assert not outcome.summary["diverged"]
    differences = outcome.differences(expected)
    either = {"ledger", "checkpoint"}
    assert differences - either == set(bug.effects) - either
    assert differences >= set(bug.effects)


def test_names_and_descriptions_are_whole() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 90
    assert {bug.name for bug in BUGS} >= LATE | MORE | WHOLE
    for bug in BUGS:
        assert bug.description.endswith(".")
