"""Arguments that several commands share; the standard library alone is imported here."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any, TypeAlias

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add(
    command: argparse._ActionsContainer, words: str, help: str | None = None, **given: Any
) -> None:
    """Give a command an argument: "NAME METAVAR"; an option without metavar or choices is a flag.

    ``given`` is what else ``add_argument`` takes.
    """
    name, _, metavar = words.partition(" ")
    if metavar:
        given["metavar"] = metavar
    elif name.startswith("--") and "choices" not in given:
        given["action"] = given.get("action", "store_true")
    command.add_argument(name, help=help, **given)


def path_text(text: str) -> str:
    """A path on the command line, ~ written out; an empty one, as of an unset variable, is none."""
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty; give a path, or leave the option out")
    return os.path.expanduser(text)


def add_out(
    command: argparse.ArgumentParser, help: str | None, metavar: str = "DIR", **given: Any
) -> None:
    """Give a command ``--out``, with what else ``add_argument`` takes."""
    add(command, f"--out {metavar}", help, type=path_text, **given)


def add_overrides(command: argparse.ArgumentParser, help: str = "wins over the file") -> None:
    """Give a command ``key=value``, any number of times."""
    # argparse calls it required without a default.
    add(command, "overrides key=value", help, nargs="*", default=[])


def add_plugins(command: argparse.ArgumentParser) -> None:
    """Give a command ``--plugins``, which may be given several times."""
    shown = "folder of your own plug-ins (DIR/algorithms/NAME.py, DIR/tasks/NAME/task.py, ...)"
    add(command, "--plugins DIR", shown, action="append", default=[], type=path_text)


def add_columns(command: argparse.ArgumentParser) -> None:
    """Give a command that prints a table ``--columns``."""
    add(command, "--columns A,B,...", "these columns alone, in this order, by their headings")


def add_json(command: argparse.ArgumentParser) -> None:
    """Give a command ``--json``."""
    add(command, "--json", "one JSON object on stdout")


def add_output(command: argparse.ArgumentParser) -> None:
    """Give a command that runs rows ``--quiet``, ``--verbose`` and ``--json``."""
    told = command.add_mutually_exclusive_group()
    add(told, "--quiet", "say nothing beside the numbers, unless it fails")
    add(told, "--verbose", "say every round, and each notice of each run")
    add_json(command)


def check_belongs(owner: str, **given: bool) -> None:
    """Refuse options, by their names with _ for -, that are given without what they belong to."""
    from pfl_bench.types import ConfigError

    for name, is_given in given.items():
        if is_given:
            option = name.replace("_", "-")
            raise ConfigError(f"--{option} belongs to {owner}; give that too, or leave it out")


def check_is_there(arguments: argparse.Namespace) -> None:
    """Check what a command reads before its imports, where these take seconds."""
    if arguments.command == "audit":
        from pfl_bench.files import check_run_folder

        check_run_folder(Path(arguments.run))
    elif arguments.command == "sweep":
        from pfl_bench.config.row_files import locate

        locate(arguments.sweep, folder=False)


def check_new(out: Path, force: bool) -> None:
    """Check that a file is not replaced unasked, nor a device or pipe at all."""
    from pfl_bench.types import UserInputError

    if out.exists() and not out.is_file() and not out.is_dir():
        raise UserInputError(f"--out {out}: is a device or pipe; give the name of a file")
    if os.path.lexists(out) and not force and not out.is_dir():
        raise UserInputError(
            f"--out {out}: exists, and is not overwritten; give another name, or add --force to "
            "replace it"
        )


def check_empty(folder: Path, force: bool) -> None:
    """Check that a path is new or a folder, which has files only if these may be added to."""
    from pfl_bench.types import UserInputError

    if folder.exists() and not folder.is_dir():
        raise UserInputError(f"--figures {folder}: is a file; give a folder, which is made")
    if folder.exists() and any(folder.iterdir()) and not force:
        raise UserInputError(
            f"--figures {folder}: has files already; give another folder, or add --force to write "
            "beside them and replace files of the same name"
        )
