"""Rows of text, one column under another."""

from __future__ import annotations


def aligned(header: list[str], rows: list[list[str]]) -> list[str]:
    """Columns padded to their widest cell; the first and a last wordy one flush left."""
    cells = [header, *rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    wordy = {0} | ({len(header) - 1} if any(":" in row[-1] for row in rows) else set())
    return [
        "  ".join(
            cell.ljust(width) if column in wordy else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
