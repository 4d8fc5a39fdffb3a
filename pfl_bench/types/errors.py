"""Exceptions: wrong input of the user, and a run that has lost a process; plug-ins' returns."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, TypeVar

_T = TypeVar("_T")


class UserInputError(ValueError):
    """The user's input is wrong; the message says what, where and how to mend it."""


class ConfigError(UserInputError):
    """A configuration file or a ``key=value`` override is wrong."""


class DataError(UserInputError):
    """A data file is missing, damaged, foreign or contradicts itself."""


class PluginError(UserInputError):
    """A task, algorithm, mechanism or metric cannot be had, or returns what it must not."""


class RunFolderError(UserInputError):
    """A run folder cannot be used as asked: busy, foreign, read-only, other configuration."""


class WorkerError(RuntimeError):
    """One of a run's processes has died or cannot be reached; the run can be resumed."""


class StoppedError(WorkerError):
    """A run was told to stop, such as by an audit that watches it; it can be resumed."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: Python's own, a GPU's, or that for a tensor of torch's on a CPU."""
    # Of torch, which may not be loaded; it has no class for the last.
    is_of_torch = type(error).__name__ == "OutOfMemoryError" or "DefaultCPUAllocator" in str(error)
    return isinstance(error, MemoryError) or is_of_torch


def is_of_user(part: Any) -> bool:
    """Whether a class or function is of a user's plug-in, and not of this distribution."""
    # The modules of users' folders are submodules of ours: see ``pfl_bench.plugins``.
    module = part.__module__
    ours = ("pfl_bench.", "privacy.", "tasks.")
    return module.startswith("pfl_bench.plugins.") or not module.startswith(ours)


def place_of(owner: object, method: str) -> str:
    """File and name of a method of a plug-in's object, or of a function of its module."""
    where: Any = owner if inspect.ismodule(owner) else type(owner)
    return f"{inspect.getsourcefile(where)}: {where.__name__}.{method}"


def returned(owner: object, method: str, found: _T, kind: type, shape: tuple[int, ...] = ()) -> _T:
    """The value that a plug-in's method has returned.

    PluginError if it is not of this kind or, unless empty, shape.
    """
    own = tuple(getattr(found, "shape", ()))
    if isinstance(found, kind) and (not shape or own == shape):
        return found
    of, wanted = (f" of shape {tuple(one)}" if one else "" for one in (own, shape))
    raise PluginError(
        f"{place_of(owner, method)} returns a {type(found).__name__}{of}, but must return a "
        f"{kind.__name__}{wanted}"
    )


def did_you_mean(
    wrong: object,
    known: Iterable[str],
    otherwise: str = "",
    cutoff: float = 0.6,
    most: int = 1,
) -> str:
    """Ask for the nearest names, in the middle of a message.

    Args:
        wrong: What was given; anything but a text is near nothing.
        known: The names that there are.
        otherwise: What to say where none is near.
        cutoff: How alike two names must be, from 0 to 1.
        most: How many are told.
    """
    near = get_close_matches(wrong, list(known), most, cutoff) if isinstance(wrong, str) else []
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else otherwise
