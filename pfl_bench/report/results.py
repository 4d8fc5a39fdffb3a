"""The table of results: a line a metric of a row, what is published beside what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from pfl_bench.report.table import Cell, Column, Table
from pfl_bench.runs.rows import RowResult
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
_COLUMNS = (
    Column("row"),
    Column("setting"),
    Column("data"),
    Column("metric"),
    _PUBLISHED,
    Column("published sd", only="programs"),
    Column("published seeds", only="programs"),
    Column("measured", is_number=True, only="people"),
    Column("mean", only="programs"),
    Column("sd", only="programs"),
    Column("seeds", only="programs"),
    Column("difference", is_number=True),
    Column("verdict"),
    Column("margin", only="programs"),
    Column("interval", only="programs"),
    Column("more seeds", only="programs"),
)
_EPSILONS = (
    Column("epsilon (simulated)", is_number=True),
    Column("delta (simulated)", only="programs"),
    Column("epsilon (actual)", is_number=True),
    Column("delta (actual)", only="programs"),
)
_REMARKS = (Column("source", only="programs"), Column("note", only="programs"))


def results_table(rows: Sequence[RowResult], has_epsilons: bool = True) -> Table:
    """Make the table of results."""
    notes, marks = _footnotes(rows)
    columns = (*_COLUMNS, *(_EPSILONS if has_epsilons else ()), *_REMARKS)
    own = [row.measured_here for row in rows if row.published is not None]
    if own and all(own):
        # Nobody published what is compared with.
        columns = tuple(replace(c, shows_alias=c is _PUBLISHED) for c in columns)
    lines = [_line(row, mark, has_epsilons) for row, mark in zip(rows, marks, strict=True)]
    return Table(columns, tuple(lines), tuple(notes), has_numbered_notes=True)


def _line(row: RowResult, mark: int | None, has_epsilons: bool) -> tuple[str | Cell, ...]:
    color = "differs" if row.is_failure else "other"
    color = "reproduced" if row.is_near else color
    unit = "per example" if row.setting == "central_dp" else "per user"
    epsilons = [
        cell
        for epsilon, delta in (
            (row.epsilon_simulated, row.delta_simulated),
            (row.epsilon_actual, row.delta_actual),
        )
        for cell in (epsilon_cell(epsilon, delta, unit), Cell("", delta))
    ]
    return (
        row.name,
        Cell(row.setting, row.setting, page_text=SETTINGS.get(row.setting)),
        row.variant,
        row.metric,
        _published(row),
        Cell("", row.published_sd),
        Cell("", row.published_seeds),
        format_mean(row.mean, row.sd, len(row.measured)),
        Cell("", row.mean),
        Cell("", row.sd),
        Cell("", len(row.measured)),
        Cell(format_value(row.difference, signed=True), row.difference),
        Cell(row.status, row.status, _beside(row), style=f"verdict {color}", note=mark),
        Cell("", row.margin),
        Cell("", row.interval),
        Cell("", row.more_seeds),
        *(epsilons if has_epsilons else ()),
        row.source or "",
        row.note,
    )


def _beside(row: RowResult) -> str:
    """Number of further seeds, or other need, of an undecided verdict; in words."""
    if row.more_seeds is None:
        return ""
    return f"{row.more_seeds} more seed{'s' * (row.more_seeds != 1)}"


def epsilon_cell(epsilon: float | None, delta: float | None, unit: str = "") -> Cell:
    """An epsilon with its delta below it; on a page, with what it protects."""
    text, _, detail = format_epsilon(epsilon, delta).partition(" (")
    return Cell(text, epsilon, detail[:-1], unit)


def _published(row: RowResult) -> Cell:
    """The published number: a value, or a mean with its standard deviation over seeds."""
    if row.published_sd is None:
        return Cell(format_value(row.published), row.published)
    spread = f"{format_value(row.published)} ± {format_value(row.published_sd)}"
    return Cell(spread, row.published, f"{row.published_seeds} seeds")


def format_mean(mean: float | None, sd: float | None, seeds: int) -> Cell:
    """A mean over seeds; with two seeds or more, beside its standard deviation."""
    if mean is None:
        return Cell("-")
    if sd is None:
        return Cell(format_value(mean), detail="1 seed")
    return Cell(f"{format_value(mean)} ± {format_value(sd)}", detail=f"{seeds} seeds")


def _footnotes(rows: Sequence[RowResult]) -> tuple[list[str], list[int | None]]:
    """Sources and notes, each said once; and of each line the number of its own, from 1."""
    texts = [
        "; ".join(
            filter(None, (f"source: {row.source}" if row.source else "", row.interval, row.note))
        )
        for row in rows
    ]
    notes = [text for text in dict.fromkeys(texts) if text]
    return notes, [notes.index(text) + 1 if text else None for text in texts]


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
