"""What is raised: wrong input of the user, and a run that has lost a process."""

from __future__ import annotations


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
