"""``pfl-bench completion``: a shell completes commands, options, bundled rows, tasks and plug-ins.

The names are asked of the program itself as they are completed, so that new ones need no new
script. Only ``complete`` is called by every command, and only where a shell asks.
"""

from __future__ import annotations

import argparse
import glob
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

# Set by the shell's script.
_ASKED = "_ARGCOMPLETE"
_PROGRAM = "pfl-bench"


def main(arguments: argparse.Namespace) -> int:
    """Print the script of a shell."""
    from pfl_bench.types import ConfigError

    try:
        from argcomplete.shell_integration import shellcode
    except ImportError:
        raise ConfigError(
            "pfl-bench completion: the package argcomplete is not installed; install the extra: "
            "pip install 'pfl-bench[completion]'"
        ) from None
    print(shellcode([_PROGRAM], shell=arguments.shell))
    return 0


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer a shell that asks for completions, and end; else do nothing."""
    if _ASKED not in os.environ:
        return
    try:
        import argcomplete
    except ImportError:
        return
    from pfl_bench.cli.examples import commands_of

    for words, command in commands_of(parser):
        for action in command._actions:
            names = _NAMES.get((words, action.dest))
            if names is not None:
                takes_paths = action.dest not in ("task", "mechanism", "overrides")
                completer = _completer(names, takes_paths)
                action.completer = completer  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser)


def _completer(names: Callable[[], Iterator[str]], takes_paths: bool) -> Callable[..., list[str]]:
    """Completions of the word among the names, and among files where paths are allowed."""

    def completions(prefix: str, **_: object) -> list[str]:
        found = [name for name in names() if name.startswith(prefix)]
        if takes_paths:
            paths = glob.glob(f"{glob.escape(prefix)}*")
            found += [f"{path}/" if os.path.isdir(path) else path for path in paths]
        return found

    return completions


def _bundled() -> list[Path]:
    from pfl_bench.config.row_files import bundled_configs

    root = bundled_configs()
    return [path.relative_to(root) for path in sorted(root.rglob("*.yaml"))]


def _rows() -> Iterator[str]:
    for path in _bundled():
        if path.parent.name != "sweeps" and not path.name.startswith(("_", "view")):
            yield str(path)


def _sweeps() -> Iterator[str]:
    yield from (str(path) for path in _bundled() if path.parent.name == "sweeps")


def _folders() -> Iterator[str]:
    folders = {path.parent for path in _bundled() if path.parent.name != "sweeps"}
    yield from map(str, sorted(folders))


def _settings() -> Iterator[str]:
    """Keys of a row, such as ``federated.num_rounds=``."""
    from pfl_bench.config.errors import all_paths
    from pfl_bench.config.schema import RunConfig

    paths = all_paths(RunConfig)
    sections = {path.rpartition(".")[0] for path in paths}
    yield from (f"{path}=" for path in paths if path not in sections)


def _plugins(kind: str) -> Iterator[str]:
    from pfl_bench import plugins

    yield from plugins.available(getattr(plugins, kind))


# Commands whose key=value are settings of rows.
OF_ROWS = ("run", "table", "sweep", "show", "attack", "privacy explain")
_NAMES: dict[tuple[str, str], Callable[[], Iterator[str]]] = {
    ("run", "config"): _rows,
    ("show", "row"): _rows,
    ("copy", "row"): _rows,
    ("privacy explain", "run"): _rows,
    ("privacy tuning", "row"): _rows,
    ("table", "folder"): _folders,
    ("list", "below"): _folders,
    ("sweep", "sweep"): _sweeps,
    **{(command, "overrides"): _settings for command in OF_ROWS},
    ("data prepare", "task"): partial(_plugins, "PREPARE"),
    ("data download", "task"): partial(_plugins, "PREPARE"),
    ("data generate", "task"): partial(_plugins, "GENERATE"),
    **{
        (f"privacy {action}", "mechanism"): partial(_plugins, "MECHANISM")
        for action in ("calibrate", "epsilon", "solve", "table", "tuning")
    },
}
