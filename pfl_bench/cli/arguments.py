"""Arguments that several commands share; the standard library alone is imported here."""

from __future__ import annotations

import argparse
from typing import Any, TypeAlias

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def path_text(text: str) -> str:
    """A path on the command line; an empty one, as of a variable that is not set, is none."""
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty; give a path, or leave the option out")
    return text


def add_out(
    command: argparse.ArgumentParser, help: str | None, metavar: str = "DIR", **given: Any
) -> None:
    """Give a command ``--out``, with what else ``add_argument`` takes."""
    command.add_argument("--out", metavar=metavar, type=path_text, help=help, **given)


def add_plugins(command: argparse.ArgumentParser) -> None:
    """Give a command ``--plugins``, which may be given several times."""
    command.add_argument(
        "--plugins",
        action="append",
        default=[],
        metavar="DIR",
        type=path_text,
        help="folder of your own plug-ins (DIR/algorithms/NAME.py, DIR/tasks/NAME/task.py, ...)",
    )


def add_columns(command: argparse.ArgumentParser) -> None:
    """Give a command that prints a table ``--columns``."""
    command.add_argument(
        "--columns", metavar="A,B,...", help="these columns alone, in this order, by their headings"
    )


def add_output(command: argparse.ArgumentParser) -> None:
    """Give a command that runs rows ``--quiet``, ``--verbose`` and ``--json``."""
    told = command.add_mutually_exclusive_group()
    told.add_argument(
        "--quiet", action="store_true", help="say nothing beside the numbers, unless it fails"
    )
    told.add_argument(
        "--verbose", action="store_true", help="say every round, and each notice of each run"
    )
    command.add_argument("--json", action="store_true", help="one JSON object on stdout")
