"""Rows of text, one column under another."""

from __future__ import annotations

from collections.abc import Container, Sequence


def aligned(rows: Sequence[Sequence[str]], to_left: Container[int]) -> list[str]:
    """Pad columns to their widest cell.

    Args:
        rows: The heads among them, all of one length, at least one.
        to_left: Places of the columns that are flush left; the others are flush right.

    Returns:
        A line a row, without spaces at its end.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if place in to_left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
