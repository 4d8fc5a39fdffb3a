"""A table as data, and as Markdown, LaTeX, CSV, plain text and HTML."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any, Literal

from pfl_bench.config.terminal_text import visible
from pfl_bench.files import to_json_value
from pfl_bench.report.escaping import csv_value, latex_escape, one_line
from pfl_bench.report.terminal import TextColumn, one_below_another, side_by_side, wrapped
from pfl_bench.types import ConfigError, did_you_mean

TableFormat = Literal["md", "csv", "latex"]
Reader = Literal["people", "programs"]

# A number that starts with its sign is set as one only in math mode.
_SIGN = re.compile(r"^([-+])(?=\d)")
# A Markdown rule has three dashes at least.
_NARROWEST = 3


@dataclass(frozen=True)
class Column:
    """One column, for all or only for "people" (CSV lacks it) or "programs" (CSV alone has it).

    ``choose`` knows it by its alias too, which people read above it if ``shows_alias``.
    """

    heading: str
    is_number: bool = False
    only: Literal["people", "programs"] | None = None
    alias: str = ""
    shows_alias: bool = False


@dataclass(frozen=True)
class Cell:
    """A cell that is more than one text; ``note`` is the number, from 1, of the table's note on it.

    CSV has the value: a number as the shortest text that reads back the same; None for nothing. The
    detail follows in parentheses; on a page it stands below, then ``page_detail``, and a
    ``page_text`` takes the text's place.
    """

    text: str
    value: Any = None
    detail: str = ""
    page_detail: str = ""
    page_text: str | None = None
    style: str = ""
    note: int | None = None

    @property
    def full_text(self) -> str:
        """Text and detail."""
        return f"{self.text} ({self.detail})" if self.detail else self.text


@dataclass(frozen=True)
class Table:
    """One table; a plain text is a cell of that value. ``is_chosen``: all columns are kept."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str | Cell, ...], ...]
    notes: tuple[str, ...] = ()
    has_numbered_notes: bool = False
    title: str = ""
    is_chosen: bool = False

    @classmethod
    def of(
        cls,
        headings: Sequence[str],
        rows: Sequence[Sequence[str | Cell]],
        to_left: Collection[int] = (0,),
        notes: Sequence[str] = (),
    ) -> Table:
        """Make a table for everybody, flush right but in the columns ``to_left`` (their places)."""
        columns = tuple(Column(text, place not in to_left) for place, text in enumerate(headings))
        return cls(columns, tuple(map(tuple, rows)), tuple(notes))

    @property
    def headings(self) -> tuple[str, ...]:
        """All headings."""
        return tuple(column.heading for column in self.columns)

    def write(self, fmt: TableFormat) -> str:
        """Write the table in one of the formats of the command line, ending in a newline."""
        writers = {"md": self.to_markdown, "csv": self.to_csv, "latex": self.to_latex}
        if fmt not in writers:
            raise ValueError(f"fmt is {fmt!r}; allowed are 'md', 'csv' and 'latex'")
        return writers[fmt]()

    def to_markdown(self) -> str:
        """Pipes that are aligned for a terminal, then the notes."""
        columns = self._columns("people")
        lines = [
            [one_line(text).replace("|", r"\|") for text in line]
            for line in self._texts(marked=True)
        ]
        widths = [max(_NARROWEST, *map(len, column)) for column in zip(*lines, strict=True)]
        rule = [
            "-" * (width - 1) + ":" if column.is_number else "-" * width
            for column, width in zip(columns, widths, strict=True)
        ]
        padded = [_padded(line, columns, widths) for line in lines]
        text = [f"| {' | '.join(line)} |" for line in (padded[0], rule, *padded[1:])]
        notes = list(map(one_line, self._numbered_notes()))
        return "\n".join([*text, *([""] if notes else []), *notes]) + "\n"

    def choose(self, names: Sequence[str], reader: Reader = "people") -> Table:
        """The table with these headings of a ``reader`` alone; another one is a ConfigError."""
        own = [(c, place) for place, c in enumerate(self.columns) if c.only in (None, reader)]
        places = {column.heading: place for column, place in own}
        aliases = {column.alias: place for column, place in own if column.alias}
        for name in names:
            if name not in places and name not in aliases:
                raise ConfigError(
                    f"--columns: '{name}' is no column of this table"
                    f"{did_you_mean(name, places, '.')} Columns: {', '.join(places)}"
                )
        chosen = [(aliases | places)[name] for name in names]
        return replace(
            self,
            is_chosen=True,
            columns=tuple(self.columns[place] for place in chosen),
            rows=tuple(_chosen(row, chosen) for row in self.rows),
        )

    def with_columns(self, columns: str | None, fmt: TableFormat | None) -> Table:
        """The table as ``--columns`` wants it: headings between commas, or None for all."""
        if columns is None:
            return self
        names = [name.strip() for name in columns.split(",")]
        return self.choose(names, "programs" if fmt == "csv" else "people")

    def split_constants(self) -> tuple[Table, list[tuple[str, str]]]:
        """The table without columns that do not vary, and these: headings with their one text.

        The first column stays, and all of a table of one row; columns without a value go.
        """
        headings, *lines = self._texts(marked=True)
        if len(lines) < 2:
            return self, []
        varying, constants = headings[:1], []
        for heading, texts in list(zip(headings, zip(*lines, strict=True), strict=True))[1:]:
            if len(set(texts)) > 1:
                varying.append(heading)
            elif texts[0] not in ("", "-"):
                constants.append((heading, texts[0]))
        return self.choose(varying), constants

    def to_terminal(self, width: int = 80) -> str:
        """Lines of at most so many characters, then the notes; ends in a newline.

        What does not vary is said once above; a table of one row is a line a column.
        """
        table, constants = self.split_constants()
        lines = [line for pair in constants for line in wrapped(": ".join(pair), width)]
        lines += [""] if lines else []
        headings, *rows = table._texts(marked=True)
        if len(rows) == 1:
            lines += one_below_another(list(zip(headings, rows[0], strict=True)), width)
        else:
            bodies = zip(*table._cells("people"), strict=True)
            pairs = zip(table._columns("people"), bodies, strict=True)
            lines += side_by_side([_text_column(column, body) for column, body in pairs], width)
        lines += [""] if self.notes else []
        for note in self._numbered_notes():
            lines += wrapped(note, width, indent="    " if self.has_numbered_notes else "")
        return visible("\n".join(lines)) + "\n"

    def _numbered_notes(self) -> list[str]:
        numbered = enumerate(self.notes, start=1) if self.has_numbered_notes else ()
        return [f"[{number}] {note}" for number, note in numbered] or list(self.notes)

    def to_text(self) -> str:
        """Columns two spaces apart, without notes and without a newline at the end."""
        columns, lines = self._columns("people"), list(self._texts())
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        padded = ("  ".join(_padded(line, columns, widths)).rstrip() for line in lines)
        return visible("\n".join(padded))

    def to_csv(self) -> str:
        """Raw numbers; an empty cell is a value that does not exist."""
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow([column.heading for column in self._columns("programs")])
        for line in self._cells("programs"):
            writer.writerow([csv_value(cell.value) for cell in line])
        return buffer.getvalue()

    def to_records(self) -> list[dict[str, Any]]:
        """The same, a dict a row, by heading; None is a value that does not exist."""
        headings = [column.heading for column in self._columns("programs")]
        lines = (
            [None if cell.value == "" else to_json_value(cell.value) for cell in line]
            for line in self._cells("programs")
        )
        return [dict(zip(headings, line, strict=True)) for line in lines]

    def to_latex(self) -> str:
        """A ``table`` environment no wider than the page: booktabs rules, caption, notes below."""
        table, constants = (self, []) if self.is_chosen else self.split_constants()
        columns = table._columns("people")
        header, *lines = [[latex_escape(text) for text in line] for line in table._texts()]
        header = [text.replace("epsilon", r"$\varepsilon$") for text in header]
        for line, cells in zip(lines, table._cells("people"), strict=True):
            for place, (column, cell) in enumerate(zip(columns, cells, strict=True)):
                if column.is_number:
                    line[place] = "--" if line[place] == "-" else _SIGN.sub(r"$\1$", line[place])
                if cell.note:
                    line[place] += rf"\textsuperscript{{{cell.note}}}"
        label = re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-") or "results"
        text = [
            r"% needs \usepackage{booktabs,adjustbox}",
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_caption(self.title, constants)}}}",
            rf"\label{{tab:{label}}}",
            r"\begin{adjustbox}{max width=\textwidth}",
            rf"\begin{{tabular}}{{{''.join('r' if c.is_number else 'l' for c in columns)}}}",
            r"\toprule",
            " & ".join(header) + r" \\",
            r"\midrule",
            *(" & ".join(line) + r" \\" for line in lines),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{adjustbox}",
        ]
        if self.notes:
            text.append(r"\par\smallskip\raggedright\footnotesize")
        for number, note in enumerate(self.notes, start=1):
            mark = rf"\textsuperscript{{{number}}} " if self.has_numbered_notes else ""
            text.append(rf"{mark}{latex_escape(note)}\par")
        return "\n".join([*text, r"\end{table}"]) + "\n"

    def to_html(self) -> str:
        """A ``table`` element for the report's page, without the notes."""
        columns = self._columns("people")
        numbers = [' class="number"' if column.is_number else "" for column in columns]
        header = [escape(column.heading) for column in columns]
        text = ["<table>", "<thead><tr>"]
        text += [f"<th{n}>{title}</th>" for n, title in zip(numbers, header, strict=True)]
        text += ["</tr></thead>", "<tbody>"]
        for line in self._cells("people"):
            text.append("<tr>")
            for cell, number, title in zip(line, numbers, header, strict=True):
                text.append(f'<td data-label="{title}"{number}{_key(cell)}>{_html(cell)}</td>')
            text.append("</tr>")
        return "\n".join([*text, "</tbody>", "</table>"])

    def _columns(self, reader: Reader) -> list[Column]:
        columns = [column for column in self.columns if column.only in (None, reader)]
        if reader == "programs":
            return columns
        return [replace(c, heading=c.alias) if c.shows_alias else c for c in columns]

    def _cells(self, reader: Reader) -> Iterator[list[Cell]]:
        for row in self.rows:
            pairs = zip(self.columns, row, strict=True)
            cells = [cell for column, cell in pairs if column.only in (None, reader)]
            yield [Cell(cell, cell) if isinstance(cell, str) else cell for cell in cells]

    def _texts(self, marked: bool = False) -> Iterator[list[str]]:
        """Headings, then rows, as people read them; marked: with the numbers of their notes."""
        yield [column.heading for column in self._columns("people")]
        for line in self._cells("people"):
            yield [_marked(cell.full_text, cell) if marked else cell.full_text for cell in line]


