"""One run as a job: what it executes, its record, by which it is found again, its launcher."""

from __future__ import annotations

import os
import re
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_bench.files import parse_json, read_text, write_json
from pfl_bench.types import ConfigError

if TYPE_CHECKING:
    from submitit import Job
    from submitit.helpers import DelayedSubmission

_RECORD = ".job.json"
_RESULT = "_0_result.json"
_JOB_ID = re.compile(r"[0-9]+(_[0-9]+)?")
DEVICES = "CUDA_VISIBLE_DEVICES"
_LOG_LEVEL = "SUBMITIT_LOG_LEVEL"


@dataclass(frozen=True)
class Run:
    """A run to complete, as a job if it is not finished; its folder tells it from others.

    Attributes:
        train: Runs or resumes it; returns None, or why the user's input is refused. It is pickled.
        is_finished: Whether the folder holds it finished. Raises UserInputError where the folder
            cannot be used for it.
    """

    folder: Path
    train: Callable[[], str | None]
    is_finished: Callable[[], bool]


@dataclass(frozen=True)
class Failure:
    """Reason why a run is not finished, for the user.

    ``log`` is the file with the job's own words, None where no job was begun; ``is_input`` tells
    refused input from a job that was cut off or broke.
    """

    reason: str
    log: Path | None
    is_input: bool


@dataclass(frozen=True)
class JobRecord:
    """Record, kept in a run's folder, by which its job is found again.

    ``job_id`` is of Slurm, or of the local process that watches over it; ``folder`` that of its
    files: submission, result, log; ``host`` the machine that submitted it.
    """

    launcher: str
    job_id: str
    folder: str
    host: str

    @property
    def result(self) -> Path:
        """File of what the job came to."""
        return Path(self.folder) / f"{self.job_id}{_RESULT}"

    @property
    def log(self) -> Path:
        """File of what the job says."""
        return Path(self.folder) / f"{self.job_id}_0_log.err"

    def write(self, run_folder: Path) -> None:
        """Keep the record in the run's folder, which is made when missing."""
        run_folder.mkdir(parents=True, exist_ok=True)
        write_json(run_folder / _RECORD, asdict(self))


def read_record(run_folder: Path, jobs: Path) -> JobRecord | None:
    """The record of a run's last job; None if it never had one.

    A record that points to elsewhere than ``jobs``, the folder of all jobs' files, is none from
    here.
    """
    try:
        record = JobRecord(**parse_json(read_text(run_folder / _RECORD)))
        is_ours = Path(record.folder).resolve().is_relative_to(jobs.resolve())
        return record if is_ours and _JOB_ID.fullmatch(record.job_id) else None
    except (OSError, ValueError, TypeError):
        # Written whole or not at all: what does not read is not ours, and names no job.
        return None


def read_result(record: JobRecord) -> Failure | None:
    """Result of an ended job, which may be long ago: None for a finished run.

    No pickle is read, for reading one runs what is in it.
    """
    try:
        found = parse_json(read_text(record.result))
        reason, is_input = found["reason"], found["is_input"]
    except (OSError, ValueError, TypeError, KeyError):
        return Failure("the job broke; its log says where", record.log, is_input=False)
    return None if reason is None else Failure(str(reason), record.log, bool(is_input))


class RunJob:
    """The function that a job executes, in the folder and on the devices of the submitting command.

    "auto" may take ``cores`` for worker processes, None for all; ``gpu``, the one that it sees, is
    as ``CUDA_VISIBLE_DEVICES`` names it, None for the command's.
    """

    def __init__(self, run: Run, cores: int | None = None, gpu: str | None = None) -> None:
        self._train = run.train
        self._cores = cores
        self._cwd = Path.cwd()
        self._command = sys.argv
        self._devices = os.environ.get(DEVICES) if gpu is None else gpu

    def __call__(self) -> None:
        """Run or resume, and leave beside the job's files why the run is not finished, if so."""
        from submitit import JobEnvironment

        environment = JobEnvironment()
        result = environment.paths.folder / f"{environment.job_id}{_RESULT}"
        result.unlink(missing_ok=True)
        try:
            reason = self._run()
        except Exception as error:
            text = f"the job broke: {type(error).__name__}: {error}".splitlines()[0]
            write_json(result, {"reason": text, "is_input": False})
            raise
        write_json(result, {"reason": reason, "is_input": True})

    def _run(self) -> str | None:
        os.chdir(self._cwd)
        # The run's environment.json tells the command that the user gave.
        sys.argv = self._command
        if os.environ.get("SUBMITIT_EXECUTOR") == "local":
            # The local executor hides all devices and has its jobs survive SIGTERM.
            os.environ.pop(DEVICES, None)
            if self._devices is not None:
                os.environ[DEVICES] = self._devices
            signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
        if self._cores is not None:
            from pfl_bench.federated.workers.cores import limit_cores

            limit_cores(self._cores)
        return self._train()

    def checkpoint(self) -> DelayedSubmission:
        """The job to submit again after preemption or time-out: the same, which resumes."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


@dataclass(frozen=True)
class LaunchRequest:
    """The command's wishes, of which a launcher is built.

    Attributes:
        jobs: Folder of the files of all jobs.
        most: Jobs at once, of ``--jobs``, at least 1; None for the launcher's choice.
        options: Texts ``KEY=VALUE``, of ``--slurm`` and ``--launcher-option``.
        waits: Whether the command waits for the jobs.
        cores: Of each run: cores that it takes beside others, None for all.
        devices: Of each run: "auto", "cuda", "cpu" or "mps".
    """

    jobs: Path
    most: int | None
    options: Sequence[str]
    waits: bool
    cores: Sequence[int | None]
    devices: Sequence[str]

    def __post_init__(self) -> None:
        if self.most is not None and self.most < 1:
            raise ConfigError(f"--jobs {self.most}: give 1 or more")


class Launcher:
    """Base of launchers, which begin jobs and tell how they are.

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
        raise NotImplementedError

    def states(self, records: Sequence[JobRecord]) -> Mapping[JobRecord, str] | None:
        """The jobs that are pending or running, by which; None if that cannot be learnt now."""
        raise NotImplementedError

    def job(self, record: JobRecord) -> Job[Any]:
        """The job as submitit's."""
        raise NotImplementedError


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
