"""Bundled rows whose published numbers a configuration takes for its own, by name or source."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pfl_bench.config.bundled_rows import bundled_configs
from pfl_bench.config.row_files import rows_below
from pfl_bench.config.yaml_text import read_yaml


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
