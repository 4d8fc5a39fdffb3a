"""Views: a table of other cells of the runs of another folder's rows, without a second training.

A view is a file ``view.yaml`` in a folder of its own. It names the folder whose rows are run, some
of those rows, and what is published of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

from pydantic import Field

from pfl_bench.config import Expected, Strict
from pfl_bench.row_files import VIEW_NAME, read_typed, rows_below
from pfl_bench.types import ConfigError


class ViewRow(Strict):
    """One row of a view.

    Attributes:
        row: Name of a row of the viewed folder: its file without the suffix.
        expected: The cells that the view shows.
        label: What the table calls the row, such as the paper's "C-R"; null for its name.
    """

    row: str
    expected: Annotated[list[Expected], Field(min_length=1)]
    label: Annotated[str, Field(min_length=1)] | None = None


class View(Strict):
    """A view as its file has it.

    Attributes:
        version: Version of the configuration format.
        view_of: The folder whose rows are run, from the folder of the view's file.
        rows: The rows that the table shows, in its order.
    """

    version: int
    view_of: str
    rows: Annotated[list[ViewRow], Field(min_length=1)]


@dataclass(frozen=True)
class LoadedView:
    """A view whose rows were found.

    Attributes:
        path: Its file.
        folder: The folder whose rows are run.
        rows: The view's rows, each with the file of the row that is run.
    """

    path: Path
    folder: Path
    rows: tuple[tuple[ViewRow, Path], ...]


def load_view(path: Path) -> LoadedView:
    """Read a view and find its rows.

    Args:
        path: A file ``view.yaml``.

    Raises:
        ConfigError: The file is no view, or names a folder or a row that is not there.
    """
    view = read_typed(path, View)
    folder = (path.parent / view.view_of).resolve()
    rows = rows_below(folder) if folder.is_dir() else {}
    if not rows:
        raise ConfigError(
            f"{path}: view_of: '{view.view_of}' is no folder of rows; give the folder's place as "
            f"seen from the view's own, such as ../table1 (looked in {folder})"
        )
    for index, row in enumerate(view.rows):
        if row.row not in rows:
            near = get_close_matches(row.row, rows, n=1, cutoff=0.4)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise ConfigError(
                f"{path}: rows.{index}.row: '{row.row}' is no row of {folder}{hint} "
                f"Rows: {', '.join(rows)}"
            )
    for what, texts in (
        ("row", [row.row for row in view.rows]),
        ("label", [row.label or row.row for row in view.rows]),
    ):
        twice = sorted({text for text in texts if texts.count(text) > 1})
        if twice:
            raise ConfigError(f"{path}: rows: the {what} '{twice[0]}' stands twice; give it once")
    for index, row in enumerate(view.rows):
        metrics = [entry.metric for entry in row.expected]
        twice = sorted({metric for metric in metrics if metrics.count(metric) > 1})
        if twice:
            raise ConfigError(f"{path}: rows.{index}.expected: '{twice[0]}' stands twice")
    return LoadedView(path, folder, tuple((row, rows[row.row]) for row in view.rows))


def view_in(folder: Path) -> Path | None:
    """The view of a folder; None for a folder without one."""
    path = folder / VIEW_NAME
    return path if path.is_file() else None
