"""Auditing a run while it runs, and stopping it at the first violation.

Two tests look at what the folder has so far. Bets on the coins of worst-case canaries, after every
round (``privacy.empirical.step_bets``), at a level of their own. And the audit of the record, after
rounds 1, 2, 4, 8, ..., on a copy that ends with a whole line, so that nothing is judged that is
half-written; of its checks those fail a run that fail, not those that lack files. As the audit is
repeated some log2(T) times, so is its level.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pfl_bench.files import check_run_folder, read_json, read_metrics, read_text
from pfl_bench.runs.audit import audit_run, read_claim
from pfl_bench.runs.audit_file import LEDGER_FILE
from pfl_bench.runs.auditing.inputs import METRICS_FILE
from pfl_bench.runs.auditing.metrics_lines import RIGHT, TRIALS
from pfl_bench.runs.stop import STOP_FILE, is_busy, request_stop
from privacy.audit.inputs import as_number
from privacy.empirical.step_bets import StepBets

Tell = Callable[[str], None]
# Probability with which bets stop a run that does what it claims, at most.
BETS_LEVEL = 1e-4
_COPIED = ("config.yaml", "privacy.json", "environment.json")


@dataclass
class Watched:
    """State of a run as it is watched: rounds that were seen, and the last one of the last audit.

    ``bets`` are against the claim of a step, None before the first round with canaries; the first
    violation that was seen is a clause, empty for none.
    """

    rounds: int = 0
    audited: int = 0
    bets: StepBets | None = None
    violation: str = ""


def watch(folder: Path, every: float, tell: Tell, data: str | None = None) -> Watched:
    """Watch a run until it ends, or is stopped for a violation.

    ``every`` is the positive number of seconds between two looks; ``tell`` is called with what a
    person wants to know, ``data`` is as in ``audit_run``. UserInputError if it is no private run's
    folder, or a file of it is damaged.
    """
    seen = Watched()
    while True:
        # Whether it runs is asked first: what it writes after that is still looked at.
        is_over = (folder / "summary.json").exists() or not is_busy(folder)
        look(folder, seen, tell, data, is_last=is_over)
        if seen.violation:
            request_stop(folder, f"pfl-bench audit --live: {seen.violation}")
            tell(f"VIOLATION after round {seen.rounds}: {seen.violation}")
            tell(f"the run was told to stop ({folder / STOP_FILE})")
            return seen
        if is_over:
            return seen
        time.sleep(every)


def look(
    folder: Path, seen: Watched, tell: Tell, data: str | None = None, is_last: bool = False
) -> None:
    """Take in the rounds since the last look; note the first violation in ``seen``.

    The record is audited whatever the round if ``is_last``; ``tell`` and ``data`` are as in
    ``watch``.
    """
    check_run_folder(folder)
    rows = read_metrics(folder / METRICS_FILE)
    # A resumed run writes rounds again, and they are the same.
    for row in rows[seen.rounds :]:
        seen.rounds = row["round"]
        _bet(folder, row, seen)
        if seen.violation:
            return
    is_due = seen.rounds >= max(1, 2 * seen.audited) or (is_last and seen.rounds > seen.audited)
    if seen.rounds and is_due:
        _audit(folder, seen, tell, data)


def _bet(folder: Path, row: dict[str, object], seen: Watched) -> None:
    if TRIALS not in row:
        return
    if seen.bets is None:
        statement = read_json(folder / "privacy.json") or {}
        noise = as_number((statement.get("actual") or {}).get("noise_multiplier"))
        if not noise > 0.0:
            return
        seen.bets = StepBets(1.0 / noise)
    wealth = seen.bets.add(int(as_number(row[RIGHT])), int(as_number(row[TRIALS])))
    if wealth >= 1.0 / BETS_LEVEL:
        seen.violation = (
            f"canaries were told apart more often than a step's claimed noise allows (wealth "
            f"{wealth:.3g}, {1.0 / BETS_LEVEL:g} is enough)"
        )


def _audit(folder: Path, seen: Watched, tell: Tell, data: str | None) -> None:
    if not (folder / LEDGER_FILE).exists():
        read_claim(folder, data)  # says of a run without privacy that nothing is to be audited
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name)
        for file in _COPIED:
            if (folder / file).is_file():
                shutil.copyfile(folder / file, copy / file)
        # It ended after its metrics were read: the next look sees all of it.
        statement = read_json(copy / "privacy.json") or {}
        if statement.get("status") == "final" and statement.get("rounds") != seen.rounds:
            return
        lines = read_text(folder / LEDGER_FILE).split("\n")[: seen.rounds]
        (copy / LEDGER_FILE).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        rows = read_metrics(folder / METRICS_FILE)[: seen.rounds]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (copy / METRICS_FILE).write_text(text, encoding="utf-8")
        done = audit_run(copy, data=data)
    seen.audited = seen.rounds
    failed = [check for check in done.checks if check.outcome == "failed"]
    passed = sum(check.outcome == "passed" for check in done.checks)
    tell(f"round {seen.rounds}: {passed} checks passed, {len(failed)} failed")
    if failed:
        seen.violation = "; ".join(f"{check.name}: {check.evidence}" for check in failed[:2])
        seen.violation = seen.violation.replace(name, str(folder))
