"""The table of results: a line a metric of a row, what is published beside what was measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from pfl_bench.report.table import Cell, Column, Table
from pfl_bench.runs.rows import RowResult, runs_of_seeds
from privacy.statement.statement import round_up, small

# What pages call the settings.
SETTINGS = {
    "central": "central",
    "central_dp": "central, example-level DP",
    "federated": "federated",
    "private_federated": "private federated",
    "local": "local models",
    "multitask": "federated multi-task",
}
_PUBLISHED = Column("published", is_number=True, alias="reference")
_Part = tuple[Column, Callable[[RowResult], str | Cell]]


def results_table(rows: Sequence[RowResult], has_epsilons: bool = True) -> Table:
    """Make the table of results."""
    notes = list(dict.fromkeys(filter(None, map(_footnote, rows))))
    parts = _parts(notes, has_epsilons)
    columns = tuple(column for column, _ in parts)
    own = [row.measured_here for row in rows if row.published is not None]
    if own and all(own):
        # Nobody published what is compared with.
        columns = tuple(replace(c, shows_alias=c is _PUBLISHED) for c in columns)
    lines = tuple(tuple(cell_of(row) for _, cell_of in parts) for row in rows)
    return Table(columns, lines, tuple(notes), has_numbered_notes=True)


def _parts(notes: list[str], has_epsilons: bool) -> list[_Part]:
    """The columns, and how each is filled from a row; the verdict has the number of its note."""

    def verdict(row: RowResult) -> Cell:
        color = "differs" if row.is_failure else "other"
        style = f"verdict {'reproduced' if row.is_near else color}"
        text = _footnote(row)
        mark = notes.index(text) + 1 if text else None
        more = row.more_seeds
        beside = "" if more is None else f"{more} more seed{'s' * (more != 1)}"
        return Cell(row.status, row.status, beside, style=style, note=mark)

    return [
        (Column("row"), lambda row: row.name),
        (
            Column("setting"),
            lambda r: Cell(r.setting, r.setting, page_text=SETTINGS.get(r.setting)),
        ),
        (Column("data"), lambda row: row.variant),
        (Column("metric"), lambda row: row.metric),
        (_PUBLISHED, _published),
        _raw("published sd", lambda row: row.published_sd),
        _raw("published seeds", lambda row: row.published_seeds),
        (Column("measured", is_number=True, only="people"), _measured),
        _raw("mean", lambda row: row.mean),
        _raw("sd", lambda row: row.sd),
        _raw("seeds", lambda r: len(r.measured) if r.num_seeds is None else r.num_seeds),
        (
            Column("difference", is_number=True),
            lambda row: Cell(format_value(row.difference, signed=True), row.difference),
        ),
        (Column("verdict"), verdict),
        _raw("margin", lambda row: row.margin),
        _raw("interval", lambda row: row.interval),
        _raw("more seeds", lambda row: row.more_seeds),
        *(part for side in ("simulated", "actual") if has_epsilons for part in _epsilons(side)),
        _raw("source", lambda row: row.source or ""),
        _raw("note", lambda row: row.note),
    ]


def _raw(heading: str, value_of: Callable[[RowResult], Any]) -> _Part:
    """A column of values for programs."""
    return Column(heading, only="programs"), lambda row: Cell("", value_of(row))


def _epsilons(side: str) -> tuple[_Part, _Part]:
    def cell(row: RowResult) -> Cell:
        unit = "per example" if row.setting == "central_dp" else "per user"
        epsilon, delta = getattr(row, f"epsilon_{side}"), getattr(row, f"delta_{side}")
        return epsilon_cell(epsilon, delta, unit)

    delta = _raw(f"delta ({side})", lambda row: getattr(row, f"delta_{side}"))
    return (Column(f"epsilon ({side})", is_number=True), cell), delta


def epsilon_cell(epsilon: float | None, delta: float | None, unit: str = "") -> Cell:
    """An epsilon with its delta below it; on a page, with what it protects."""
    text, _, detail = format_epsilon(epsilon, delta).partition(" (")
    return Cell(text, epsilon, detail[:-1], unit)


def _published(row: RowResult) -> Cell:
    seeds = "" if row.published_sd is None else f"{row.published_seeds} seeds"
    return Cell(with_spread(row.published, row.published_sd), row.published, seeds)


def _measured(row: RowResult) -> Cell:
    seeds = runs_of_seeds(len(row.measured), row.num_seeds)
    return Cell("-") if row.mean is None else Cell(with_spread(row.mean, row.sd), detail=seeds)


def with_spread(mean: float | None, sd: float | None) -> str:
    """Write a mean, and beside it its standard deviation if there is one."""
    return format_value(mean) + ("" if sd is None else f" ± {format_value(sd)}")


def _footnote(row: RowResult) -> str:
    source = f"source: {row.source}" if row.source else ""
    return "; ".join(filter(None, (source, row.interval, row.note)))


def format_value(value: float | None, *, signed: bool = False) -> str:
    """Write a metric with four decimals, two from 10 on; "-" for None."""
    if value is None:
        return "-"
    if not math.isfinite(value):
        return str(value)
    decimals = 4 if abs(value) < 10 else 2
    return f"{value:{'+' if signed else ''}.{decimals}f}"


def format_epsilon(epsilon: float | None, delta: float | None) -> str:
    """Write an epsilon with its delta; "-" for None, "inf" for no guarantee."""
    if epsilon is None:
        return "-"
    if math.isinf(epsilon):
        return "inf (no guarantee)"
    number = round_up(epsilon, 3)
    return number if delta is None else f"{number} (delta {small(delta, 2)})"
