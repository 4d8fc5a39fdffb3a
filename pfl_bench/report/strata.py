"""Results by stratum, such as play or subreddit: the best and the worst of each column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pfl_bench.report.results import format_value
from pfl_bench.report.run_folder import RunRecord
from pfl_bench.report.table import Table
from pfl_bench.types import as_float

_SHOWN = 5


@dataclass(frozen=True)
class Strata:
    """The best and the worst values of one column in one run, one table where it holds all."""

    title: str
    count: str
    tables: tuple[Table, ...]


def strata_tables(runs: Sequence[RunRecord]) -> list[Strata]:
    """Tables of all columns of a row's first finished run that has some."""
    for run in runs:
        if not run.strata or run.summary is None:
            continue
        seed = f", seed {run.seed}" if len(runs) > 1 else ""
        return [
            table
            for split, columns in run.strata.items()
            if isinstance(columns, Mapping)
            for column, values in columns.items()
            if isinstance(values, Mapping)
            and (table := _table(f"{run.name}{seed}: {split}, by {column}", split, values, run))
        ]
    return []


def _table(title: str, split: str, values: Mapping[str, Any], run: RunRecord) -> Strata | None:
    """Order one column's values; None if none of them has a number."""
    metric = _metric(split, values, run)
    if metric is None:
        return None
    lines = [
        (number, int(as_float(entry.get("examples")) or 0), name, entry)
        for name, entry in values.items()
        if isinstance(entry, Mapping) and (number := as_float(entry.get(metric))) is not None
    ]
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
    parts = {"value": kept}
    if len(kept) > 2 * _SHOWN:
        parts = {"best": kept[:_SHOWN], "worst": kept[: -_SHOWN - 1 : -1]}
    tables = [
        Table.of((heading, metric, "examples", "clients"), [_texts(*line) for line in part])
        for heading, part in parts.items()
    ]
    return Strata(title, f"{count}, ordered by {metric}.", tuple(tables))


def _metric(split: str, values: Mapping[str, Any], run: RunRecord) -> str | None:
    """The metric that the row is judged by, if the strata have it; else their first."""
    entry = next((entry for entry in values.values() if isinstance(entry, Mapping)), {})
    has = [name for name in entry if name not in ("examples", "clients")]
    wanted = [*(entry.metric for entry in run.expected), *run.headlines]
    bases = [name.partition("/")[2] for name in wanted if name.partition("/")[0] == split]
    return next((base for base in [*bases, "accuracy"] if base in has), has[0] if has else None)


def _texts(number: float, size: int, name: str, entry: Mapping[str, Any]) -> tuple[str, ...]:
    return name, format_value(number), f"{size:,}", f"{int(as_float(entry.get('clients')) or 0):,}"
