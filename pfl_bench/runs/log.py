"""The log of a run: metrics.jsonl, run.log and what a person sees."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from pfl_bench.files import drop_after, to_json_value
from privacy.statement.statement import round_up

SECONDS_BETWEEN_LINES = 10.0


class RunLog:
    """Appends a line a round to ``metrics.jsonl``, notices to ``run.log``, and shows progress.

    With a terminal on the stream the progress is a bar; without one it is a plain line each time
    the model is evaluated, and at least every ten seconds.

    Args:
        folder: The run's folder.
        title: What the bar is called.
        total: Rounds (central training: epochs) of the run.
        done: Rounds that are done already; later lines of ``metrics.jsonl`` are dropped.
        stream: Where a person reads; None for standard error.
    """

    def __init__(
        self, folder: Path, title: str, total: int, done: int, stream: TextIO | None = None
    ) -> None:
        self._path = folder / "metrics.jsonl"
        self._notices = folder / "run.log"
        self._stream = stream if stream is not None else sys.stderr
        self._title = title
        self._total = total
        self._last_line = time.monotonic()
        drop_after(self._path, done)
        self._file = self._path.open("a", encoding="utf-8")
        self._bar = self._task = None
        if self._stream.isatty():
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
                console=Console(file=self._stream),
            )
            self._task = self._bar.add_task(title, total=total, completed=done, note="")
            self._bar.start()

    def metrics(self, step: int, scalars: dict[str, float], headline: str) -> None:
        """Record a round's scalars; ``headline`` is shown, or empty when nothing is new."""
        line = json.dumps({"round": step, **to_json_value(scalars)}, allow_nan=False)
        self._file.write(line + "\n")
        self._file.flush()
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=step)
            if headline:
                self._bar.update(self._task, note=headline)
        elif headline or time.monotonic() - self._last_line > SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            print(
                f"{self._title}: {step}/{self._total} {headline}".rstrip(),
                file=self._stream,
                flush=True,
            )

    def notice(self, text: str) -> None:
        """Say something once, to a person and in ``run.log``."""
        with self._notices.open("a", encoding="utf-8") as file:
            file.write(text + "\n")
        if self._bar is not None:
            self._bar.console.print(f"{self._title}: {text}", markup=False, highlight=False)
        else:
            print(f"{self._title}: {text}", file=self._stream, flush=True)

    def __enter__(self) -> RunLog:
        """Use as a context, so that the bar is taken down whatever happens."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the file and the bar."""
        self._file.close()
        if self._bar is not None:
            self._bar.stop()


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
