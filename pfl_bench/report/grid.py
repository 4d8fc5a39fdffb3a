"""Tables of cells: a grid of metrics by rows, for tables too wide for a line a number.

Pure functions; ``pfl_bench.report.table`` writes the tables with a line a number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Literal

from pfl_bench.report.table import format_epsilon, format_value, latex_escape
from pfl_bench.runs.rows import RowResult
from privacy.statement.statement import small

_TOLERANCE = "tolerance "


@dataclass(frozen=True)
class Grid:
    """Metrics by rows, as texts.

    Attributes:
        corner: What the metrics' names begin with.
        columns: Labels of the rows, which are the grid's columns.
        lines: A metric's name without the corner, and its cells "published / measured".
        closing: Lines below: how many are reproduced, and the epsilons.
        differing: Places (line, column) of the cells whose verdict is "differs".
        notes: What a reader must know.
    """

    corner: str
    columns: tuple[str, ...]
    lines: tuple[tuple[str, tuple[str, ...]], ...]
    closing: tuple[tuple[str, tuple[str, ...]], ...]
    differing: AbstractSet[tuple[int, int]]
    notes: tuple[str, ...]


def make_grid(rows: Sequence[RowResult], labels: Mapping[str, str]) -> Grid:
    """Arrange lines of a table, a metric of a row each, as a grid.

    Args:
        rows: The lines, in any order.
        labels: What each row's name is called, in the order of the columns; rows without a label
            keep their names and come last.
    """
    groups: dict[str, dict[str, RowResult]] = {name: {} for name in labels}
    for row in rows:
        groups.setdefault(row.name, {})[row.metric] = row
    groups = {name: group for name, group in groups.items() if group}
    metrics = list(dict.fromkeys(row.metric for row in rows))
    corner = _shared_start(metrics, "/_")
    lines = tuple(
        (metric[len(corner) :], tuple(_cell(group.get(metric)) for group in groups.values()))
        for metric in metrics
    )
    differing = {
        (line, column)
        for line, metric in enumerate(metrics)
        for column, group in enumerate(groups.values())
        if metric in group and group[metric].verdict == "differs"
    }
    return Grid(
        corner=f"{corner}*" if corner else "metric",
        columns=tuple(labels.get(name, name) for name in groups),
        lines=lines,
        closing=_closing(groups),
        differing=differing,
        notes=_notes(groups, labels),
    )


def _cell(row: RowResult | None) -> str:
    if row is None:
        return ""
    measured = format_value(row.mean)
    if row.sd is not None:
        measured += f" ± {format_value(row.sd)}"
    return f"{format_value(row.published)} / {measured}"


def _closing(
    groups: Mapping[str, Mapping[str, RowResult]],
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    firsts = [next(iter(group.values())) for group in groups.values()]
    closing = [("reproduced", tuple(_count(group) for group in groups.values()))]
    if any(row.epsilon_simulated is not None or row.epsilon_actual is not None for row in firsts):
        simulated = [format_epsilon(row.epsilon_simulated, None) for row in firsts]
        actual = [format_epsilon(row.epsilon_actual, None) for row in firsts]
        closing += [
            ("epsilon (simulated)", tuple(simulated)),
            ("epsilon (actual)", tuple(actual)),
        ]
    return tuple(closing)


def _count(group: Mapping[str, RowResult]) -> str:
    if any(row.verdict == "diverged" for row in group.values()):
        return "diverged"
    judged = [row for row in group.values() if row.verdict in ("reproduced", "differs")]
    if not judged:
        return next(iter(group.values())).verdict
    return f"{sum(row.verdict == 'reproduced' for row in judged)} of {len(judged)}"


def _notes(
    groups: Mapping[str, Mapping[str, RowResult]], labels: Mapping[str, str]
) -> tuple[str, ...]:
    notes = ["Cells: published / measured; * is out of tolerance."]
    for name, group in groups.items():
        rows = list(group.values())
        first = rows[0]
        seeds = max(len(row.measured) for row in rows)
        parts = [f"row {name}", f"data {first.variant}", f"{seeds} seed{'s' * (seeds != 1)}"]
        sources = [row.source for row in rows if row.source]
        if sources:
            parts.append(f"source: {_shared_start(sources, ',').rstrip(',') or sources[0]}")
        for side, delta in (
            ("simulated", first.delta_simulated),
            ("actual", first.delta_actual),
        ):
            if delta is not None:
                parts.append(f"delta ({side}) {small(delta, 2)}")
        parts += _row_notes(rows)
        notes.append(f"{labels.get(name, name)}: {'; '.join(parts)}")
    return tuple(notes)


def _row_notes(rows: Sequence[RowResult]) -> list[str]:
    """Each note of a column's cells once, and the range of their tolerances."""
    texts = list(dict.fromkeys(text for row in rows for text in row.note.split("; ") if text))
    tolerances = [text for text in texts if text.startswith(_TOLERANCE)]
    others = [text for text in texts if text not in tolerances]
    if len(tolerances) > 1:
        values = sorted((text[len(_TOLERANCE) :] for text in tolerances), key=float)
        tolerances = [f"tolerances {values[0]} to {values[-1]}"]
    return [*tolerances, *others]


