"""Jobs as processes of this machine, a few at a time."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_bench.federated.workers.cores import usable_cores
from pfl_bench.runs.jobs.job import (
    DEVICES,
    JobRecord,
    Launcher,
    LaunchRequest,
    Run,
    RunJob,
    new_folder,
    record_of,
    require_submitit,
)
from pfl_bench.types import ConfigError

if TYPE_CHECKING:
    from submitit import Job

_YEAR_IN_MINUTES = 365 * 24 * 60


class LocalLauncher(Launcher):
    """Processes that go on when the command that began them ends, ``slots`` at once.

    Each job sees the one of ``gpus``, as ``CUDA_VISIBLE_DEVICES`` names them, with the fewest jobs;
    without any, what the command sees. ConfigError if submitit is not installed.
    """

    name = "local"
    interval = 0.5
    patience = 0.0
    stop_command = "kill"
    slots: int

    def __init__(self, jobs: Path, slots: int, gpus: Sequence[str] = ()) -> None:
        require_submitit(self.name)
        self.slots, self._jobs = slots, jobs
        # Kept, so that a process which ends is collected and not taken for one that runs.
        self._begun: dict[JobRecord, Job[Any]] = {}
        self._gpus: dict[str, list[JobRecord]] = {gpu: [] for gpu in gpus}

    def submit(self, runs: Sequence[Run]) -> list[JobRecord]:
        """Begin a process for each run."""
        from submitit import LocalExecutor

        executor = LocalExecutor(new_folder(self._jobs))
        # Two minutes otherwise.
        executor.update_parameters(timeout_min=_YEAR_IN_MINUTES)
        records = []
        for run in runs:
            gpu = self._freest()
            job = executor.submit(RunJob(run, max(1, usable_cores() // self.slots), gpu))
            records.append(record_of(self.name, job))
            self._begun[records[-1]] = job
            if gpu is not None:
                self._gpus[gpu].append(records[-1])
        return records

    def states(self, records: Sequence[JobRecord]) -> Mapping[JobRecord, str]:
        """The jobs whose processes live; all of them are running."""
        return {record: "running" for record in records if self._lives(record)}

    def job(self, record: JobRecord) -> Job[Any]:
        """The job as submitit's."""
        from submitit import LocalJob

        return self._begun.get(record) or LocalJob(record.folder, record.job_id)

    def _freest(self) -> str | None:
        """The GPU with the fewest jobs that live; None without one."""
        for gpu, records in self._gpus.items():
            self._gpus[gpu] = [record for record in records if self._lives(record)]
        return min(self._gpus, key=lambda gpu: len(self._gpus[gpu]), default=None)

    def _lives(self, record: JobRecord) -> bool:
        if record in self._begun:
            return not self._begun[record].done()
        if record.host != socket.gethostname():
            return False
        # A process of the same number may be another's by now; this one names its folder.
        return record.folder in _command_line(record.job_id)


def _command_line(process: str) -> str:
    """The command of a process; "" if there is none, or it has ended."""
    if Path("/proc/self/cmdline").exists():
        try:
            return Path("/proc", process, "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            return ""
    command = ["ps", "-o", "args=", "-p", process]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def build(request: LaunchRequest) -> LocalLauncher:
    """Build the launcher; it has no options, and its queue is the command."""
    for option, given in (("--slurm", request.options), ("--no-wait", not request.waits)):
        if given:
            raise ConfigError(
                f"{option} belongs to --launcher slurm, which keeps a queue; the queue of "
                "--launcher local is the command itself"
            )
    gpus = gpus_for(request.devices)
    return LocalLauncher(request.jobs, request.most or usual_slots(request.cores, gpus), gpus)


def usual_slots(threads: Sequence[int | None], gpus: Sequence[str] = ()) -> int:
    """Number of runs at once where the user does not say: as cores and GPUs allow.

    Threads are those of each run, None for one that takes all cores; each run needs one of
    ``gpus``, if there are any.
    """
    cores = usable_cores()
    fitting = max(1, cores // max((cores if n is None else n for n in threads), default=1))
    return min(fitting, len(gpus) or fitting)


def gpus_for(devices: Iterable[str]) -> list[str]:
    """The GPUs that runs of these devices ("auto", "cuda", "cpu" or "mps") are spread over.

    They are named as in ``CUDA_VISIBLE_DEVICES``.
    """
    if {"auto", "cuda"}.isdisjoint(devices):
        return []
    import torch

    count = torch.cuda.device_count()
    named = [name for name in os.environ.get(DEVICES, "").split(",") if name]
    return (named or [str(number) for number in range(count)])[:count]
