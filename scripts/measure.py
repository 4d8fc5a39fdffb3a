"""Measures rows for docs/results.md, one run after another, until it is done or stopped.

    python scripts/measure.py QUEUE.yaml --runs FOLDER [--jobs N] [--data FOLDER] [--nice N]

A queue has its entries in order, the most important first:

    queue:
      - rows: [dp_sgd/opacus/epsilon_1_16.yaml]   # bundled rows
        seeds: 3                                  # 0, 1, 2: all rows' first before any second
        first: 0                                  # (optional) the first of the seeds
        into: dp_sgd.json                         # the records' file in docs/results
        overrides: [device=cpu]                   # key=value, as those of pfl-bench run

The code that runs is the checkout's last commit, in a clone below FOLDER. FOLDER is outside the
checkout, which may change or go meanwhile. A run that was stopped is resumed, a finished one
is kept. Each private run is audited. After each run its row's record in docs/results, and the page,
are written anew, ready to be committed; a record of more seeds stays, one of others gains the new
ones. Runs have the lowest priority (``--nice``). Linux compares that within one session of a
terminal only: begin it by ``setsid``, and its session gives way to all others. Data files are found
in the folder of ``--data``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from documentation.record_files import FOLDER, collect
from documentation.results import write_pages
from pydantic import Field

from pfl_bench.config.errors import Given
from pfl_bench.config.loading import validate_tree
from pfl_bench.config.training import Strict
from pfl_bench.config.yaml_text import read_yaml
from pfl_bench.files import read_json
from pfl_bench.types import ConfigError, UserInputError

# For a round of hundreds of clients on a busy machine.
_AUDIT_SECONDS = "120"
CHECKOUT = Path(__file__).resolve().parent.parent


class Entry(Strict):
    """Rows that are measured with as many seeds, into one file.

    Attributes:
        rows: Paths below ``configs/``.
        seeds: How many, from ``first`` on.
        first: The first seed; the file may have those before it.
        into: The records' file in ``docs/results``.
        overrides: key=value, for each of the rows.
    """

    rows: Annotated[list[str], Field(min_length=1)]
    seeds: Annotated[int, Field(ge=1)]
    first: Annotated[int, Field(ge=0)] = 0
    into: str
    overrides: list[str] = Field(default_factory=list)


class Queue(Strict):
    """The file.

    Attributes:
        queue: Its entries, the most important first.
    """

    queue: Annotated[list[Entry], Field(min_length=1)]


@dataclass(frozen=True)
class Run:
    """A seed of a row."""

    entry: Entry
    row: str
    seed: int

    def folder(self, runs: Path) -> Path:
        """Folder in which it runs."""
        name = Path(self.row).with_suffix("").as_posix().replace("/", "-")
        return runs / Path(self.entry.into).stem / name / f"seed-{self.seed}"


def runs_of(queue: Queue) -> Iterator[Run]:
    """The runs in the order in which they start."""
    for entry in queue.queue:
        for seed in range(entry.first, entry.first + entry.seeds):
            for row in entry.rows:
                yield Run(entry, row, seed)


def give_way(nice: int) -> None:
    """Have the processes of this session, if it is this process's own, give way to other sessions.

    With autogroups (``man 7 sched``), ``nice`` itself counts among processes of one session.
    """
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(nice), encoding="utf-8")


class Measuring:
    """Runs, audits and records.

    Args:
        checkout: Gets the records.
        runs: Folder of the code and the runs of one commit.
        data: Where relative paths of data files are found; None for the code's own folder.
        nice: By how much runs give way to other processes.
    """

    def __init__(self, checkout: Path, runs: Path, data: Path | None, nice: int) -> None:
        self._checkout, self._runs, self._nice = checkout, runs, nice
        self._code = runs / "code"
        self._folder = data or self._code
        self._lock = threading.Lock()
        self.failures: list[str] = []
        if not self._code.exists():
            _git(checkout, "clone", "--quiet", str(checkout), str(self._code))
        for part in ("configs", "pfl_bench", "privacy", "tasks"):
            if _git(self._code, "status", "--porcelain", part):
                raise ConfigError(f"{self._code / part}: was changed; restore it (git checkout)")

    def measure(self, run: Run) -> None:
        """Finish a run, if it is not; audit it, if it is private; write its row's record."""
        folder = run.folder(self._runs)
        log = folder.with_suffix(".log")
        log.parent.mkdir(parents=True, exist_ok=True)
        if read_json(folder / "summary.json") is None:
            row = str(self._code / "configs" / run.row)
            resume = ["--resume"] if (folder / "environment.json").exists() else []
            overrides = [f"seed={run.seed}", *run.entry.overrides]
            if self._call(log, "run", row, *overrides, "--out", str(folder), *resume) == 2:
                self.failures.append(f"{run.row}, seed {run.seed}: see {log}")
                return
        summary = read_json(folder / "summary.json")
        if summary is None:
            self.failures.append(f"{run.row}, seed {run.seed}: did not finish; see {log}")
            return
        if summary["privacy"] is not None and not (folder / "audit.json").exists():
            self._call(log, "audit", str(folder), "--recompute-seconds", _AUDIT_SECONDS)
        with self._lock:
            self._write(run)

    def _call(self, log: Path, *arguments: str) -> int:
        """A command by the commit's code; its exit code."""
        environment = {**os.environ, "PYTHONPATH": str(self._code)}
        command = [sys.executable, "-m", "pfl_bench", *arguments]
        with log.open("a", encoding="utf-8") as file:
            return subprocess.run(
                command, cwd=self._folder, env=environment, stdout=file, stderr=file, check=False,
                preexec_fn=lambda: os.nice(self._nice),
            ).returncode  # fmt: skip

    def _write(self, run: Run) -> None:
        """Write the records of the run's row, and the page."""
        folder = run.folder(self._runs).parent
        done = [path.parent for path in sorted(folder.glob("seed-*/summary.json"))]
        into = self._checkout / FOLDER / run.entry.into
        try:
            collect(done, into, merge=True)
            write_pages(self._checkout)
        except UserInputError as error:
            # A cell that differs wants its reason before the page can be written.
            print(f"{into}: {error}", file=sys.stderr)
        print(f"{run.row}: {len(done)} of {run.entry.seeds} seeds in {into}", flush=True)


