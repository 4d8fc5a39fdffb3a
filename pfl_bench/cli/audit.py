"""``pfl-bench audit``: every privacy claim of a run, derived anew from its record."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

from pfl_bench.files import to_json_value
from pfl_bench.runs.audit import RunAudit, audit_run
from privacy.audit.check import OUTCOMES, Check
from privacy.audit.inputs import as_number
from privacy.audit.outside import COVERS
from privacy.statement.statement import round_up, selection_note, small

_MARKS = {"passed": "PASS", "failed": "FAIL", "incomplete": "LACK", "skipped": "skip"}
_WIDTH = 110


def main(arguments: argparse.Namespace) -> int:
    """Audit a run and print what was found; 1 if a check fails, or could not be made."""
    done = audit_run(Path(arguments.run), arguments.tuned_runs, arguments.data)
    if arguments.json:
        print(json.dumps(to_json_value(done.to_json_dict()), allow_nan=False))
    else:
        print("\n".join(_lines(Path(arguments.run), done)))
    return 0 if done.verdict == "passed" else 1


def _lines(folder: Path, done: RunAudit) -> Iterator[str]:
    statement = done.inputs.statement
    yield f"Audit of {folder}"
    for side in ("simulated", "actual"):
        stated = statement[side]
        epsilon = round_up(as_number(stated["epsilon"]), 4)
        delta = small(as_number(stated["delta"]), 4)
        yield f"  stated epsilon ({side})  {epsilon} at delta {delta}"
    if statement["status"] == "planned":
        yield "  the run has not ended: the statement is of all planned rounds"
    yield ""
    for outcome, evidence, checks in _together(done.checks):
        names = _names(checks)
        yield from _wrapped(f"{_MARKS[outcome]}  {names}: {evidence}", "      ")
    yield ""
    yield "Outside of the guarantee"
    for sentence in statement["not_covered"]:
        yield from _wrapped(f"  - {sentence}", "    ")
    if done.selected_by is not None:
        yield from _wrapped(f"  - {selection_note(done.selected_by)}", "    ")
    yield from _tuning(done)
    outcomes = [check.outcome for check in done.checks]
    yield ""
    if done.verdict == "incomplete":
        names = _names(check for check in done.checks if check.outcome == "incomplete")
        text = f"Not checked, or not in full, because the folder lacks what they need: {names}"
        yield from _wrapped(text, "  ")
    counts = ", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in OUTCOMES)
    yield f"{done.verdict.upper()}: {counts}"


def _names(checks: Iterable[Check]) -> str:
    return ", ".join(check.name for check in checks)


def _together(checks: Iterable[Check]) -> Iterator[tuple[str, str, list[Check]]]:
    """Checks in their order; those that follow one another and say the same, as one."""
    for (outcome, evidence), same in groupby(checks, lambda check: (check.outcome, check.evidence)):
        yield outcome, evidence, list(same)


def _tuning(done: RunAudit) -> Iterator[str]:
    if done.tuned is None:
        return
    parts = [
        f"epsilon ({side}) {round_up(as_number(value), 4)}"
        for side, value in done.tuned.epsilons.items()
    ]
    parts += [f"no epsilon ({side}): {why}" for side, why in done.tuned.problems.items()]
    text = f"  A search over {done.tuned.runs} such runs: {', '.join(parts)}. {COVERS}"
    yield from _wrapped(text, "  ")


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
