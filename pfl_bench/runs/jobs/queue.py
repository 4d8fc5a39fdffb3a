"""Takes runs to their end by jobs, so that nothing runs twice."""

from __future__ import annotations

import contextlib
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from pfl_bench.config.terminal_text import say
from pfl_bench.runs.jobs.job import (
    Failure,
    JobRecord,
    Launcher,
    Run,
    read_record,
    read_result,
)
from pfl_bench.runs.log import finished_before
from pfl_bench.runs.stop import is_busy
from pfl_bench.types import ConfigError, UserInputError, importing_nothing_here

# Seconds that another command may take to submit before it is named.
_PATIENCE = 5.0


def launch(
    runs: Sequence[Run], launcher: Launcher, jobs: Path, wait: bool = True
) -> dict[Path, Failure | None]:
    """Begin a job for every run that is neither finished nor under way, and wait for all.

    Commands that use the folder of the jobs' files, ``jobs``, take turns to submit. Gives by the
    runs' folders None for a finished run, else why it is not; without ``wait``, what is still under
    way is left out. ConfigError if the launcher refused the jobs, KeyboardInterrupt if the user
    does not want to wait; the jobs go on.
    """
    queue = _Queue(runs, launcher, jobs)
    try:
        while queue.advance() and wait:
            time.sleep(launcher.interval)
    except (KeyboardInterrupt, UserInputError):
        queue.tell_how_to_come_back()
        raise
    if not wait:
        queue.tell_how_to_come_back()
    return queue.ended


