"""Tables of a given width, for a terminal: texts in columns, without markup."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

_GAP = "  "


@dataclass(frozen=True)
class TextColumn:
    """One column, and each cell's lines; one of numbers is flush right and never broken."""

    heading: str
    cells: Sequence[Sequence[str]]
    is_number: bool


def side_by_side(columns: Sequence[TextColumn], width: int) -> list[str]:
    """Lines of columns; those that do not fit go on below, beside the first column again."""
    limit = max(8, (width - len(_GAP)) // 2)
    boxes = [_box(column, limit) for column in columns]
    lines: list[str] = []
    place = 1
    while place < len(boxes) or not lines:
        block, used = [boxes[0]], len(boxes[0][0][0])
        while place < len(boxes):
            more = len(_GAP) + len(boxes[place][0][0])
            if used + more > width and len(block) > 1:
                break
            block.append(boxes[place])
            used += more
            place += 1
        lines += [""] if lines else []
        lines += _rows(block)
    return lines


def one_below_another(pairs: Sequence[tuple[str, str]], width: int) -> list[str]:
    """Lines of at most ``width`` characters of headings and values, the values flush."""
    indent = max((len(heading) for heading, _ in pairs), default=0) + len(_GAP)
    return [
        line
        for heading, text in pairs
        for line in wrapped(text, width, f"{heading:{indent}}", " " * indent)
    ]


def wrapped(text: str, width: int, first: str = "", indent: str = "") -> list[str]:
    """Break a text between words."""
    return textwrap.wrap(
        text, max(width, len(indent) + 20), initial_indent=first, subsequent_indent=indent
    ) or [first.rstrip()]


def _box(column: TextColumn, limit: int) -> list[list[str]]:
    bodies = [list(cell) for cell in column.cells]
    if not column.is_number:
        bodies = [
            [s for text in cell for s in textwrap.wrap(text, limit) or [""]] for cell in bodies
        ]
    longest = [len(word) for word in column.heading.split()]
    longest += [len(line) for body in bodies for line in body]
    width = max(longest, default=1)
    cells = [textwrap.wrap(column.heading, width) or [""], *bodies]
    flush = str.rjust if column.is_number else str.ljust
    return [[flush(line, width) for line in cell] or [" " * width] for cell in cells]


def _rows(block: Sequence[Sequence[Sequence[str]]]) -> list[str]:
    widths = [len(box[0][0]) for box in block]
    lines: list[str] = []
    for place, cells in enumerate(zip(*block, strict=True)):
        texts = zip_longest(*cells, fillvalue="")
        lines += [_GAP.join(map(str.ljust, line, widths)).rstrip() for line in texts]
        if place == 0:
            lines.append(_GAP.join("-" * width for width in widths))
    return lines
