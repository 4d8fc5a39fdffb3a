"""Exceptions: wrong input of the user, and a run that has lost a process."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class UserInputError(ValueError):
    """The user's input is wrong; the message says what, where and how to mend it."""


class ConfigError(UserInputError):
    """A configuration file or a ``key=value`` override is wrong."""


class DataError(UserInputError):
    """A data file is missing, damaged, foreign or contradicts itself."""


class PluginError(UserInputError):
    """A task, algorithm, mechanism or metric of that name cannot be had."""


class RunFolderError(UserInputError):
    """A run folder cannot be used as asked: busy, foreign, read-only, other configuration."""


class WorkerError(RuntimeError):
    """One of a run's processes has died or cannot be reached; the run can be resumed."""


class StoppedError(WorkerError):
    """A run was told to stop, such as by an audit that watches it; it can be resumed."""


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
