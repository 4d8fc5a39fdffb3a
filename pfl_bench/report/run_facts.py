"""Lists of a page about each run: its state, its configuration and environment, its strata."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pfl_bench.metrics import is_spread
from pfl_bench.report.results import format_value
from pfl_bench.report.run_folder import RunRecord
from pfl_bench.report.table import Cell, Table
from pfl_bench.runs.divergence import describe_divergence
from pfl_bench.types import as_float

_MAX_CHARACTERS = 200_000
# Of the best, and of the worst strata.
_SHOWN = 5
_SEED = re.compile(r"^seed:.*$", re.MULTILINE)


def run_table(runs: Sequence[RunRecord]) -> Table:
    """Table of the state of each run."""
    lines = []
    for run in runs:
        nonfinite = run.series("train/num_nonfinite")[1]
        diverged = describe_divergence(run.summary.diverged)
        status = ", ".join(filter(None, (run.summary.status.replace("_", " "), diverged)))
        took = duration(run.summary.seconds)
        updates = f"{sum(nonfinite):.0f}" if nonfinite else "-"
        folder = Cell(str(run.path), str(run.path), style="path")
        lines.append((run.name, str(run.seed), status, progress(run), took, updates, folder))
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
            elsewhere = f"Configuration as of seed {first.seed}; the files are in {run.path}."
        elif size + sum(map(len, files.values())) > _MAX_CHARACTERS:
            elsewhere = f"The page would be too long with its files; they are in {run.path}."
        else:
            size += sum(map(len, files.values()))
        about = {"name": run.name, "seed": str(run.seed), "elsewhere": elsewhere}
        data = {
            key: value if isinstance(value, str | int | float) else json.dumps(value)
            for key, value in run.data.items()
        }
        metrics = {
            name: format_value(value)
            for name, value in run.summary.metrics.items()
            if not is_spread(name)
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


def duration(seconds: float | None) -> str:
    """Write a time span for reading."""
    if seconds is None:
        return "-"
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


@dataclass(frozen=True)
class Strata:
    """The best and the worst values of one column in one run, one table where it holds all."""

    title: str
    count: str
    tables: tuple[Table, ...]


def strata_tables(runs: Sequence[RunRecord]) -> list[Strata]:
    """Tables of all columns of a row's first finished run that has some."""
    for run in runs:
        if not run.strata or not run.is_finished:
            continue
        seed = f", seed {run.seed}" if len(runs) > 1 else ""
        return [
            table
            for split, columns in run.strata.items()
            if isinstance(columns, Mapping)
            for column, values in columns.items()
            if isinstance(values, Mapping)
            and (table := _strata(f"{run.name}{seed}: {split}, by {column}", split, values, run))
        ]
    return []


def _strata(title: str, split: str, values: Mapping[str, Any], run: RunRecord) -> Strata | None:
    """Order one column's values; None if none of them has a number."""
    metric = _metric(split, values, run)
    if metric is None:
        return None
    numbered = [
        (number, int(as_float(entry.get("examples")) or 0), name, entry)
        for name, entry in values.items()
        if isinstance(entry, Mapping) and (number := as_float(entry.get(metric))) is not None
    ]
    # NaN has no place in an order, and would leave the others in none.
    lines = [line for line in numbered if not math.isnan(line[0])]
    if not lines:
        return None
    # A stratum of three examples is at the top or the bottom by chance alone.
    sizes = sorted(size for _, size, _, _ in lines)
    least = sizes[len(sizes) // 4] if len(lines) > 4 * _SHOWN else 0
    kept = [line for line in lines if line[1] >= least]
    sign = 1 if run.directions.lower_is_better(metric) else -1
    kept.sort(key=lambda line: (sign * line[0], -line[1], line[2]))
    count = f"{len(lines):,} values"
    if len(kept) < len(lines):
        count += f"; the {len(lines) - len(kept):,} with fewer than {least:,} examples are left out"
    if without := len(numbered) - len(lines):
        count += f"; {without:,} without a number {'is' if without == 1 else 'are'} left out"
    parts = {"value": kept}
    if len(kept) > 2 * _SHOWN:
        parts = {"best": kept[:_SHOWN], "worst": kept[: -_SHOWN - 1 : -1]}
    tables = [
        Table.of((heading, metric, "examples", "clients"), [_stratum(*line) for line in part])
        for heading, part in parts.items()
    ]
    return Strata(title, f"{count}, ordered by {metric}.", tuple(tables))


def _metric(split: str, values: Mapping[str, Any], run: RunRecord) -> str | None:
    """The metric that the row is judged by, if the strata have it; else their first."""
    entry = next((entry for entry in values.values() if isinstance(entry, Mapping)), {})
    has = [name for name in entry if name not in ("examples", "clients")]
    wanted = [*(entry.metric for entry in run.summary.expected), *run.headlines]
    bases = [name.partition("/")[2] for name in wanted if name.partition("/")[0] == split]
    return next((base for base in [*bases, "accuracy"] if base in has), has[0] if has else None)


def _stratum(number: float, size: int, name: str, entry: Mapping[str, Any]) -> tuple[str, ...]:
    return name, format_value(number), f"{size:,}", f"{int(as_float(entry.get('clients')) or 0):,}"
