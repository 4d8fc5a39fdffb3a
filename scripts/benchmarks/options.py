"""The command line of a round's benchmark."""

from __future__ import annotations

import argparse
from collections.abc import Container
from dataclasses import dataclass, replace
from pathlib import Path

ENGINES = ("sequential", "vectorized")
PEERS = ("pfl", "flower")


@dataclass(frozen=True)
class Options:
    """Settings of a measurement.

    Attributes:
        repeats: Rounds to time, after one that warms up.
        threads: Threads of torch of the sides in one process; they exist once for each.
        processes: Processes of the sides that have several; 1 for no such sides.
        kinds: Private or not.
        precision: "float32" or "bfloat16", of all sides.
        engines: Of our sides.
        peers: Beside the bare loop.
        json: Where everything measured is written; None for nowhere.
        only: Models; empty for all.
        device: Where all sides train, "cpu" or "cuda".
        slots: Of our vectorized sides, one side a number; empty for what the engine takes itself.
        large_batch: Examples of a step that is timed beside the rounds: what the device could do;
            None for no such step.
        cohort_size: Expected clients a round; None for the workload's own.
    """

    repeats: int = 5
    threads: tuple[int, ...] = (1,)
    processes: int = 1
    kinds: tuple[bool, ...] = (False, True)
    precision: str = "float32"
    engines: tuple[str, ...] = ENGINES
    peers: tuple[str, ...] = PEERS
    json: Path | None = None
    only: tuple[str, ...] = ()
    device: str = "cpu"
    slots: tuple[int, ...] = ()
    large_batch: int | None = None
    cohort_size: int | None = None

    def without(self, peers: Container[str]) -> Options:
        """The same, less some peers."""
        return replace(self, peers=tuple(p for p in self.peers if p not in peers))


def read_options(description: str, models: tuple[str, ...]) -> Options:
    """Read the command line.

    Args:
        description: For its help.
        models: What ``--only`` may name.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--repeats", type=int, default=5, help="rounds that are timed")
    parser.add_argument("--threads", type=int, nargs="+", default=[1], help="of sides of a process")
    parser.add_argument("--processes", type=int, default=1, help="2 adds sides of two processes")
    parser.add_argument("--private", choices=("yes", "no", "both"), default="both")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--engine", nargs="+", choices=ENGINES, default=ENGINES)
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=PEERS)
    parser.add_argument("--json", type=Path, help="where to write all that was measured")
    parser.add_argument("--only", action="append", choices=models, default=None)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--slots", type=int, nargs="+", default=(), help="of vectorized sides")
    parser.add_argument("--large-batch", type=int, help="of a plain step, as a limit")
    parser.add_argument("--cohort", type=int, help="expected clients a round, at most the users")
    read = parser.parse_args()
    return Options(
        repeats=read.repeats,
        threads=tuple(sorted(set(read.threads))),
        processes=read.processes,
        kinds={"yes": (True,), "no": (False,), "both": (False, True)}[read.private],
        precision=read.precision,
        engines=tuple(read.engine),
        peers=tuple(read.peers),
        json=read.json,
        only=tuple(read.only or models),
        device=read.device,
        slots=tuple(read.slots),
        large_batch=read.large_batch,
        cohort_size=read.cohort,
    )
