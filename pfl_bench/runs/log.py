"""The log of a run: metrics.jsonl, run.log and what a person sees."""

from __future__ import annotations

import json
import os
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from pfl_bench.config.terminal_text import visible
from pfl_bench.files import drop_after, to_json_value
from pfl_bench.types import RunFolderError
from privacy.statement.statement import round_up

SECONDS_BETWEEN_LINES = 10.0
_LONGEST_TITLE = 36
_FIXED = "\xa0"
_SAID: ContextVar[set[str] | None] = ContextVar("_SAID", default=None)
_IS_VERBOSE: ContextVar[bool] = ContextVar("_IS_VERBOSE", default=False)


@contextmanager
def every_line() -> Iterator[None]:
    """Within it, a line is printed each round, and each run says its notices again."""
    token = _IS_VERBOSE.set(True)
    try:
        yield
    finally:
        _IS_VERBOSE.reset(token)


@contextmanager
def saying_once() -> Iterator[None]:
    """Within it, a notice that an earlier run has shown is written to ``run.log`` alone."""
    token = _SAID.set(set())
    try:
        yield
    finally:
        _SAID.reset(token)


def finished_before(folders: Sequence[Path]) -> str:
    """Notice of runs, at least one, that a command has found finished."""
    others = len(folders) - 1
    rest = f" and {others} other run{'s' * (others > 1)}" if others else ""
    return f"{folders[0]}{rest}: finished before; not run again"


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name a file in the error of a write to it, which has no name where the disk is full."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        del error.filename2  # None would be shown
        raise


class _Display:
    """Two lines that stay in sight: name, count, bar and time left; below them the last metrics.

    Lines that are kept scroll away above.
    """

    def __init__(self, title: str, total: int, done: int, stream: TextIO) -> None:
        self.console = Console(file=stream)
        narrow = Column(no_wrap=True, overflow="ellipsis", max_width=_LONGEST_TITLE)
        self._progress = Progress(
            TextColumn("{task.description}", markup=False, table_column=narrow),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TimeRemainingColumn(),
            console=self.console,
            expand=True,
        )
        self._task = self._progress.add_task(title, total=total, completed=done)
        self._last = (done, "")
        self.live = Live(self, console=self.console, refresh_per_second=4)
        self.live.start()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._progress
        step, headline = self._last
        parts = [f"at {step}"] if headline else []
        parts += headline.split("  ")
        # What does not fit is in the history in full; the epsilons are at the end.
        while len(parts) > 1 and len("  ".join(parts)) >= options.max_width:
            del parts[0]
        yield Text("  ".join(parts), no_wrap=True, overflow="ellipsis")

    def show(self, step: int, headline: str) -> None:
        """Move the bar; new metrics take the place of the last, which go to the history."""
        self._progress.update(self._task, completed=step)
        if headline:
            self._keep()
            self._last = (step, headline)

    def stop(self) -> None:
        """Leave the bar and the last metrics on the screen."""
        self.live.stop()

    def _keep(self) -> None:
        step, headline = self._last
        if headline:
            # Lines are broken between numbers, not within one; numbers are two spaces apart.
            whole = f"{step}  {headline}".replace(" ", _FIXED).replace(2 * _FIXED, " ")
            lines = textwrap.wrap(whole, max(40, self.console.width - 5))
            text = "\n    ".join(lines).replace(" ", "  ").replace("\n" + 8 * " ", "\n    ")
            self.console.print(text.replace(_FIXED, " "), markup=False, highlight=False)


class RunLog:
    """Appends a line a round to ``metrics.jsonl``, notices to ``run.log``, and shows progress.

    With a terminal on the stream (None for standard error) the progress is a bar above the last
    metrics; without one it is a plain line each time the model is evaluated, and at least every ten
    seconds. Lines of ``metrics.jsonl`` after the rounds that are ``done`` already are dropped.
    """

    def __init__(
        self, folder: Path, title: str, total: int, done: int, stream: TextIO | None = None
    ) -> None:
        self._path = folder / "metrics.jsonl"
        self._notices = folder / "run.log"
        self._stream = stream if stream is not None else sys.stderr
        self._title = title = visible(title)
        self._total = total
        self._last_line = time.monotonic()
        drop_after(self._path, done)
        self._file = self._path.open("a", encoding="utf-8")
        self._length = self._path.stat().st_size
        self._display = None
        if self._stream.isatty():
            self._display = _Display(title, total, done, self._stream)

    def metrics(self, step: int, scalars: dict[str, float], headline: str) -> None:
        """Record a round's scalars; ``headline`` is shown, or empty when nothing is new."""
        held = os.fstat(self._file.fileno())
        try:
            is_here = os.path.samestat(held, self._path.stat())
        except FileNotFoundError:
            is_here = False
        if not is_here or held.st_size < self._length:
            what = "was cut" if is_here else "was removed, moved or replaced"
            raise RunFolderError(
                f"{self._path} {what} while the run wrote to it, and its rounds with it. Put it "
                "back as it was and go on with --resume, or start in a new folder with --out"
            )
        line = json.dumps({"round": step, **to_json_value(scalars)}, allow_nan=False)
        with _naming(self._path):
            self._file.write(line + "\n")
            self._file.flush()
            self._length = os.fstat(self._file.fileno()).st_size
        is_due = time.monotonic() - self._last_line > SECONDS_BETWEEN_LINES
        if self._display is not None:
            self._display.show(step, headline)
        elif headline or is_due or _IS_VERBOSE.get():
            self._last_line = time.monotonic()
            print(
                f"{self._title}: {step}/{self._total} {visible(headline)}".rstrip(),
                file=self._stream,
                flush=True,
            )

    def notice(self, text: str) -> None:
        """Say something once, to a person and in ``run.log``."""
        text = visible(text)
        with _naming(self._notices), self._notices.open("a", encoding="utf-8") as file:
            file.write(text + "\n")
        said = _SAID.get()
        if said is not None:
            if text in said and not _IS_VERBOSE.get():
                return
            said.add(text)
        if self._display is not None:
            self._display.console.print(f"{self._title}: {text}", markup=False, highlight=False)
        else:
            print(f"{self._title}: {text}", file=self._stream, flush=True)

    def __enter__(self) -> RunLog:
        """Use as a context, so that the bar is taken down whatever happens."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close the file and the bar."""
        if self._display is not None:
            self._display.stop()
        with _naming(self._path):  # what could not be written is tried again
            self._file.close()


def headline_of(scalars: dict[str, float], headlines: Sequence[str]) -> str:
    """The few numbers that a person watches."""
    parts = []
    for name, value in scalars.items():
        metric = name.partition("/")[2]
        if name == "train/loss" or metric in headlines:
            parts.append(f"{name} {value:.4f}")
    parts += [
        f"epsilon ({kind}) {round_up(scalars[f'privacy/epsilon_{kind}'], 3)}"
        for kind in ("simulated", "actual")
        if f"privacy/epsilon_{kind}" in scalars
    ]
    return "  ".join(parts)


class Notices:
    """Notices: kept until there is a log, then sent to it.

    A trainer that held the run itself would be in a cycle with it. Of cycles Python frees the
    memory late, however large it is: in one process, models of many runs would pile up.
    """

    def __init__(self) -> None:
        self._early: list[str] = []
        self._send: Callable[[str], None] = self._early.append

    def add(self, text: str) -> None:
        """Keep or send a notice."""
        self._send(text)

    def send_to(self, send: Callable[[str], None]) -> None:
        """Send what was kept, and from now on all."""
        self._send = send
        for text in self._early:
            send(text)
