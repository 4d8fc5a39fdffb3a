"""Files of rows, on disk or bundled: their kinds, and the bundled rows that one claims to be."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pfl_bench.config.yaml_text import read_yaml
from pfl_bench.types import ConfigError, did_you_mean

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
        if kind_of(path) == "row"
        and not (path.name == "config.yaml" and (path.parent / "environment.json").exists())
    }


_HOME = Path(__file__).resolve().parent.parent


def bundled_configs() -> Path:
    """The folder of bundled rows: inside an installed package, or beside it in a checkout."""
    installed = _HOME / "bundled_configs"
    return installed if installed.is_dir() else _HOME.parent / "configs"


def locate(name: str, folder: bool) -> Path:
    """Find a row file or a folder of rows, by a path.

    It may be one inside the bundled rows, such as "demo", "demo/central.yaml" or "demo/central".
    """
    path = Path(name)
    inner, root = name.removeprefix("configs/"), bundled_configs()
    candidates = [path, root / inner]
    if folder and any(candidates[1].glob("*.yaml")) and not any(path.glob("*.yaml")):
        del candidates[0]  # such as results of that table
    for candidate in candidates:
        # A pipe or device is found too, and refused by what reads it.
        if candidate.exists() and candidate.is_dir() is folder:
            return candidate
    # As ``--only`` and run folders call a row: by its name, without the suffix.
    whole = root / f"{inner}.yaml"
    if not folder and whole.is_file():
        return whole
    if name and any(candidate.exists() for candidate in candidates):
        if folder:
            raise ConfigError(f"{name} is a file, no folder; `pfl-bench run {name}` runs it")
        if (path / "environment.json").exists():
            raise ConfigError(
                f"{name} is a run's folder, no row; `pfl-bench report {name}` shows it"
            )
        shown = f", and `pfl-bench report {name}` shows the runs in it" if path.exists() else ""
        raise ConfigError(f"{name} is a folder, no row; `pfl-bench table {name}` runs it{shown}")
    bundled = [
        row.relative_to(root) for row in root.rglob("*.yaml") if kind_of(row) != "declaration"
    ]
    beside = path.parent.glob("*/*.yaml" if folder else "*.yaml")
    known = sorted({str(row.parent if folder else row) for row in [*bundled, *beside]})
    hint = did_you_mean(inner, known, ".", cutoff=0.4 if folder else 0.6, most=5)
    kind, listed = ("folder of rows", "tables") if folder else ("row file", "rows")
    raise ConfigError(
        f"{name}: no such {kind}{hint} `pfl-bench list {listed}` shows all that are bundled"
    )


def locate_row(name: str) -> Path:
    """Find the file of one row, no sweep, view or declaration; see ``locate``."""
    path = locate(name, folder=False)
    kind = kind_of(path)
    if kind == "row" and not {"task", "model"} & (keys := read_yaml(path).keys()):
        kind = "sweep" if {"row", "grid"} <= keys else "view" if "rows" in keys else "row"
    if kind != "row":
        command = f"sweep {path}" if kind == "sweep" else f"table {path.parent}"
        named = (
            "" if kind != "view" or path.name == VIEW_NAME else f" once it is called {VIEW_NAME}"
        )
        raise ConfigError(f"{path} is a {kind}, not a row; run it by `pfl-bench {command}`{named}")
    return path


def is_row(name: str) -> bool:
    """Tell whether a name is that of a row's file, on disk or bundled."""
    inner = bundled_configs() / name.removeprefix("configs/")
    return any(
        path.is_file() for path in (Path(name), inner, inner.with_name(f"{inner.name}.yaml"))
    )


def claimed_rows(path: Path, tree: Mapping[str, Any]) -> list[Path]:
    """Find the bundled rows that a configuration, read from a file, claims to be.

    They have its name or, where none has, the source of one of its expected numbers. A bundled row
    itself claims none.
    """
    if path.resolve().is_relative_to(bundled_configs().resolve()):
        return []
    name = str(tree.get("name"))
    named = [row for row in _with("name", name) if read_yaml(row).get("name") == name]
    if named:
        return named
    sources = _sources(tree)
    found = dict.fromkeys(row for source in sources for row in _with("source", source))
    return [row for row in found if not sources.isdisjoint(_sources(read_yaml(row)))]


def _sources(tree: Mapping[str, Any]) -> set[str]:
    entries = [entry for entry in tree.get("expected") or () if isinstance(entry, Mapping)]
    return {str(entry["source"]) for entry in entries if entry.get("source")}


def _with(key: str, value: str) -> list[Path]:
    """The bundled rows whose text seems to have the key with the value: few are worth parsing."""
    words = re.escape(" ".join(value.split()))
    pattern = re.compile(rf"(?:^| ){key}: (?:>-? |[\"'])?{words}(?:[\"' ]|$)")
    return [row for row, text in _texts(bundled_configs()).items() if pattern.search(text)]


@cache
def _texts(folder: Path) -> dict[Path, str]:
    """The rows' texts by their files, each run of white space as one space."""
    rows = rows_below(folder).values()
    return {row: " ".join(row.read_text(encoding="utf-8").split()) for row in rows}
