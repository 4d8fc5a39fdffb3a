"""Availability of devices: slots over a period that repeats, asked for many devices at once.

Time is in seconds from 0 on and wraps at the period. A slot holds its start and not its end. One
that ends with the period and one that begins with it are one slot across the wrap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pfl_bench.types import DataError

Ids = NDArray[np.int64]
Seconds = NDArray[np.int32]
Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Availability:
    """The slots of T traces.

    Attributes:
        period_s: Whole seconds, below 2^31, after which all slots come again.
        offsets: Shape (T + 1,): trace t has the slots ``offsets[t]:offsets[t + 1]``; may have none.
        start: Shape (S,), whole seconds, at least 0; ascending within a trace.
        end: Shape (S,), whole seconds, above ``start``, below the next slot's start, at most
            ``period_s``.
    """

    period_s: int
    offsets: Ids
    start: Seconds
    end: Seconds

    def __len__(self) -> int:
        """Number of traces, T."""
        return len(self.offsets) - 1

    def check(self) -> None:
        """Hold the slots against what is said of them; raises ValueError."""
        offsets, start, end = self.offsets, self.start, self.end
        if len(offsets) < 2 or offsets[0] != 0 or (offsets[1:] < offsets[:-1]).any():
            raise ValueError("the offsets of the slots do not ascend from 0")
        if offsets[-1] != len(start) or len(start) != len(end):
            raise ValueError(f"{len(start)} starts and {len(end)} ends of {offsets[-1]} slots")
        if not 1 <= self.period_s < 2**31:
            raise ValueError(f"the period is {self.period_s} seconds")
        if not len(start):
            return
        # A slot begins behind the one before it, or is the first of its trace.
        behind = start[1:] > end[:-1]
        inner = offsets[(offsets > 0) & (offsets < len(start))]
        behind[inner - 1] = True
        if not (behind.all() and (start < end).all()):
            raise ValueError("slots overlap or run backwards")
        if start.min() < 0 or end.max() > self.period_s:
            raise ValueError(f"slots do not fit the period of {self.period_s} seconds")

    def available(self, traces: Ids, time: float) -> NDArray[np.bool_]:
        """Whether n traces are in a slot at a time, in seconds from 0 on: shape (n,)."""
        return self._find(traces, time)[2]

    def slot_end(self, traces: Ids, time: float) -> Times:
        """Time at which the slot ends that each of n traces is in: shape (n,), absolute seconds.

        Infinite for one that is always available; ``time`` itself for one that is not available.
        """
        slots, base, inside = self._find(traces, time)
        result = np.full(len(traces), time)
        mine, slot = traces[inside], slots[inside]
        first = self.offsets[mine]
        end = base + self.end[slot]
        goes_on = (self.end[slot] == self.period_s) & (self.start[first] == 0)
        end[goes_on] += self.end[first[goes_on]]
        end[goes_on & (slot == first)] = np.inf
        result[inside] = end
        return result

    def next_available(self, traces: Ids, time: float) -> Times:
        """First time from ``time`` on at which each of n traces is available: shape (n,).

        In absolute seconds; infinite for one without slots.
        """
        slots, base, inside = self._find(traces, time)
        first, stop = self.offsets[traces], self.offsets[traces + 1]
        wraps = slots == stop
        result = np.full(len(traces), np.inf)
        some = first < stop
        start = self.start[np.where(wraps, first, slots)[some]]
        result[some] = base + start + np.where(wraps[some], self.period_s, 0)
        result[inside] = time
        return result

    def count(self, step_s: int) -> Ids:
        """Number of traces available at the times 0, ``step_s``, 2 ``step_s`` ... of the period.

        The shape is (ceil(period_s / step_s),).
        """
        size = -(-self.period_s // step_s)
        # Slots that have begun at a time, less those that have ended.
        begun = np.bincount(-(-self.start // step_s), minlength=size + 1)
        ended = np.bincount(-(-self.end // step_s), minlength=size + 1)
        result: Ids = np.cumsum(begun - ended)[:size]
        return result

    def _find(self, traces: Ids, time: float) -> tuple[Ids, float, NDArray[np.bool_]]:
        """The first slot of each trace that ends after a time.

        Gives indices of the slots (the trace's stop where there is none in this period), the time
        at which this period began, and whether the slot has begun.
        """
        base = np.floor(time / self.period_s) * self.period_s
        phase = time - base
        low, stop = self.offsets[traces], self.offsets[traces + 1]
        if not len(self.end):
            return low, float(base), np.zeros(len(traces), bool)
        step = 1 << int(np.max(stop - low, initial=0)).bit_length()
        while step := step >> 1:
            beyond = low + step
            # Where there is no such slot any one is looked at, and what it says is not used.
            is_over = self.end[np.minimum(beyond, stop) - 1] <= phase
            low = low + step * (is_over & (beyond <= stop))
        inside = low < stop
        inside[inside] = self.start[low[inside]] <= phase
        return low, float(base), inside


def always_available(period_s: int, num_traces: int = 1) -> Availability:
    """Traces that are available all the time."""
    return Availability(
        period_s,
        np.arange(num_traces + 1, dtype=np.int64),
        np.zeros(num_traces, np.int32),
        np.full(num_traces, period_s, np.int32),
    )


def take_traces(slots: Availability, traces: Ids) -> Availability:
    """Some traces, shape (n,), in the order given, as an availability of their own."""
    counts = np.diff(slots.offsets)[traces]
    offsets = np.append(0, np.cumsum(counts)).astype(np.int64)
    place = np.arange(offsets[-1]) + np.repeat(slots.offsets[traces] - offsets[:-1], counts)
    return Availability(slots.period_s, offsets, slots.start[place], slots.end[place])


def make_availability(
    owner: Ids,
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    num_traces: int,
    period_s: int,
    place: Callable[[int], str],
) -> Availability:
    """Check slots and put them in order; slots that touch become one.

    Args:
        owner: Shape (S,), the trace of each slot, in any order.
        start: Shape (S,), seconds.
        end: Shape (S,), seconds.
        num_traces: Traces, T.
        period_s: Seconds after which slots come again.
        place: Says where slot number i of the arguments is, such as file and line.
    """
    wrong = (start >= end) | (start < 0) | (end > period_s)
    if wrong.any():
        index = int(np.argmax(wrong))
        what = "has no length" if start[index] == end[index] else "runs backwards"
        if start[index] < end[index]:
            what = f"does not fit the period of 0 to {period_s} seconds"
        raise DataError(
            f"{place(index)}: the slot from {start[index]} to {end[index]} seconds {what}; every "
            f"slot has 0 <= start < end <= {period_s}: correct it or leave it out"
        )
    # One key orders several times as fast as two; slots in order, as published, need none.
    key = owner * period_s + start
    order: Ids | None = None
    if (key[1:] < key[:-1]).any():
        order = np.argsort(key, kind="stable")
        owner, start, end = owner[order], start[order], end[order]
    del key
    overlaps = (owner[1:] == owner[:-1]) & (start[1:] < end[:-1])
    if overlaps.any():
        index = int(np.argmax(overlaps))
        where = place(index + 1 if order is None else int(order[index + 1]))
        raise DataError(
            f"{where}: the slot from {start[index + 1]} to {end[index + 1]} "
            f"seconds overlaps the one from {start[index]} to {end[index]} of the same client; "
            "make them one"
        )
    return merge_slots(owner, start, end, num_traces, period_s)


def merge_slots(
    owner: Ids,
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    num_traces: int,
    period_s: int,
) -> Availability:
    """Make one of slots that overlap or touch.

    All have shape (S,). Owners ascend, and starts within an owner; every end is above its start.
    """
    # Owners are kept apart by more than a period, so one running maximum serves them all.
    apart = owner * (2 * period_s)
    reached = np.maximum.accumulate(end + apart)
    begins = np.ones(len(start), bool)
    begins[1:] = start[1:] + apart[1:] > reached[:-1]
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(start)) - 1 if len(first) else first
    counts = np.bincount(owner[first], minlength=num_traces)
    offsets = np.append(0, np.cumsum(counts)).astype(np.int64)
    ends = (reached[last] - apart[last]).astype(np.int32)
    return Availability(period_s, offsets, start[first].astype(np.int32), ends)
