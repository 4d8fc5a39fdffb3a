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
    print(shellcode(["pfl-bench"], shell=arguments.shell))
    return 0


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer a shell that asks for completions, and end; else do nothing."""
    if "_ARGCOMPLETE" not in os.environ:  # which the shell's script sets
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
                completer = partial(_completions, names, takes_paths)
                action.completer = completer  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser)


def _completions(
    names: Callable[[], Iterator[str]], takes_paths: bool, prefix: str, **_: object
) -> list[str]:
    """Names, of which argcomplete takes those that begin so, and files where they are allowed."""
    paths = glob.glob(f"{glob.escape(prefix)}*") if takes_paths else ()
    return [*names(), *(f"{path}/" if os.path.isdir(path) else path for path in paths)]


def _bundled(kind: str) -> Iterator[str]:
    from pfl_bench.config.row_files import bundled_configs, kind_of

    root = bundled_configs()
    files = (path for path in sorted(root.rglob("*.yaml")) if kind_of(path) == kind)
    yield from (str(path.relative_to(root)) for path in files)


def _folders() -> Iterator[str]:
    files = (Path(name) for kind in ("row", "view") for name in _bundled(kind))
    yield from map(str, sorted({path.parent for path in files}))


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
    ("run", "config"): partial(_bundled, "row"),
    ("show", "row"): partial(_bundled, "row"),
    ("copy", "row"): partial(_bundled, "row"),
    ("privacy explain", "run"): partial(_bundled, "row"),
    ("privacy tuning", "row"): partial(_bundled, "row"),
    ("table", "folder"): _folders,
    ("list", "below"): _folders,
    ("sweep", "sweep"): partial(_bundled, "sweep"),
    **{(command, "overrides"): _settings for command in OF_ROWS},
    ("data prepare", "task"): partial(_plugins, "PREPARE"),
    ("data download", "task"): partial(_plugins, "PREPARE"),
    ("data generate", "task"): partial(_plugins, "GENERATE"),
    **{
        (f"privacy {action}", "mechanism"): partial(_plugins, "MECHANISM")
        for action in ("calibrate", "epsilon", "solve", "table", "tuning")
    },
}
