"""Arguments of calls from Python: as the command line has them, and checked as it checks them."""

from __future__ import annotations

import contextlib
import io
import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import yaml

from pfl_bench.config.yaml_text import read_yaml
from pfl_bench.files import given_path
from pfl_bench.types import ConfigError, UserInputError
from privacy.errors import PrivacyError

if TYPE_CHECKING:
    from pfl_bench.data.held_task import HeldTask

# What the command line calls an argument of ours. A plug-in's folder may follow.
_ARGUMENTS = (
    (re.compile(r"--plugins ([\w./-]*\w)"), r"plugins=['\1']"),
    (re.compile(r"--(plugins)\b"), r"\1=[...]"),
    (re.compile(r"--(resume|force)\b"), r"\1=True"),
    (re.compile(r"--(out|figures|recompute|seeds)\b"), r"\1="),
)
_ONE_THREAD = threading.RLock()


@contextlib.contextmanager
def in_python() -> Iterator[None]:
    """Within it, messages of errors name arguments of calls, and not options of commands."""
    try:
        yield
    except (UserInputError, PrivacyError) as error:
        error.args = tuple(_renamed(one) if isinstance(one, str) else one for one in error.args)
        raise


def _renamed(text: str) -> str:
    # A command that a message quotes is to be typed as it stands.
    parts = re.split(r"(`pfl-bench [^`]*`)", text)
    for option, argument in _ARGUMENTS:
        parts[::2] = [option.sub(argument, part) for part in parts[::2]]
    return "".join(parts)


def add_folders(folders: Sequence[str | Path]) -> None:
    """Take plug-ins of these folders; see ``folders_of``."""
    from pfl_bench.plugins import add_folder

    for folder in folders_of(folders):
        add_folder(folder)


def folders_of(plugins: Sequence[str | Path]) -> list[Path]:
    """Check that an argument ``plugins`` is a list of paths; a single path is none."""
    if not isinstance(plugins, list | tuple):
        raise UserInputError(f"plugins: {plugins!r:.60} is no list of folders; give [FOLDER, ...]")
    return [given_path(folder, "plugins") for folder in plugins]


@contextlib.contextmanager
def exclusively(show_progress: bool) -> Iterator[None]:
    """Let one thread run at a time: torch's generator is the process's, and so is standard error.

    What a run says to a person there is dropped, unless it is asked for.
    """
    quiet = contextlib.redirect_stderr(io.StringIO())
    with _ONE_THREAD, contextlib.nullcontext() if show_progress else quiet:
        yield


def override_texts(overrides: Mapping[str, Any]) -> list[str]:
    """Overrides as ``key=value``, by dotted key with ``__`` for the dot."""
    return [f"{key.replace('__', '.')}={_as_yaml(key, value)}" for key, value in overrides.items()]


def task_texts(task: HeldTask | Mapping[str, Any] | None, row: Path) -> list[str]:
    """Overrides by which a row trains a task in memory; those of a dict as any; of None none."""
    if task is None or isinstance(task, Mapping):
        return [] if task is None else override_texts({"task": task})
    return override_texts(held(task).overrides(read_yaml(row), row.stem))


def held(task: Any) -> HeldTask:
    """Check that an argument ``task`` is a task in memory."""
    from pfl_bench.data.held_task import HeldTask

    if not isinstance(task, HeldTask):
        raise UserInputError(
            f"task: {task!r:.60} is no task; give what pfl_bench.in_memory_task makes"
        )
    return task


def _as_yaml(key: str, value: Any) -> str:
    """A value as an override's text; numbers keep all digits."""
    try:
        value = _plain(value)
        if isinstance(value, bool | int | str) or value is None:
            return json.dumps(value)
        text: str = yaml.safe_dump(value, default_flow_style=True, width=10**9)
    except yaml.YAMLError as error:
        raise ConfigError(
            f"{key}: {type(value).__name__} is no value of a row, or holds one that is none "
            f"({error}); give numbers, texts, true or false, None, paths, lists or dicts of them"
        ) from None
    except RecursionError:
        raise ConfigError(
            f"{key}: is nested too deep, or holds itself; give a flatter value"
        ) from None
    return text.removesuffix("...\n").rstrip("\n")


def _plain(value: Any) -> Any:
    """A value as YAML has it: of numpy and torch, what they hold; a path is its text."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, PurePath):
        return str(value)
    # numpy.generic, numpy.ndarray and torch.Tensor, without importing either.
    return value.tolist() if hasattr(value, "tolist") else value
