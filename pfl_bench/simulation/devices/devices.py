"""Devices: how fast they compute and send, when they are available, and whose they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_bench.simulation.devices.availability import Availability, Ids, Times
from pfl_bench.types import DataError

Column = NDArray[np.float32]

_PERCENTILES = (5, 50, 95)
_MINUTE_S, _HALF_HOUR_S = 60, 1800
COLUMNS: dict[str, type[np.generic]] = {
    **dict.fromkeys(("latency_ms", "bandwidth_kbps"), np.float32),
    "slot_offsets": np.int64,
    **dict.fromkeys(("slot_start", "slot_end"), np.int32),
}
"""The columns of devices, as files name them, and their types."""


@dataclass(frozen=True, slots=True, eq=False)
class Devices:
    """A trace of devices. Capacity and availability may be of different people.

    Attributes:
        latency_ms: Shape (C,), milliseconds a sample of inference; finite, above 0.
        bandwidth_kbps: Shape (C,), kbit/s in each direction; finite, above 0.
        availability: The slots of A traces; A is C unless they were published apart.
        source: Where they are from, in a few words: "generated, seed 0" or names of files.
        is_generated: Whether they are made up; wherever they are shown, this is said.
    """

    latency_ms: Column
    bandwidth_kbps: Column
    availability: Availability
    source: str
    is_generated: bool

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        """The arrays, by the names in ``COLUMNS`` and in their order; shapes as of each."""
        slots = self.availability
        arrays = (self.latency_ms, self.bandwidth_kbps, slots.offsets, slots.start, slots.end)
        return dict(zip(COLUMNS, arrays, strict=True))

    def check(self) -> None:
        """Hold the columns against what is said of them; raises ValueError.

        A slot out of place would make rounds that hang.
        """
        for name, column in self.columns.items():
            wanted = np.dtype(COLUMNS[name])
            if column.dtype != wanted or column.ndim != 1:
                raise ValueError(f"column {name!r} is {column.dtype}, not a column of {wanted}")
        if not len(self.latency_ms) or len(self.latency_ms) != len(self.bandwidth_kbps):
            raise ValueError(
                f"{len(self.latency_ms)} latencies and {len(self.bandwidth_kbps)} bandwidths"
            )
        for capacity in (self.latency_ms, self.bandwidth_kbps):
            if not (np.isfinite(capacity) & (capacity > 0)).all():
                raise ValueError("a capacity is not a finite number above 0")
        self.availability.check()

    def assign(self, num_users: int, rng: np.random.Generator) -> Fleet:
        """Give each user a device.

        The capacities are shuffled and dealt to the users in turn, in a new order for each further
        pass if there are more users than capacities; so each stands for as many users as any other,
        but for one. The availability traces are dealt in the same way, independent of the
        capacities: nothing is known of which belongs to which. (FedScale deals both in the order of
        the files.)
        """
        capacity = _deal(len(self.latency_ms), num_users, rng)
        trace = _deal(len(self.availability), num_users, rng)
        return Fleet(
            self.latency_ms[capacity], self.bandwidth_kbps[capacity], trace, self.availability
        )

    def facts(self) -> dict[str, Any]:
        """Facts of the devices, as plain data: counts, percentiles, and how many are available."""
        slots = self.availability
        lengths = (slots.end - slots.start) / _MINUTE_S
        percent = 100.0 * slots.count(_HALF_HOUR_S) / len(slots)
        return {
            "source": self.source,
            "generated": self.is_generated,
            "devices": len(self.latency_ms),
            "latency_ms": _percentiles(self.latency_ms),
            "bandwidth_kbps": _percentiles(self.bandwidth_kbps),
            "period_s": slots.period_s,
            "availability_traces": len(slots),
            "traces_without_slots": int(np.count_nonzero(np.diff(slots.offsets) == 0)),
            "slots": len(lengths),
            "slot_minutes": _percentiles(lengths) if len(lengths) else None,
            "percent_available": {
                "mean": float(percent.mean()),
                "least": float(percent.min()),
                "most": float(percent.max()),
            },
        }


@dataclass(frozen=True, slots=True, eq=False)
class Fleet:
    """The devices of U users: columns of shape (U,) as in ``Devices``.

    A user follows the slots of its ``trace``.
    """

    latency_ms: Column
    bandwidth_kbps: Column
    trace: Ids
    availability: Availability

    def __len__(self) -> int:
        """Number of users, U."""
        return len(self.trace)

    def available(self, users: Ids, time: float) -> NDArray[np.bool_]:
        """Whether users are available at a time, shape (n,); see ``Availability.available``."""
        slots, traces = self.availability, self.trace[users]
        if len(slots) < len(traces):  # each trace once, whoever follows it
            return slots.available(np.arange(len(slots)), time)[traces]
        return slots.available(traces, time)

    def slot_end(self, users: Ids, time: float) -> Times:
        """Times at which users' slots end, shape (n,); see ``Availability.slot_end``."""
        return self.availability.slot_end(self.trace[users], time)

    def next_available(self, users: Ids, time: float) -> Times:
        """Times of users' next availability, shape (n,); see ``Availability.next_available``."""
        return self.availability.next_available(self.trace[users], time)

    def check_available(self) -> None:
        """Check that some user is available at some time."""
        if not np.diff(self.availability.offsets)[self.trace].any():
            raise DataError(
                f"systems: none of the {len(self)} users is available at any time of the traces' "
                f"period of {self.availability.period_s} seconds, so no round can begin; give "
                "other traces, or none of availability"
            )


def _percentiles(values: NDArray[np.floating]) -> dict[str, float]:
    found = np.percentile(values, _PERCENTILES).tolist()
    return {f"p{percent}": value for percent, value in zip(_PERCENTILES, found, strict=True)}


def _deal(num_traces: int, num_users: int, rng: np.random.Generator) -> Ids:
    passes = [rng.permutation(num_traces) for _ in range(ceil(num_users / num_traces))]
    return np.concatenate(passes)[:num_users] if passes else np.zeros(0, np.int64)


def check_capacities(
    latency_ms: NDArray[np.float64],
    bandwidth_kbps: NDArray[np.float64],
    place: Callable[[int], str],
) -> tuple[Column, Column]:
    """Check the capacities of C devices, shape (C,) each, and make columns of ``Devices`` of them.

    ``place`` says where device i is, such as file and client.
    """
    if not len(latency_ms):
        raise DataError(f"{place(0)}: there are no devices; at least one is needed")
    columns: list[Column] = []
    for name, unit, values in (
        ("latency", "milliseconds a sample", latency_ms),
        ("bandwidth", "kbit/s", bandwidth_kbps),
    ):
        with np.errstate(over="ignore"):
            column = values.astype(np.float32)
        wrong = ~(np.isfinite(column) & (column > 0))
        if wrong.any():
            index = int(np.argmax(wrong))
            raise DataError(
                f"{place(index)}: its {name} is {values[index]:g} {unit}; it must be a finite "
                "number above 0 that float32 holds: correct it or leave the device out"
            )
        columns.append(column)
    return columns[0], columns[1]
