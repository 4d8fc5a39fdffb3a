"""Jobs of a Slurm cluster: one array for all runs that are submitted together."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_bench.config.terminal_text import say
from pfl_bench.config.yaml_text import apply_override
from pfl_bench.runs.jobs.job import (
    JobRecord,
    Launcher,
    LaunchRequest,
    Run,
    RunJob,
    new_folder,
    record_of,
    require_submitit,
)
from pfl_bench.types import ConfigError, did_you_mean

if TYPE_CHECKING:
    from submitit import Job, SlurmExecutor

_COMMANDS = ("sbatch", "srun", "squeue", "scontrol")
# A run resumes after each time-out; a run that never reaches a checkpoint must end some time.
_MAX_TIMEOUTS = 50
# What would start several processes on one run's folder, what --jobs says, and the log's place.
_NOT_HERE = ("nodes", "ntasks_per_node", "array_parallelism", "num_gpus", "stderr_to_stdout")
_LISTS = ("setup", "teardown", "srun_args")
_TIME = re.compile(r"(?:(\d+)-)?(\d+(?::\d+){0,2})")


class SlurmLauncher(Launcher):
    """Submits to Slurm, whose queue keeps the jobs.

    All nodes must see the folder ``jobs``. Options are texts ``KEY=VALUE`` of submitit's Slurm
    executor, the value read as YAML; ``time`` is required. ``parallelism`` jobs of one submission
    may run at once, None for Slurm's choice. ConfigError if submitit or Slurm's commands are
    missing, or an option is wrong.
    """

    name = "slurm"
    interval = 10.0
    # Network file systems show files of other nodes after their caches' time.
    patience = 60.0
    slots: int | None = None
    stop_command = "scancel"

    def __init__(self, jobs: Path, options: Sequence[str], parallelism: int | None) -> None:
        require_submitit(self.name)
        missing = [command for command in _COMMANDS if shutil.which(command) is None]
        if missing:
            raise ConfigError(
                f"--launcher slurm: no command {', '.join(missing)} here; run it where jobs are "
                "submitted (a login node of a Slurm cluster), or use --launcher local"
            )
        self._jobs = jobs
        self._parameters = _parameters(options)
        if parallelism is not None:
            self._parameters["array_parallelism"] = parallelism
        self._executor()

    def _executor(self) -> SlurmExecutor:
        from submitit import SlurmExecutor

        executor = SlurmExecutor(new_folder(self._jobs), max_num_timeout=_MAX_TIMEOUTS)
        try:
            executor.update_parameters(**self._parameters)
        except (TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"--slurm: {error}") from None
        return executor

    def submit(self, runs: Sequence[Run]) -> list[JobRecord]:
        """Submit a job for each run, together."""
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        try:
            jobs = self._executor().submit_array([RunJob(run) for run in runs])
        except (FailedJobError, FailedSubmissionError) as error:
            raise ConfigError(
                f"sbatch refused the jobs: {error}; change the --slurm options (now: "
                f"{', '.join(f'{k}={v}' for k, v in self._parameters.items())})"
            ) from None
        return [record_of(self.name, job) for job in jobs]

    def states(self, records: Sequence[JobRecord]) -> Mapping[JobRecord, str] | None:
        """The jobs that are in Slurm's queue; None, said once a look, if it does not answer."""
        if not records:
            return {}
        command = ["squeue", "--me", "--array", "--noheader", "--format=%i|%T"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            say(f"squeue does not answer ({done.stderr.strip()}); waiting")
            return None
        listed = dict(
            line.strip().split("|", 1) for line in done.stdout.splitlines() if "|" in line
        )
        states = {record: listed[record.job_id] for record in records if record.job_id in listed}
        running = ("RUNNING", "COMPLETING")
        return {r: "running" if s in running else "pending" for r, s in states.items()}

    def job(self, record: JobRecord) -> Job[Any]:
        """The job as submitit's."""
        from submitit import SlurmJob

        return SlurmJob(record.folder, record.job_id)


def build(request: LaunchRequest) -> SlurmLauncher:
    """Build the launcher."""
    return SlurmLauncher(request.jobs, request.options, request.most)


def _parameters(options: Sequence[str]) -> dict[str, Any]:
    from submitit import SlurmExecutor

    allowed = sorted(SlurmExecutor._valid_parameters() - set(_NOT_HERE))
    parameters: dict[str, Any] = {"job_name": "pfl-bench"}
    for text in options:
        key, equals, value = text.partition("=")
        if key == "time":
            parameters[key] = _minutes(value)
            continue
        if not equals or key not in allowed:
            hint = did_you_mean(key, allowed, ".", cutoff=0.4)
            raise ConfigError(
                f"--slurm {text}: write KEY=VALUE with a known key{hint} Known: "
                f"{', '.join(allowed)}. A run is one process, --jobs says how many run at once, "
                "and other options of sbatch go into additional_parameters={name: value}"
            )
        apply_override(parameters, text)
        given = parameters[key]
        if key in _LISTS and not (isinstance(given, list) and {*map(type, given)} <= {str}):
            raise ConfigError(
                f"--slurm {text}: {key}: a list of texts, such as {key}=['first', 'second']"
            )
        if key == "additional_parameters" and not isinstance(parameters[key], dict):
            raise ConfigError(f"--slurm {text}: {key}: a mapping, such as {key}={{name: value}}")
    if "time" not in parameters:
        raise ConfigError(
            "--launcher slurm: give each job's time limit by --slurm time=MINUTES or "
            "time=HOURS:MINUTES:SECONDS; a run that reaches it is queued again and resumes"
        )
    return parameters


def _minutes(text: str) -> int:
    """Minutes of a time as sbatch reads it, seconds rounded up."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise ConfigError(
            f"--slurm time={text}: write minutes, MM:SS, HH:MM:SS, or D-HH, D-HH:MM, D-HH:MM:SS"
        )
    parts = [int(part) for part in found[2].split(":")]
    units = (3600, 60, 1) if found[1] or len(parts) == 3 else (60, 1)
    seconds = 86_400 * int(found[1] or 0)
    seconds += sum(part * size for part, size in zip(parts, units, strict=False))
    if seconds < 1:
        raise ConfigError(f"--slurm time={text}: give more than no time")
    return -(-seconds // 60)