def _shared_start(texts: Sequence[str], ends: str) -> str:
    """What all texts begin with, up to and with one of the characters ``ends``; none alone."""
    if len(set(texts)) < 2:
        return ""
    # The first and the last of the sorted texts differ where any two first do.
    first, last = min(texts), max(texts)
    pairs = enumerate(zip(first, last, strict=False))
    length = next((index for index, (a, b) in pairs if a != b), min(len(first), len(last)))
    cut = max(first.rfind(end, 0, length) for end in ends)
    return first[: cut + 1]


def format_grid(grid: Grid, fmt: Literal["md", "latex"]) -> str:
    """Write a grid, ending in a newline, with its notes below.

    Args:
        grid: What to write.
        fmt: "md" for Markdown that is aligned for a terminal, "latex" for a ``table``.
    """
    body = [
        [
            name,
            *(
                cell + " *" * ((line, column) in grid.differing)
                for column, cell in enumerate(cells)
            ),
        ]
        for line, (name, cells) in enumerate(grid.lines)
    ]
    body += [[name, *cells] for name, cells in grid.closing]
    header = [grid.corner, *grid.columns]
    if fmt == "latex":
        return latex_table(header, body, grid.notes)
    return markdown_table(header, body) + "\n" + "\n".join(grid.notes) + "\n"


def markdown_table(header: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Aligned pipes, the first column to the left and the others to the right."""
    lines = [
        [" ".join(cell.split()).replace("|", r"\|") for cell in line] for line in (header, *body)
    ]
    widths = [max(3, *(len(line[column]) for line in lines)) for column in range(len(header))]

    def pipes(cells: Sequence[str]) -> str:
        first = cells[0].ljust(widths[0])
        rest = [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
        return "| " + " | ".join([first, *rest]) + " |"

    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join([pipes(lines[0]), pipes(rule), *map(pipes, lines[1:])]) + "\n"


def latex_table(
    header: Sequence[str], body: Sequence[Sequence[str]], notes: Sequence[str] = ()
) -> str:
    """A ``table`` environment with booktabs rules and notes below."""
    text = [
        r"% needs \usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        rf"\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}",
        r"\toprule",
        " & ".join(latex_escape(cell) for cell in header) + r" \\",
        r"\midrule",
        *(" & ".join(latex_escape(cell) for cell in line) + r" \\" for line in body),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    if notes:
        text.append(r"\par\smallskip\raggedright\footnotesize")
        text += [rf"{latex_escape(note)}\par" for note in notes]
    return "\n".join([*text, r"\end{table}"]) + "\n"