def _padded(texts: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> list[str]:
    return [
        text.rjust(width) if column.is_number else text.ljust(width)
        for text, column, width in zip(texts, columns, widths, strict=True)
    ]


def _chosen(row: Sequence[str | Cell], places: Sequence[int]) -> tuple[str | Cell, ...]:
    """The cells at these places; the first has the note of one that is left out."""
    cells = [row[place] for place in places]
    notes = [one.note for one in row if isinstance(one, Cell) and one.note and one not in cells]
    if notes and cells:
        first = cells[0] if isinstance(cells[0], Cell) else Cell(cells[0], cells[0])
        cells[0] = replace(first, note=notes[0])
    return tuple(cells)


def _marked(text: str, cell: Cell) -> str:
    return f"{text} [{cell.note}]" if cell.note else text


def _text_column(column: Column, cells: Sequence[Cell]) -> TextColumn:
    """A column for a terminal: details below the texts, or in the heading where all are equal."""
    details = [cell.detail for cell in cells if cell.text not in ("", "-")]
    shared = details[0] if len(details) > 1 and len(set(details)) == 1 else ""
    heading = f"{column.heading} ({shared})" if shared else column.heading
    bodies = [
        [_marked(cell.text, cell), *([cell.detail] if cell.detail not in ("", shared) else [])]
        for cell in cells
    ]
    return TextColumn(heading, bodies, column.is_number)


def _html(cell: Cell) -> str:
    text = escape(cell.text if cell.page_text is None else cell.page_text)
    details = (cell.detail, cell.page_detail) if cell.detail else ()
    text += "".join(f"<small>{escape(detail)}</small>" for detail in details if detail)
    text += f" <sup>{cell.note}</sup>" if cell.note else ""
    style = f' class="{cell.style}"' if cell.style else ""
    return f"<span{style}>{text}</span>"


def _key(cell: Cell) -> str:
    """Value by which a page sorts, where the text is not the cell's value."""
    return f' data-key="{cell.value}"' if isinstance(cell.value, int | float) else ""


def _caption(title: str, constants: Sequence[tuple[str, str]]) -> str:
    same = "; ".join(f"{heading} {text}" for heading, text in constants)
    text = ". ".join(filter(None, (title or "Results", same)))
    return latex_escape(text).replace("epsilon", r"$\varepsilon$") + "."
