"""Tables of published and measured values, as Markdown, CSV or LaTeX.

Pure functions over rows; ``rows_from_summaries`` makes the rows.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from typing import Literal

from pfl_bench.runs.rows import RowResult as RowResult
from pfl_bench.runs.rows import rows_from_summaries as rows_from_summaries
from privacy.statement.statement import round_up, small

TableFormat = Literal["md", "csv", "latex"]

_HEADER = (
    "row",
    "setting",
    "data",
    "metric",
    "published",
    "measured",
    "difference",
    "verdict",
    "epsilon (simulated)",
    "epsilon (actual)",
)
_NUMERIC = frozenset({4, 5, 6, 8, 9})
_LATEX_ESCAPES = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "{": r"\{",
        "}": r"\}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
    }
)


def format_table(rows: Sequence[RowResult], fmt: TableFormat) -> str:
    """Write a table.

    Args:
        rows: The lines.
        fmt: "md" for Markdown that is aligned for a terminal, "csv" for raw numbers in columns of
            their own, "latex" for a ``table`` with booktabs rules.

    Returns:
        The table, ending in a newline.

    Raises:
        ValueError: ``fmt`` is none of the three.
    """
    if fmt == "md":
        return _markdown(rows)
    if fmt == "csv":
        return _csv(rows)
    if fmt == "latex":
        return _latex(rows)
    raise ValueError(f"fmt is {fmt!r}; allowed are 'md', 'csv' and 'latex'")


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


def format_measured(row: RowResult) -> str:
    """Write mean, standard deviation and number of seeds."""
    if row.mean is None:
        return "-"
    seeds = len(row.measured)
    if row.sd is None:
        return f"{format_value(row.mean)} (1 seed)"
    return f"{format_value(row.mean)} ± {format_value(row.sd)} ({seeds} seeds)"


def footnotes(rows: Sequence[RowResult]) -> tuple[list[str], list[int | None]]:
    """Collect sources and notes, each said once.

    Args:
        rows: The lines.

    Returns:
        The footnotes, and for each line the index into them, None for a line without.
    """
    notes: list[str] = []
    marks: list[int | None] = []
    for row in rows:
        parts = [f"source: {row.source}"] if row.source else []
        text = "; ".join([*parts, *([row.note] if row.note else [])])
        if not text:
            marks.append(None)
            continue
        if text not in notes:
            notes.append(text)
        marks.append(notes.index(text))
    return notes, marks


def _cells(row: RowResult, mark: int | None) -> list[str]:
    """The texts of a line, in the order of the header."""
    verdict = row.verdict if mark is None else f"{row.verdict} [{mark + 1}]"
    return [
        row.name,
        row.setting,
        row.variant,
        row.metric,
        format_value(row.published),
        format_measured(row),
        format_value(row.difference, signed=True),
        verdict,
        format_epsilon(row.epsilon_simulated, row.delta_simulated),
        format_epsilon(row.epsilon_actual, row.delta_actual),
    ]


def _markdown(rows: Sequence[RowResult]) -> str:
    """Aligned pipes, then the footnotes."""
    notes, marks = footnotes(rows)
    lines = [[cell.replace("|", r"\|") for cell in _HEADER]]
    for row, mark in zip(rows, marks, strict=True):
        lines.append([" ".join(cell.split()).replace("|", r"\|") for cell in _cells(row, mark)])
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEADER))]

    def pipes(cells: Sequence[str]) -> str:
        padded = [
            cell.rjust(width) if column in _NUMERIC else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return "| " + " | ".join(padded) + " |"

    rule = [
        "-" * (width - 1) + ":" if column in _NUMERIC else "-" * width
        for column, width in enumerate(widths)
    ]
    text = [pipes(lines[0]), pipes(rule), *(pipes(line) for line in lines[1:])]
    if notes:
        text += ["", *(f"[{index}] {note}" for index, note in enumerate(notes, start=1))]
    return "\n".join(text) + "\n"


def _csv(rows: Sequence[RowResult]) -> str:
    """Raw numbers, a column each; an empty cell is a value that does not exist."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    claims = (_HEADER[8], "delta (simulated)", _HEADER[9], "delta (actual)")
    names = (*_HEADER[:5], "mean", "sd", "seeds", *_HEADER[6:8])
    writer.writerow([*names, *claims, "source", "note"])
    for row in rows:
        cells = [row.name, row.setting, row.variant, row.metric, _raw(row.published)]
        cells += [_raw(row.mean), _raw(row.sd), str(len(row.measured)), _raw(row.difference)]
        cells += [row.verdict, _raw(row.epsilon_simulated), _raw(row.delta_simulated)]
        cells += [_raw(row.epsilon_actual), _raw(row.delta_actual)]
        writer.writerow([*cells, row.source or "", row.note])
    return buffer.getvalue()


def _raw(value: float | None) -> str:
    """The shortest text that reads back as the same number."""
    return "" if value is None else repr(value)


def _latex(rows: Sequence[RowResult]) -> str:
    """A table environment with booktabs rules and footnotes below."""
    notes, marks = footnotes(rows)
    columns = "".join("r" if column in _NUMERIC else "l" for column in range(len(_HEADER)))
    header = [
        cell.replace("epsilon", r"$\varepsilon$") if "epsilon" in cell else cell for cell in _HEADER
    ]
    text = [
        r"% needs \usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        " & ".join(header) + r" \\",
        r"\midrule",
    ]
    for row, mark in zip(rows, marks, strict=True):
        cells = [latex_escape(cell) for cell in _cells(row, None)]
        if mark is not None:
            cells[7] += rf"\textsuperscript{{{mark + 1}}}"
        # A number that starts with its sign is set as one only in math mode.
        for column in _NUMERIC:
            cells[column] = "--" if cells[column] == "-" else _latex_minus(cells[column])
        text.append(" & ".join(cells) + r" \\")
    text += [r"\bottomrule", r"\end{tabular}"]
    if notes:
        text.append(r"\par\smallskip\raggedright\footnotesize")
        for index, note in enumerate(notes, start=1):
            text.append(rf"\textsuperscript{{{index}}} {latex_escape(note)}\par")
    return "\n".join([*text, r"\end{table}"]) + "\n"


def latex_escape(text: str) -> str:
    """Make a text safe outside math mode."""
    return text.translate(_LATEX_ESCAPES)


def _latex_minus(cell: str) -> str:
    """Set a leading sign as an operator."""
    return f"${cell[0]}${cell[1:]}" if cell[:1] in {"-", "+"} else cell
