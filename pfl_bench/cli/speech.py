"""Messages of commands while they work. Only the standard library is imported here."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TextIO

from pfl_bench.config.terminal_text import say as say
from pfl_bench.config.terminal_text import visible

if TYPE_CHECKING:
    from pfl_bench.report.table import Table

# Commands that import for seconds, and the argument that names what they read.
_READS = {
    "run": "config",
    "table": "folder",
    "sweep": "sweep",
    "report": "runs",
    "leaderboard": "folders",
    "audit": "run",
    "check-plugin": "folder",
}
# Where a command's answer goes while everything else goes to standard error.
_ANSWERS: ContextVar[TextIO | None] = ContextVar("_ANSWERS", default=None)


@contextlib.contextmanager
def answer_alone() -> Iterator[None]:
    """Within it standard output has the answer alone, and no print of a plug-in or a package."""
    token = _ANSWERS.set(sys.stdout)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        _ANSWERS.reset(token)


@contextlib.contextmanager
def told(arguments: argparse.Namespace) -> Iterator[io.StringIO]:
    """Within it standard error has as much as ``--quiet`` or ``--verbose`` asks for.

    What ``--quiet`` keeps back is given, of which the end is told if the command fails.
    """
    kept = io.StringIO()
    if getattr(arguments, "quiet", False):
        with contextlib.redirect_stderr(kept):
            yield kept
    elif getattr(arguments, "verbose", False):
        from pfl_bench.runs.log import every_line

        with every_line():
            yield kept
    else:
        yield kept


def answer(text: str) -> None:
    """Print what a command was asked for to standard output."""
    write(text, _ANSWERS.get())


def answer_json(value: Any) -> None:
    """Print what a command was asked for as JSON, in one line."""
    from pfl_bench.files import to_json_value

    answer(json.dumps(to_json_value(value), allow_nan=False))


def write(text: str, file: TextIO | None = None) -> None:
    """Print text as it is, but for characters that steer a terminal; None for standard output."""
    print(visible(text), file=file)


def announce(arguments: argparse.Namespace) -> None:
    """Say what a command begins with, before its imports."""
    # Of several processes the first speaks for all.
    if arguments.command not in _READS or os.environ.get("RANK", "0") != "0":
        return
    what = getattr(arguments, _READS[arguments.command])
    if not isinstance(what, str):
        what = what[0] if len(what) == 1 else f"{len(what)} folders"
    say(f"pfl-bench {arguments.command}: reading {what}")


def print_text(text: str) -> None:
    """Print lines of text: broken between words for a person at a terminal, else as they are."""
    text = visible(text)
    if sys.stdout.isatty():
        from pfl_bench.report.terminal import wrapped

        width = shutil.get_terminal_size((80, 24)).columns
        lines = (part for line in text.splitlines() for part in wrapped(line, width, "", "    "))
        text = "\n".join(lines)
    print(text)


def print_table(table: Table, text: str | None = None) -> None:
    """Print a table: as ``text`` in a format that was asked for, for a terminal, or as Markdown."""
    if sys.stdout.isatty():
        width = shutil.get_terminal_size((80, 24)).columns
        text = table.to_terminal(width) if text is None else visible(text)
    print(table.to_markdown() if text is None else text, end="")
