"""Lists of a page about each run: its state, its configuration and environment."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from pfl_bench.report.results import format_value
from pfl_bench.report.run_folder import RunRecord
from pfl_bench.report.table import Cell, Table
from pfl_bench.runs.divergence import describe_divergence

# Dozens of numbers each: how metrics spread over clients and strata.
SPREADS = ("client_", "stratum_")
_MAX_CHARACTERS = 200_000
_SEED = re.compile(r"^seed:.*$", re.MULTILINE)


def run_table(runs: Sequence[RunRecord]) -> Table:
    """Table of the state of each run."""
    lines = []
    for run in runs:
        nonfinite = run.series("train/num_nonfinite")[1]
        diverged = "" if run.summary is None else describe_divergence(run.summary.diverged)
        status = ", ".join(filter(None, (run.status.replace("_", " "), diverged)))
        took = duration(None if run.summary is None else run.summary.seconds)
        updates = f"{sum(nonfinite):.0f}" if nonfinite else "-"
        folder = Cell(str(run.path), str(run.path), style="path")
        lines.append((run.name, _seed(run), status, progress(run), took, updates, folder))
    headings = ("row", "seed", "status", "progress", "time", "non-finite updates", "folder")
    return Table.of(headings, lines, to_left=(0, 2, 6))


def run_facts(runs: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """Lists of a page about runs; files that differ in the seed alone are shown once."""
    shown: dict[str, RunRecord] = {}
    facts, size = [], 0
    for run in runs:
        first = shown.setdefault(_SEED.sub("", run.config_text), run)
        files = {"config.yaml": run.config_text, "environment.json": _text(run.environment)}
        if run.statement:
            files["privacy.json"] = _text(run.statement)
        elsewhere = ""
        if first is not run:
            elsewhere = f"Configuration as of seed {_seed(first)}; the files are in {run.path}."
        elif size + sum(map(len, files.values())) > _MAX_CHARACTERS:
            elsewhere = f"The page would be too long with its files; they are in {run.path}."
        else:
            size += sum(map(len, files.values()))
        about = {"name": run.name, "seed": _seed(run), "elsewhere": elsewhere}
        data = {
            key: value if isinstance(value, str | int | float) else json.dumps(value)
            for key, value in run.data.items()
        }
        metrics = {
            name: format_value(value)
            for name, value in run.metrics.items()
            if not name.partition("/")[2].startswith(SPREADS)
        }
        shown_files = {} if elsewhere else files
        facts.append({**about, "data": data, "metrics": metrics, "files": shown_files})
    return facts


def progress(run: RunRecord) -> str:
    """Rounds that a run has done, in words."""
    if run.planned_rounds is None:
        return count(run.last_round, run.step_unit)
    return f"{run.last_round} of {count(run.planned_rounds, run.step_unit)}"


def count(number: int, noun: str) -> str:
    """Write a number of things."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _text(document: Any) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False)


def _seed(run: RunRecord) -> str:
    return "-" if run.seed is None else str(run.seed)


def duration(seconds: float | None) -> str:
    """Write a time span for reading."""
    if seconds is None:
        return "-"
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