def _git(folder: Path, *arguments: str) -> str:
    try:
        return subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", "") or str(error)
        raise ConfigError(f"{folder}: git {' '.join(arguments)}: {reason.strip()}") from None


def main(arguments: list[str] | None = None, checkout: Path = CHECKOUT) -> int:
    """Work the queue off; 1 where a run failed, 2 where the input is wrong.

    Args:
        arguments: Those of the command line; None for the process's own.
        checkout: The root of the checkout.
    """
    parser = argparse.ArgumentParser(description="Measure rows for docs/results.md.")
    parser.add_argument("queue", metavar="QUEUE.yaml", type=Path)
    parser.add_argument("--runs", required=True, metavar="FOLDER", type=Path)
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at once (1)")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="where data files are")
    parser.add_argument("--nice", type=int, default=19, metavar="N", help="0 to 19 (19)")
    given = parser.parse_args(arguments)
    try:
        queue = validate_tree(Queue, read_yaml(given.queue), "", Given(given.queue))
        runs = list(runs_of(queue))
        missing = [run.row for run in runs if not (checkout / "configs" / run.row).is_file()]
        if missing:
            raise ConfigError(f"{given.queue}: rows: configs/ has no {missing[0]}")
        if given.jobs < 1:
            raise ConfigError(f"--jobs: {given.jobs} is less than 1")
        if not 0 <= given.nice <= 19:
            raise ConfigError(f"--nice: {given.nice} is not in 0 to 19")
        if given.data is not None and not given.data.is_dir():
            raise ConfigError(f"--data: {given.data} is no folder")
        place = given.runs.resolve()
        if place.is_relative_to(checkout.resolve()):
            raise ConfigError(f"--runs: {place} is inside the checkout; choose a folder outside")
        place.mkdir(parents=True, exist_ok=True)
        give_way(given.nice)
        measuring = Measuring(checkout, place, given.data and given.data.resolve(), given.nice)
        with ThreadPoolExecutor(given.jobs) as pool:
            list(pool.map(measuring.measure, runs))
    except (OSError, UserInputError) as error:
        print(f"measure: {error}", file=sys.stderr)
        return 2
    for failure in measuring.failures:
        print(f"measure: {failure}", file=sys.stderr)
    return 1 if measuring.failures else 0


if __name__ == "__main__":
    sys.exit(main())
