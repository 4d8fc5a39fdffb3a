"""Shared by local and Slurm launchers."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pfl_bench.runs.launchers.job import JobRecord, Run
from pfl_bench.types import ConfigError

if TYPE_CHECKING:
    from submitit import Job


_LOG_LEVEL = "SUBMITIT_LOG_LEVEL"


class Launcher(Protocol):
    """Begins jobs and tells how they are.

    Attributes:
        name: Its name on the command line.
        interval: Seconds between two looks at the jobs.
        patience: Seconds that the files of a job which is gone may take to be seen here.
        slots: How many jobs it may be given at a time; None where it keeps a queue itself.
        stop_command: What the user types, before a job's number, to stop it.
    """

    name: str
    interval: float
    patience: float
    slots: int | None
    stop_command: str

    def submit(self, runs: Sequence[Run]) -> list[JobRecord]:
        """Begin a job for each run.

        Raises:
            ConfigError: They were refused, and none was begun.
        """
        ...

    def states(self, records: Sequence[JobRecord]) -> Mapping[JobRecord, str] | None:
        """The jobs that are pending or running, by which; None if that cannot be learnt now."""
        ...

    def job(self, record: JobRecord) -> Job[Any]:
        """The job as submitit's."""
        ...


def require_submitit(launcher: str) -> None:
    """Check that submitit is installed, else ConfigError; import it without its log handlers.

    They would write into the tables on stdout; and to set them up, it closes the handlers of all
    others, absl's stream among them.
    """
    before = os.environ.get(_LOG_LEVEL)
    os.environ[_LOG_LEVEL] = "NOCONFIG"
    try:
        import submitit  # noqa: F401
    except ImportError:
        raise ConfigError(
            f"--launcher {launcher} needs submitit, which is not installed: "
            "pip install 'pfl-bench[cluster]'"
        ) from None
    finally:
        # Jobs inherit it, and their logs are submitit's to write.
        del os.environ[_LOG_LEVEL]
        if before is not None:
            os.environ[_LOG_LEVEL] = before


def new_folder(jobs: Path) -> Path:
    """A folder for the files of one submission, whose jobs' numbers may come again."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    return jobs.absolute() / f"{stamp}-{secrets.token_hex(3)}"


def record_of(launcher: str, job: Job[Any]) -> JobRecord:
    """The record of a job that was submitted here."""
    return JobRecord(launcher, job.job_id, str(job.paths.folder), socket.gethostname())
