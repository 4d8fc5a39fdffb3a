"""Planted bugs of the record: ledger, statement, checkpoint, and what a resume makes of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from privacy.ledger import Ledger
from privacy.mechanisms.adaptive_gaussian import AdaptiveGaussian
from privacy.plan import plan
from tests.sabotage.planting import ADAPTIVE, ROUNDS, Bug, Edit, Patch
from tests.sabotage.running import configured, finished

HALF = ROUNDS // 2


def ledger_lines(change: Callable[[list[str]], None]) -> Edit:
    """Edit the lines of the ledger, the first at index 0."""

    def edit(folder: Path) -> None:
        path = folder / "ledger.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        change(lines)
        path.write_text("".join(lines), encoding="utf-8")

    return edit


def fewer_users(lines: list[str], index: int) -> None:
    entry = json.loads(lines[index])
    for key in ("realised_cohort", "distinct_users", "num_contributions"):
        entry[key] -= 1
    entry["total_weight"] -= 1.0
    lines[index] = json.dumps(entry, sort_keys=True, separators=(",", ":")) + "\n"


def swap(lines: list[str]) -> None:
    lines[5], lines[6] = lines[6], lines[5]


def drop_middle(lines: list[str]) -> None:
    del lines[HALF]


def drop_last(lines: list[str]) -> None:
    del lines[-1]


def drop_last_three(lines: list[str]) -> None:
    del lines[-3:]


def double_last(lines: list[str]) -> None:
    lines.append(lines[-1])


def ledger_of_another_seed(folder: Path) -> None:
    other = finished(configured({"seed": 4}))
    shutil.copy(other / "ledger.jsonl", folder / "ledger.jsonl")


def lose_ledger(folder: Path) -> None:
    (folder / "ledger.jsonl").unlink()


def smaller_epsilon(folder: Path) -> None:
    """In statement and summary alike."""
    for name, path in (("privacy.json", ()), ("summary.json", ("privacy",))):
        document = json.loads((folder / name).read_text(encoding="utf-8"))
        statement = document
        for key in path:
            statement = statement[key]
        statement["simulated"]["epsilon"] /= 2.0
        (folder / name).write_text(json.dumps(document), encoding="utf-8")


def smaller_epsilon_in_statement(folder: Path) -> None:
    path = folder / "privacy.json"
    statement = json.loads(path.read_text(encoding="utf-8"))
    statement["actual"]["epsilon"] *= 0.99
    path.write_text(json.dumps(statement), encoding="utf-8")


def forget_bound(patch: Patch) -> None:
    patch.setattr(AdaptiveGaussian, "state_dict", lambda self: {})
    patch.setattr(AdaptiveGaussian, "load_state_dict", lambda self, state: None)


def forget_check_of_ledger(patch: Patch) -> None:
    def check_resume(self: Ledger, rounds_done: int, constants: Any, digest: Any) -> None:
        """Look at nothing."""

    patch.setattr(Ledger, "check_resume", check_resume)


def forget_selection(patch: Patch) -> None:
    kept = tuple(sentence for sentence in plan.NOT_COVERED if "selection" not in sentence)
    patch.setattr(plan, "NOT_COVERED", kept)


RECORD_BUGS = (
    Bug(
        "line_dropped",
        "a line of the ledger is dropped in the middle",
        "the file is edited",
        expects=("chain",),
        after=ledger_lines(drop_middle),
    ),
    Bug(
        "last_line_dropped",
        "the last line of the ledger is dropped",
        "the file is edited",
        expects=("rounds",),
        after=ledger_lines(drop_last),
    ),
    Bug(
        "last_line_doubled",
        "the last line of the ledger is there twice",
        "the file is edited",
        expects=("chain",),
        after=ledger_lines(double_last),
    ),
    Bug(
        "line_edited",
        "a line of the ledger is edited, in itself consistently",
        "the file is edited: one user fewer",
        expects=("chain",),
        after=ledger_lines(lambda lines: fewer_users(lines, HALF)),
    ),
    Bug(
        "last_line_edited",
        "the last line of the ledger is edited, in itself consistently",
        "the file is edited: one user fewer",
        expects=("chain",),
        after=ledger_lines(lambda lines: fewer_users(lines, -1)),
    ),
    Bug(
        "lines_swapped",
        "two lines of the ledger change places",
        "the file is edited",
        expects=("chain",),
        after=ledger_lines(swap),
    ),
    Bug(
        "ledger_lost",
        "the ledger of a finished run is gone",
        "the file is deleted",
        expects=("chain",),
        after=lose_ledger,
    ),
    Bug(
        "ledger_of_another_run",
        "the ledger is that of a run with another seed",
        "the file is another run's",
        expects=("chain",),
        after=ledger_of_another_seed,
    ),
    Bug(
        "epsilon_edited",
        "a smaller epsilon in the statement and in the summary",
        "the files are edited: half of it",
        expects=("epsilon_simulated",),
        after=smaller_epsilon,
    ),
    Bug(
        "epsilon_embellished",
        "an epsilon smaller by one in a hundred in the statement",
        "the file is edited",
        expects=("epsilon_actual", "configuration"),
        after=smaller_epsilon_in_statement,
    ),
    Bug(
        "caveat_forgotten",
        "the statement no longer says that model selection is not covered",
        "the sentence is gone, from the code that audits too",
        expects=("statement",),
        around=forget_selection,
    ),
    Bug(
        "bound_forgotten",
        "a resumed run starts from the first bound again",
        "`AdaptiveGaussian`'s checkpoint is empty",
        expects=("clip_path",),
        plant=forget_bound,
        changes=ADAPTIVE,
        interrupt_after=HALF,
    ),
    Bug(
        "bound_forgotten_on_replay",
        "the same, with rounds to replay",
        "the run is killed three rounds after its checkpoint",
        words="its replay differs",
        plant=forget_bound,
        changes=ADAPTIVE,
        interrupt_after=HALF + 3,
    ),
    Bug(
        "ledger_forgotten",
        "a resumed run finds no ledger",
        "the file is deleted in between",
        words="would go unaccounted",
        interrupt_after=HALF,
        between=lose_ledger,
    ),
    Bug(
        "ledger_cut",
        "a resumed run finds a ledger without its last three rounds",
        "the file is edited in between",
        words="would go unaccounted",
        interrupt_after=HALF,
        between=ledger_lines(drop_last_three),
    ),
    Bug(
        "ledger_forgotten_unchecked",
        "a resumed run finds no ledger and does not look",
        "and `Ledger.check_resume` does nothing",
        words="cannot follow round 0",
        plant=forget_check_of_ledger,
        interrupt_after=HALF,
        between=lose_ledger,
    ),
)