class _Queue:
    def __init__(self, runs: Sequence[Run], launcher: Launcher, jobs: Path) -> None:
        self.ended: dict[Path, Failure | None] = {}
        self._launcher = launcher
        self._jobs = jobs
        self._waiting = {run.folder: run for run in runs}
        self._watched: dict[Path, JobRecord] = {}
        self._gone: dict[Path, float] = {}
        self._states: dict[Path, str] = {}
        self._told = ""

    def advance(self) -> bool:
        """Look at the jobs, begin what can begin; tell whether anything is left to wait for."""
        self._look()
        if self._waiting:
            # It holds runs' configurations, whose seed tells the noise, and pickles that are read.
            self._jobs.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Another command on the same runs must not submit between our look and our record.
            with _turn(self._jobs / ".lock"):
                self._begin()
        self._tell()
        return len(self._watched) + len(self._waiting) > 0

    def _begin(self) -> None:
        slots = self._launcher.slots
        free = len(self._waiting) if slots is None else slots - len(self._watched)
        # What was looked at before and waits for its turn is looked at again when it comes.
        looked_at = [f for f in self._waiting if free > 0 or self._states.get(f) != "waiting"]
        under_way = self._under_way(looked_at)
        chosen: list[Run] = []
        kept: list[Path] = []
        for folder in looked_at:
            if folder in under_way:
                say(f"{folder}: job {under_way[folder].job_id} has it already")
                self._watch(folder, under_way[folder])
                free -= 1
            elif is_busy(folder):
                self._states[folder] = "running elsewhere"
            elif not self._is_settled(self._waiting[folder]):
                self._states[folder] = "waiting"
                chosen.append(self._waiting[folder])
            elif self.ended[folder] is None:
                kept.append(folder)
        if kept:
            say(finished_before(kept))
        if chosen[: max(0, free)]:
            self._submit(chosen[:free])

    def _under_way(self, folders: Sequence[Path]) -> dict[Path, JobRecord]:
        """The runs that an earlier command, or another one now, has begun a job for."""
        read = {folder: read_record(folder, self._jobs) for folder in folders}
        ours = {f: r for f, r in read.items() if r and r.launcher == self._launcher.name}
        states = self._launcher.states(list(ours.values()))
        # What has left its result has ended, perhaps long ago, though its process may still end.
        open_ones = {f: r for f, r in ours.items() if not self._has_result(r)}
        if states is None:
            # Of these nothing is known.
            return open_ones
        return {f: r for f, r in open_ones.items() if r in states}

    def _has_result(self, record: JobRecord) -> bool:
        return self._launcher.job(record).paths.result_pickle.exists()

    def _is_settled(self, run: Run) -> bool:
        try:
            if not run.is_finished():
                return False
        except UserInputError as error:
            self._end(run.folder, Failure(str(error), None, is_input=True))
            return True
        self._end(run.folder, None)
        return True

    def _submit(self, runs: Sequence[Run]) -> None:
        # A job whose record is missing would be submitted again; and a terminal sends its signals
        # to the local jobs too, which ignore what is ignored while they are begun.
        with _ignored(signal.SIGINT, signal.SIGHUP), importing_nothing_here():
            for run, record in zip(runs, self._launcher.submit(runs), strict=True):
                record.write(run.folder)
                self._watch(run.folder, record)
                say(f"{run.folder}: job {record.job_id} submitted")

    def _watch(self, folder: Path, record: JobRecord) -> None:
        self._waiting.pop(folder, None)
        self._watched[folder] = record
        self._states[folder] = "pending"

    def _look(self) -> None:
        if not self._watched:
            return
        # Asked first: a job that ends in between has left its result when that is looked for.
        states = self._launcher.states(list(self._watched.values()))
        for folder, record in list(self._watched.items()):
            if self._has_result(record):
                self._end(folder, read_result(record))
            elif states is not None and record not in states:
                self._miss(folder, record)
            else:
                self._gone.pop(folder, None)
                if states is not None:
                    self._states[folder] = states[record]

    def _miss(self, folder: Path, record: JobRecord) -> None:
        """A job is neither in the queue nor has it left a result."""
        since = self._gone.setdefault(folder, time.monotonic())
        if time.monotonic() - since < self._launcher.patience:
            return
        if is_busy(folder):
            # Its watcher was killed, and it was not.
            self._states[folder] = "running"
            return
        state = self._launcher.job(record).state
        self._end(
            folder,
            Failure(
                f"job {record.job_id} ended without a result ({state}); the same command resumes "
                "the run by a new job",
                record.log,
                is_input=False,
            ),
        )

    def _end(self, folder: Path, failure: Failure | None) -> None:
        self.ended[folder] = failure
        for left in (self._waiting, self._watched, self._states):
            left.pop(folder, None)

    def _tell(self) -> None:
        counts = Counter(self._states.values())
        counts["done"] = sum(failure is None for failure in self.ended.values())
        counts["failed"] = len(self.ended) - counts["done"]
        text = ", ".join(f"{n} {state}" for state, n in sorted(counts.items()) if n)
        if text != self._told:
            say(f"runs: {text}")
            self._told = text

    def tell_how_to_come_back(self) -> None:
        """Say which jobs go on and what to do about them."""
        if not self._watched:
            return
        numbers = " ".join(record.job_id for record in self._watched.values())
        rest = f" and begins the {len(self._waiting)} others" if self._waiting else ""
        say(
            f"{self._launcher.name} jobs that go on: {numbers}; the same command comes back to them"
            f"{rest}. To stop one: {self._launcher.stop_command} NUMBER"
        )


@contextlib.contextmanager
def _turn(path: Path) -> Iterator[None]:
    """Take the turn to submit, however long another command has it; who waits for long is told."""
    lock = FileLock(path)
    try:
        try:
            lock.acquire(timeout=_PATIENCE)
        except Timeout:
            say(
                f"{path}: waiting for another command that submits jobs here; if it is stopped, "
                "continue or end it; if no machine has it any more, delete this file"
            )
            lock.acquire()
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be locked ({error.strerror}), so that another command could begin the "
            "same runs; give a folder of another file system with --out"
        ) from None
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _ignored(*signals: signal.Signals) -> Iterator[None]:
    before = {number: signal.signal(number, signal.SIG_IGN) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
