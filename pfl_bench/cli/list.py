"""``pfl-bench list``: what there is, a line each. ``pfl-bench copy``: a row to a file."""

from __future__ import annotations

import argparse
import ast
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pfl_bench import plugins
from pfl_bench.cli.main import attempt
from pfl_bench.cli.speech import answer_json, say, write
from pfl_bench.config.row_files import bundled_configs, kind_of, locate, locate_row, rows_below
from pfl_bench.config.yaml_text import read_yaml
from pfl_bench.files import read_text, write_atomically
from pfl_bench.types import ConfigError, PluginError

# What is listed, by the words of the command line.
LISTED = {
    "tasks": plugins.TASK,
    "algorithms": plugins.ALGORITHM,
    "mechanisms": plugins.MECHANISM,
    "metrics": plugins.METRIC,
    "selectors": plugins.SELECTION,
    "devices": plugins.DEVICES,
    "aggregations": plugins.AGGREGATION,
    "compressions": plugins.COMPRESSION,
    "attacks": plugins.ATTACK,
    "engines": plugins.ENGINE,
    "trackers": plugins.TRACKER,
    "launchers": plugins.LAUNCHER,
}


def main(arguments: argparse.Namespace) -> int:
    """List plug-ins, rows or tables, or copy a row."""
    if arguments.command == "copy":
        return _copy(arguments)
    refused: list[str] = []
    if arguments.what is None:
        entries = [{"name": name, "text": text} for name, text in _overview()]
    elif arguments.what == "rows":
        entries = list(rows_listed(arguments.below))
    elif arguments.what == "tables":
        entries = list(_tables())
    else:
        entries, refused = _plugins(LISTED[arguments.what])
    for text in refused:
        say(f"left out: {text}")
    if arguments.json:
        answer_json({arguments.what or "kinds": entries})
        return 1 if refused else 0
    width = max((len(entry["name"]) for entry in entries), default=0)
    columns = shutil.get_terminal_size((80, 24)).columns
    for entry in entries:
        text = entry["text"]
        if sys.stdout.isatty():
            text = textwrap.shorten(text, max(20, columns - width - 2), placeholder="...")
        write(f"{entry['name']:{width}}  {text}".rstrip())
    return 1 if refused else 0


def _overview() -> Iterator[tuple[str, str]]:
    for what, kind in LISTED.items():
        names = plugins.available(kind)
        yield what, f"{len(names)}: {', '.join(names)}"
    folder = bundled_configs()
    yield "rows", f"{len(rows_below(folder))} bundled; pfl-bench list rows [FOLDER] shows them"
    yield "tables", ", ".join(entry["name"] for entry in _tables())


def _plugins(kind: plugins.PluginKind) -> tuple[list[dict[str, Any]], list[str]]:
    entries, refused = [], []
    for name in plugins.available(kind):
        found = attempt(_entry, kind, name)
        if isinstance(found, str):
            refused.append(found)
        else:
            entries.append(found)
    return entries, refused


def _entry(kind: plugins.PluginKind, name: str) -> dict[str, Any]:
    """A plug-in's name, and the first line of its docstring, read without importing it."""
    spec = plugins.spec_of(kind, name)
    if spec.origin is None:
        return {"name": name, "text": ""}
    text = read_text(Path(spec.origin))
    if "\0" in text:
        raise PluginError(f"{spec.origin} holds NUL characters, so it is no Python file")
    tree = ast.parse(text, spec.origin)
    return {"name": name, "text": (ast.get_docstring(tree) or "").partition("\n")[0]}


def rows_listed(below: str | None) -> Iterator[dict[str, Any]]:
    """Rows of a folder, or all that are bundled, with their published numbers."""
    root = bundled_configs()
    folder = root if below is None else locate(below, folder=True)
    for path in rows_below(folder).values():
        tree = read_yaml(path)
        published = [
            {"metric": entry["metric"], "value": entry["value"], "source": entry["source"]}
            for entry in tree.get("expected", [])
        ]
        is_bundled = path.is_relative_to(root)
        first = "; ".join(f"{entry['metric']} {entry['value']:g}" for entry in published)
        yield {
            "name": str(path.relative_to(root) if is_bundled else path),
            "text": first or "nothing published",
            "task": tree["task"]["name"],
            "published": published,
        }


def _tables() -> Iterator[dict[str, Any]]:
    """Bundled folders that hold rows or a view themselves."""
    root = bundled_configs()
    for folder in sorted({path.parent for path in root.rglob("*.yaml")}):
        files = list(folder.glob("*.yaml"))
        rows = sum(kind_of(path) == "row" for path in files)
        views = sum(kind_of(path) == "view" for path in files)
        if rows or views:
            text = f"{rows} rows" if rows else "a view of other tables' rows"
            yield {"name": str(folder.relative_to(root)), "text": text}


def _copy(arguments: argparse.Namespace) -> int:
    source, target = locate_row(arguments.row), Path(arguments.file)
    if target.suffix != ".yaml":
        raise ConfigError(f"{target}: a row is a file whose name ends in .yaml; name it so")
    if target.exists() and not arguments.force:
        raise ConfigError(f"{target} exists; give another name, or --force to replace it")
    if not target.parent.is_dir():
        raise ConfigError(f"{target}: there is no folder {target.parent}; make it first")
    text, command = source.read_text(encoding="utf-8"), f"pfl-bench run {shlex.quote(str(target))}"
    first, _, rest = text.partition("\n")
    if first.startswith("# pfl-bench run "):
        text = f"# {command}\n{rest}"
    write_atomically(target, text)
    write(command)
    return 0
