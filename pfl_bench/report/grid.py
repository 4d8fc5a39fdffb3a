"""A grid of metrics by rows, for tables too wide for a line a number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os.path import commonprefix

from pfl_bench.report.results import format_epsilon, format_value, with_spread
from pfl_bench.report.table import Cell, Table
from pfl_bench.runs.rows import RowResult, runs_of_seeds
from privacy.statement.statement import small

_MARKS = {"differs": "*", "undecided": "?", "says nothing": "?"}
_Group = Mapping[str, RowResult]


def make_grid(rows: Sequence[RowResult], labels: Mapping[str, str]) -> Table:
    """Arrange lines of a table, a metric of a row each, as a grid of "published / measured".

    Columns are in the order of ``labels``, which rename rows; the others come last. What all
    metrics' names begin with is in the corner alone.
    """
    groups: dict[str, dict[str, RowResult]] = {name: {} for name in labels}
    for row in rows:
        groups.setdefault(row.name, {})[row.metric] = row
    groups = {name: group for name, group in groups.items() if group}
    metrics = list(dict.fromkeys(row.metric for row in rows))
    corner = _shared_start(metrics, "/_")
    lines = [
        [metric[len(corner) :], *(_cell(group.get(metric)) for group in groups.values())]
        for metric in metrics
    ]
    return Table.of(
        [f"{corner}*" if corner else "metric", *(labels.get(name, name) for name in groups)],
        [*lines, *_closing(list(groups.values()))],
        notes=_notes(groups, labels),
    )


def _cell(row: RowResult | None) -> str | Cell:
    if row is None:
        return ""
    text = f"{format_value(row.published)} / {with_spread(row.mean, row.sd)}"
    if row.status in _MARKS:
        text += f" {_MARKS[row.status]}"
    return Cell(text, style="differs") if row.status == "differs" else text


def _closing(groups: Sequence[_Group]) -> list[list[str | Cell]]:
    firsts = [next(iter(group.values())) for group in groups]
    lines = [["agree", *map(_count, groups)]]
    sides = ("simulated", "actual")
    epsilons = [[getattr(row, f"epsilon_{side}") for row in firsts] for side in sides]
    if any(one is not None for found in epsilons for one in found):
        for side, found in zip(sides, epsilons, strict=True):
            lines.append([f"epsilon ({side})", *(format_epsilon(one, None) for one in found)])
    return [[name, *(Cell(text, text, style="total") for text in texts)] for name, *texts in lines]


def _count(group: _Group) -> str:
    if any(row.status == "diverged" for row in group.values()):
        return "diverged"
    judged = [row for row in group.values() if row.is_judged]
    if not judged:
        return next(iter(group.values())).status
    return f"{sum(row.is_near for row in judged)} of {len(judged)}"


def _notes(groups: Mapping[str, _Group], labels: Mapping[str, str]) -> list[str]:
    notes = ["Cells: published / measured; * differs by more than the margin, ? is undecided."]
    for name, group in groups.items():
        rows = list(group.values())
        first = rows[0]
        most = max(rows, key=lambda row: len(row.measured))
        seeds = runs_of_seeds(len(most.measured), most.num_seeds)
        parts = [f"row {name}", f"data {first.variant}", seeds]
        sources = [row.source for row in rows if row.source]
        if sources:
            parts.append(f"source: {_shared_start(sources, ',').rstrip(',') or sources[0]}")
        deltas = {"simulated": first.delta_simulated, "actual": first.delta_actual}
        parts += [f"delta ({side}) {small(d, 2)}" for side, d in deltas.items() if d is not None]
        parts += _row_notes(rows)
        notes.append(f"{labels.get(name, name)}: {'; '.join(parts)}")
    return notes


def _row_notes(rows: Sequence[RowResult]) -> list[str]:
    """The range of a column's margins, and each note of its cells once."""
    margins = sorted({row.margin for row in rows if row.margin is not None and row.is_judged})
    said = [f"margin {margins[0]:g}"] if margins else []
    if len(margins) > 1:
        said = [f"margins {margins[0]:g} to {margins[-1]:g}"]
    notes = dict.fromkeys(text for row in rows for text in row.note.split("; ") if text)
    return [*said, *notes]


def _shared_start(texts: Sequence[str], ends: str) -> str:
    """Longest start that all texts share, up to and with one of the characters ``ends``."""
    if len(set(texts)) < 2:
        return ""
    start = commonprefix(list(texts))  # noqa: RUF071 (they are no paths)
    return start[: max(map(start.rfind, ends)) + 1]
