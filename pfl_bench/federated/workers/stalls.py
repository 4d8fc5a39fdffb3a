"""Telling a person which process a run waits for, when it waits for long."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Seconds that one process may be waited for in silence; longer where clients take longer.
PATIENCE = 60.0
# A process may take so many times as long as any was waited for before.
_TIMES_LONGEST = 4.0
_STATES = {
    "T": "it is stopped: `kill -CONT {pid}` lets it go on",
    "t": "a debugger has stopped it",
    "D": "it waits for a disk or a network file system",
    "Z": "it has ended",
}


def state_of(pid: int) -> str:
    """State of a process of this machine in words, as far as the system tells; else empty."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    letter = text.rpartition(")")[2].split()[0]
    return _STATES.get(letter, "").format(pid=pid)


class StallWatch:
    """Gives notice, from a thread of its own, of a process that is waited for too long.

    The first comes after ``patience`` seconds, each further one after twice as long. The time that
    this process was itself stopped does not count.
    """

    def __init__(self, patience: float | None = None) -> None:
        self._patience = PATIENCE if patience is None else patience
        self._longest = 0.0
        self._waited = 0.0
        self._was_stopped = False
        self._whom: tuple[str, int | None] | None = None
        self._next = self._patience
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def waiting(self, whom: str, pid: int | None = None, is_usual: bool = True) -> Iterator[None]:
        """Watch the block, which waits for ``whom``, such as "worker 1"; ``pid`` if it is here.

        What ``is_usual`` is waited for in each round, and tells how long that takes.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="stalls", daemon=True)
            self._thread.start()
        started = time.monotonic()
        self._waited, self._next = 0.0, max(self._patience, _TIMES_LONGEST * self._longest)
        self._was_stopped = False
        self._whom = (whom, pid)
        try:
            yield
        finally:
            self._whom = None
            if is_usual and not self._was_stopped:
                self._longest = max(self._longest, time.monotonic() - started)

    def close(self) -> None:
        """End the thread."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        step = min(5.0, self._patience / 4)
        while not self._ended.wait(step):
            whom = self._whom
            if whom is None:
                continue
            # Counted in steps, not by the clock: Ctrl-Z stops this process, too.
            self._waited += step
            if self._waited >= self._next:
                self._next *= 2
                print(self._words(*whom), file=sys.stderr, flush=True)

    def _words(self, whom: str, pid: int | None) -> str:
        name = whom if pid is None else f"{whom} (process {pid})"
        state = "" if pid is None else state_of(pid)
        self._was_stopped |= "stopped" in state
        kill = "see its own output" if pid is None else f"`kill -KILL {pid}` ends it"
        return (
            f"waiting for {name}, which has brought nothing for {self._waited:.0f} s"
            f"{f'; {state}' if state else ''}. If it hangs, {kill}: the run ends with a message "
            "and can be resumed with --resume"
        )
