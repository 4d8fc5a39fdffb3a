"""Time of a run by phases of each round, and a trace for a trace viewer.

A phase's time is its own: what a phase inside it takes is that one's. Phases are the lead's; while
it waits for other processes, that is a phase too. "decoding" is all that makes a client's tensors
of what was read from the store. Clipping adds to the running sum in the same pass, so "clipping" is
both, and "aggregation" is bringing sums together.

On a GPU work is queued: its time shows in the phase that waits for it.
"""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

from pfl_bench.files import write_atomically, write_json

# Rounds that the trace shows; a viewer is slow with more, and one round is like the next.
TRACED_ROUNDS = 10

T = TypeVar("T")
_NOTHING: AbstractContextManager[None] = nullcontext()
_active: Profile | None = None


def phase(name: str) -> AbstractContextManager[None]:
    """Measure the time within the context as a phase, if the run is profiled."""
    return _NOTHING if _active is None else _active.phase(name)


def timed(name: str, items: Iterator[T]) -> Iterator[T]:
    """Measure what an iterator does before each of its items, if the run is profiled."""
    if _active is None:
        yield from items
        return
    while True:
        with phase(name):
            try:
                item = next(items)
            except StopIteration:
                return
        yield item


class Profile:
    """Collects phases.

    Attributes:
        rounds: By step, the seconds of each phase; step 0 is what came before the first.
    """

    def __init__(self) -> None:
        self.rounds: dict[int, dict[str, float]] = {0: defaultdict(float)}
        self._began = time.perf_counter()
        self._step = 0
        self._step_began = self._began
        self._open = threading.local()
        self._main = threading.get_ident()
        self._events: list[dict[str, Any]] = []

    def __enter__(self) -> Profile:
        """Be the profile of this process."""
        global _active
        _active = self
        return self

    def __exit__(self, *exception: object) -> None:
        """Stop."""
        global _active
        _active = None

    def begin_step(self, step: int) -> None:
        """Say that a round (central training: an epoch) begins."""
        now = time.perf_counter()
        self.rounds[self._step]["total"] += now - self._step_began
        self._trace(f"round {self._step}" if self._step else "start", self._step_began, now)
        self._step, self._step_began = step, now
        self.rounds[step] = defaultdict(float)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """See ``profiling.phase``."""
        inner: list[float] = getattr(self._open, "inner", [])
        self._open.inner = inner
        started = time.perf_counter()
        inner.append(0.0)
        try:
            yield
        finally:
            ended = time.perf_counter()
            own = ended - started - inner.pop()
            if inner:
                inner[-1] += ended - started
            # What threads read ahead takes no time of the round's.
            is_main = threading.get_ident() == self._main
            self.rounds[self._step][name if is_main else f"{name}, ahead"] += own
            self._trace(name, started, ended)

    def _trace(self, name: str, started: float, ended: float) -> None:
        if self._step <= TRACED_ROUNDS:
            self._events.append(
                {
                    "name": name,
                    "ph": "X",
                    "ts": round((started - self._began) * 1e6, 1),
                    "dur": round((ended - started) * 1e6, 1),
                    "pid": 0,
                    "tid": threading.get_ident() % 100_000,
                }
            )

    def write(self, folder: Path) -> str:
        """Write ``profile.json`` and ``trace.json``; gives a table of all rounds for a person."""
        self.begin_step(self._step + 1)
        del self.rounds[self._step]
        rows = []
        for step, seconds in self.rounds.items():
            total = seconds.pop("total")
            named = sum(value for name, value in seconds.items() if not name.endswith(", ahead"))
            rest = "other" if step else "starting"
            rows.append({"round": step, "total": total, **seconds, rest: total - named})
        totals: dict[str, float] = defaultdict(float)
        for row in rows:
            for name, value in row.items():
                if name != "round":
                    totals[name] += value
        write_json(folder / "profile.json", {"seconds": dict(totals), "rounds": rows})
        trace = {"displayTimeUnit": "ms", "traceEvents": self._events}
        write_atomically(folder / "trace.json", json.dumps(trace))
        return _table(totals)


def _table(totals: dict[str, float]) -> str:
    whole = totals["total"]
    names = sorted((n for n in totals if n != "total"), key=lambda n: -totals[n])
    width = max(len(name) for name in names)
    lines = [f"{name:{width}} {totals[name]:8.3f} {totals[name] / whole:7.1%}" for name in names]
    head, foot = f"{'phase':{width}}  seconds   share", f"{'total':{width}} {whole:8.3f}"
    return "\n".join([head, *lines, foot])


class Overhead:
    """Watches that evaluation and checkpoints stay a small part of a run.

    Args:
        every: By phase, the setting that says how often, as it is now.
    """

    LIMIT = 0.1
    # Below this nobody waits.
    _SECONDS = 2.0

    def __init__(self, every: dict[str, tuple[str, int]]) -> None:
        self._every = every
        self._seconds = dict.fromkeys(every, 0.0)

    def run(self, name: str, work: Callable[[], T]) -> T:
        """Do work that counts as a phase."""
        started = time.perf_counter()
        with phase(name):
            result = work()
        self._seconds[name] += time.perf_counter() - started
        return result

    def warnings(self, total: float) -> list[str]:
        """Advice after a run of so many seconds."""
        texts = []
        for name, seconds in self._seconds.items():
            if seconds > self.LIMIT * total and seconds > self._SECONDS:
                key, now = self._every[name]
                wanted = max(now + 1, round(now * seconds / (self.LIMIT * total)))
                texts.append(
                    f"{name} took {seconds / total:.0%} of this run's {total:.0f} s; it is below "
                    f"{self.LIMIT:.0%} with {key}={wanted} (now {now}), where fewer will do"
                )
        return texts


@contextmanager
def one_thread() -> Iterator[None]:
    """Run PyTorch's operations in the calling thread alone.

    Short operations gain nothing from a second thread, and lose many times their length where the
    cores are busy: each waits for a thread that does not run.
    """
    import torch  # which reading where time went does without

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
