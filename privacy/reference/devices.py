"""Participants under ``selected``: users whose devices are chosen, and finish in time.

Capacities and slots of availability are assigned to users apart, in random orders. Slots come again
with each period; one that ends with it goes on in one that begins with it. A round of C users:

1. Users may take part whose last round was b ago or more, and who were in fewer than k rounds.
2. If none of them is available, the round waits until the first one is.
3. Of them, or of the available among them, ceil(o C) are chosen uniformly.
4. One whose local steps process n examples needs D / w + 3 n l / 1000 + U / w seconds: D and U are
   the bytes down and up, w is an eighth of the bits a second, l the milliseconds an example. A
   device whose slot ends before that is lost.
5. The round ends when C have finished, when nobody is left who could, and at a deadline at the
   latest. The first C who have finished by then take part, in ascending order.

Source: Lai et al. 2022 (FedScale), sections 4.2 and 5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privacy.reference.client import lengths
from privacy.reference.streams import COHORT, DEVICES, stream

# Whether those alone are chosen who are available, by the name of the selection.
SELECTIONS = {"uniform": False, "available": True}


@dataclass
class Devices:
    """The devices of a run's users, and the clock; of each configuration fields are read."""

    traces: Any  # ``pfl_bench.simulation.devices.devices.Devices``
    systems: Any  # ``pfl_bench.config.sections.SystemsOptions``: o and the deadline
    options: Any  # ``pfl_bench.config.training.FederatedOptions``: C, b and k
    local: Any  # ``pfl_bench.types.LocalTraining``
    selection: str  # of ``SELECTIONS``
    seed: int  # the run's own
    sizes: NDArray[np.int64]  # shape (N,): examples of each user
    num_bytes: tuple[float, float]  # D and U
    now: float = 0.0  # seconds of the clock
    # Of all rounds: clients that sent nothing, and seconds until a first user was there.
    totals: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("lost", "stragglers", "waited_seconds"), 0.0)
    )
    # Of the last round, by the names on record: times, outcomes, earlier rounds of who was in.
    played: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng, num = stream(self.seed, DEVICES), len(self.sizes)
        kinds = (len(self.traces.latency_ms), len(self.traces.availability.offsets) - 1)
        assigned = [
            np.concatenate([rng.permutation(kind) for _ in range(-(-num // kind))])[:num]
            for kind in kinds
        ]
        self._capacity, self._slots = assigned

    def draw(
        self, number: int, seed: int, counts: NDArray[np.int64], last: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The users of a round, ascending, by the private seed; the clock moves on to its end.

        ``counts`` and ``last``, shape (N,), are each user's rounds before, and the last of them.
        """
        options, systems = self.options, self.systems
        free = (last == 0) | (number - last >= options.separation)
        if options.max_participations is not None:
            free &= counts < options.max_participations
        users, start = np.flatnonzero(free), self.now
        # Before the first of these no slot begins or ends, so that they are those of the start too.
        begins = self._begins(users, start)
        if math.isfinite(first := float(begins.min(initial=math.inf))):
            start = first
        if SELECTIONS[self.selection]:
            users = users[begins <= start]
        size = min(len(users), math.ceil(round(systems.overcommitment * options.cohort_size, 9)))
        rng = stream(seed, COHORT, number)
        chosen = users[rng.choice(len(users), size=size, replace=False, shuffle=False)]
        finished, gone, left = [], [start], []
        for user in sorted(chosen.tolist()):
            begin, end = self._slot(self._slots[user], start)
            download, training, upload = self._seconds(user)
            finish = start + download + training + upload
            if begin <= start and finish <= end:
                finished.append((finish, user))
            gone.append(min(finish, end) if begin <= start else start)
            if not (begin <= start and finish <= end):
                left.append(gone[-1])
        finished = sorted(finished)[: options.cohort_size]
        deadline = math.inf if systems.deadline_s is None else start + systems.deadline_s
        end = min(max(gone), deadline)
        if len(finished) == options.cohort_size:
            end = min(end, finished[-1][0])
        took_part = np.array(sorted(u for finish, u in finished if finish <= end), dtype=np.int64)
        lost, latest = sum(moment <= end for moment in left), int(last[took_part].max(initial=0))
        late = len(chosen) - len(took_part) - lost
        of_round = {"lost": lost, "stragglers": late, "waited_seconds": start - self.now}
        self.totals = {name: total + of_round[name] for name, total in self.totals.items()}
        self.now = end
        self.played = {
            **{f"systems/{name}": number for name, number in of_round.items()},
            **{f"systems/total_{name}": total for name, total in self.totals.items()},
            "systems/total_simulated_seconds": end,
            "systems/simulated_seconds": end - start,
            "systems/selected": len(chosen),
            "systems/counted": len(took_part),
            "returning": int(counts[took_part].sum()),
            "smallest_gap": number - latest if latest else math.nan,
            "largest_count": int(counts[took_part].max(initial=-1)) + 1,
        }
        return took_part

    def _seconds(self, user: int) -> tuple[float, float, float]:
        place, (down, up) = self._capacity[user], self.num_bytes
        rate = float(self.traces.bandwidth_kbps[place]) * 125.0
        examples = processed(int(self.sizes[user]), self.local)
        training = 3.0 * examples * float(self.traces.latency_ms[place]) / 1000.0
        return down / rate, training, up / rate

    def _begins(self, users: NDArray[np.int64], time: float) -> NDArray[np.float64]:
        """From when the slot of each user's device is, shape (n,); many users share a trace."""
        traces, place = np.unique(self._slots[users], return_inverse=True)
        return np.array([self._slot(trace, time)[0] for trace in traces.tolist()])[place]

    def _slot(self, trace: int, time: float) -> tuple[float, float]:
        """The first slot of a trace that ends after a time: from when and until when."""
        slots = self.traces.availability
        place = slice(slots.offsets[trace], slots.offsets[trace + 1])
        starts, ends, period = slots.start[place], slots.end[place], slots.period_s
        if not len(starts):
            return math.inf, math.inf
        if len(starts) == 1 and (starts[0], ends[0]) == (0, period):
            return time, math.inf
        base = math.floor(time / period) * float(period)
        at = int(np.searchsorted(ends, time - base, side="right"))
        if at == len(ends):
            at, base = 0, base + period
        begin, end = max(time, base + float(starts[at])), base + float(ends[at])
        if ends[at] == period and starts[0] == 0:
            end += float(ends[0])
        return begin, end


def processed(count: int, local: Any) -> int:
    """Examples of all local steps of a client with so many examples."""
    passes, length, size, most = lengths(count, local)
    full, rest = passes, 0
    if most is not None and length:
        a_pass = -(-length // size)
        full, rest = divmod(min(most, passes * a_pass), a_pass)
    return full * length + min(rest * size, length)
