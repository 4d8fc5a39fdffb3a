"""From measured times to engine, slots and workers: arithmetic alone, so that it can be tested."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

# Of two processes beside one another, how fast each is beside one alone: caches and memory are
# shared. An estimate: two workers on two cores were 1.5 to 2.0 times one (docs/performance.md).
_EFFICIENCY = 0.8
# Until worker processes have loaded torch and the data, and what each of them adds to a round.
_START_SECONDS, _START_SECONDS_EACH = 5.0, 0.1
_ROUND_SECONDS_EACH = 5e-4
# What is simpler is taken unless the other is faster by so much.
_MARGIN = 0.03
_DESCRIPTION = re.compile(r"(\w+)(?:, (\d+) slots)?(?:, .+)?")
_PROCESSES = re.compile(r"(\d+) worker processes")


@dataclass(frozen=True, slots=True)
class Candidate:
    """An engine, and how many clients it trains at once; None for an engine without slots."""

    engine: str
    slots: int | None = None

    @property
    def description(self) -> str:
        """The engine's own description."""
        return self.engine if self.slots is None else f"{self.engine}, {self.slots} slots"

    @classmethod
    def of(cls, description: str) -> Candidate | None:
        """Read a description; what follows the slots, such as processes, is left out."""
        found = _DESCRIPTION.fullmatch(description)
        return None if found is None else cls(found[1], int(found[2]) if found[2] else None)


SEQUENTIAL = Candidate("sequential")


def workers_of(processes: str) -> int | None:
    """Workers by their description in a run's folder; "" is one, None is no worker processes."""
    found = _PROCESSES.fullmatch(processes)
    if found is not None:
        return int(found[1])
    return None if processes else 1


def fastest(seconds: Mapping[Candidate, float]) -> Candidate:
    """The fastest candidate by the seconds that a client takes.

    But an engine that trains one client at a time rather than one with slots, and the sequential
    one rather than any other, where they are as fast within a few percent.
    """

    def handicapped(candidate: Candidate) -> float:
        steps = 0 if candidate == SEQUENTIAL else (1 if candidate.slots in (None, 1) else 2)
        return seconds[candidate] * (1 + _MARGIN * steps)

    return min(seconds, key=handicapped)


def pick_workers(round_seconds: float, num_rounds: int, most: int) -> int:
    """The number of processes, ``most`` at most, with which a run is expected to end first.

    ``round_seconds`` are those that the clients of a round take one process.
    """

    def whole(workers: int) -> float:
        if workers == 1:
            return num_rounds * round_seconds
        shared = round_seconds / (1 + (workers - 1) * _EFFICIENCY)
        started = _START_SECONDS + _START_SECONDS_EACH * workers
        return num_rounds * (shared + _ROUND_SECONDS_EACH * workers) + started

    return min(range(1, most + 1), key=whole)
