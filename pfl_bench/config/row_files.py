"""Kinds of the YAML files under a folder of rows: a row, a view, a sweep, or a declaration."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

VIEW_NAME = "view.yaml"
SWEEP_FOLDER = "sweeps"
# Declares in which keys the rows of its folder may differ.
DIFFERENCES_NAME = "_differences.yaml"


def kind_of(path: Path) -> Literal["row", "view", "sweep", "declaration"]:
    """Tell what a YAML file holds, by its place: nothing is read."""
    if path.name == DIFFERENCES_NAME:
        return "declaration"
    if path.resolve().parent.name == SWEEP_FOLDER:
        return "sweep"
    return "view" if path.name == VIEW_NAME else "row"


def rows_below(folder: Path) -> dict[str, Path]:
    """Find the rows of a folder and of those in it, by name: the path without the suffix, sorted.

    The ``config.yaml`` of a run folder, which may lie below too, is a record and no row.
    """
    return {
        path.relative_to(folder).with_suffix("").as_posix(): path
        for path in sorted(folder.rglob("*.yaml"))
        if kind_of(path) == "row" and not _is_record(path)
    }


def _is_record(path: Path) -> bool:
    return path.name == "config.yaml" and (path.parent / "environment.json").exists()
