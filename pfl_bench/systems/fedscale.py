"""FedScale's published traces: what devices can do, and when their users let them.

``client_device_capacity`` is a pickle of {id: {"computation": milliseconds a sample of inference,
"communication": kbit/s}}, 500,000 clients; ``client_behave_trace`` one of {id: {"active": [...],
"inactive": [...], "finish_time": 518400, "duration", "model"}}, 107,749 clients. A client is
available from active[i] to inactive[i], in seconds, and again every finish_time. The numbers of the
two files do not mean the same people, so ``Devices.assign`` deals them apart.

Source: FedScale's repository, benchmark/dataset/data/device_info.
"""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from pfl_bench.builtin_pickle import load_builtin_pickle
from pfl_bench.systems.availability import Availability, always_available, make_availability
from pfl_bench.systems.devices import Column, Devices, check_capacities
from pfl_bench.systems.options import PERIOD_S
from pfl_bench.types import DataError

_CAPACITY = ("computation", "communication")
_SLOTS = ("active", "inactive")


def read_fedscale(capacity: Path, availability: Path | None) -> Devices:
    """Read the published files; one after the other, so that only one is in memory as objects.

    Args:
        capacity: ``client_device_capacity``.
        availability: ``client_behave_trace``; None for devices that are always available.

    Raises:
        DataError: A file is missing, damaged or of another form, a client has no capacity, or a
            slot cannot be; file and client are named.
    """
    latency, bandwidth = _read_capacity(capacity)
    if availability is None:
        slots = always_available(PERIOD_S)
        source = f"{capacity.name}, always available"
    else:
        slots, num_empty = _read_availability(availability)
        source = f"{capacity.name} and {availability.name}"
        if num_empty:
            source += f" (without {num_empty} slots of no length)"
    return Devices(latency, bandwidth, slots, source, is_generated=False)


def _read_capacity(path: Path) -> tuple[Column, Column]:
    entries = _read_entries(path, _CAPACITY)
    latency, bandwidth = (_numbers(path, entries, key) for key in _CAPACITY)
    clients = list(entries)
    del entries
    return check_capacities(latency, bandwidth, lambda index: f"{path}: client {clients[index]!r}")


def _numbers(path: Path, entries: dict[Any, Any], key: str) -> NDArray[np.float64]:
    values = [entry[key] for entry in entries.values()]
    # Text would become a number, and so would True.
    if not {type(value) for value in values} <= {float, int}:
        _name_bad_number(path, entries, key)
    try:
        return np.array(values, np.float64)
    except OverflowError:
        _name_bad_number(path, entries, key)


def _name_bad_number(path: Path, entries: dict[Any, Any], key: str) -> NoReturn:
    for client, entry in entries.items():
        value = entry[key]
        if type(value) not in (float, int) or (type(value) is int and value > 2**1000):
            raise DataError(
                f"{path}: client {client!r}: its {key!r} is {value!r:.80}, not a number; give "
                "every client a capacity: milliseconds a sample and kbit/s"
            )
    raise AssertionError("some number is none")


def _read_availability(path: Path) -> tuple[Availability, int]:
    entries = _read_entries(path, (*_SLOTS, "finish_time"))
    first = next(iter(entries))
    period = entries[first]["finish_time"]
    counts = np.empty(len(entries), np.int64)
    for index, (client, entry) in enumerate(entries.items()):
        where = f"{path}: client {client!r}"
        if type(entry["finish_time"]) is not int or not 0 < entry["finish_time"] < 2**31:
            raise DataError(
                f"{where}: 'finish_time' is {entry['finish_time']!r:.80}; it must be the period in "
                "whole seconds, above 0"
            )
        if entry["finish_time"] != period:
            raise DataError(
                f"{where}: 'finish_time' is {entry['finish_time']}, but {period} of client "
                f"{first!r}; all clients of a file share one period"
            )
        begins, ends = entry["active"], entry["inactive"]
        if type(begins) is not list or type(ends) is not list or len(begins) != len(ends):
            raise DataError(
                f"{where}: 'active' and 'inactive' must be two lists of the same length: each slot "
                "begins and ends"
            )
        counts[index] = len(begins)
    short_begin, short_end = (_flatten(path, entries, key, int(counts.sum())) for key in _SLOTS)
    # As columns they take a tenth of the memory, and what follows takes some as well.
    del entries, first
    # A charger that was put in and pulled out within a second.
    some = short_begin != short_end
    owner = np.repeat(np.arange(len(counts)), counts)[some]
    begin, end = short_begin[some].astype(np.int64), short_end[some].astype(np.int64)

    def place(slot: int) -> str:
        # Names that were kept would keep the memory around them from being given back.
        return f"{path}: client {list(load_builtin_pickle(path))[owner[slot]]!r}"

    slots = make_availability(owner, begin, end, len(counts), period, place)
    return slots, int(np.count_nonzero(~some))


def _flatten(path: Path, entries: dict[Any, Any], key: str, count: int) -> NDArray[np.int32]:
    """All lists under a key, one behind the other, whole seconds."""
    values = chain.from_iterable(entry[key] for entry in entries.values())
    try:
        numbers = np.fromiter(values, np.float64, count)
    except (TypeError, ValueError, OverflowError):
        numbers = np.full(1, np.nan)
    # Comparisons with NaN fail.
    if np.min(numbers, initial=0) > -(2**31) and np.max(numbers, initial=0) < 2**31:
        seconds = numbers.astype(np.int32)
        if (seconds == numbers).all():
            return seconds
    for client, entry in entries.items():
        for value in entry[key]:
            if type(value) not in (int, float) or value != value // 1 or abs(value) >= 2**31:
                raise DataError(
                    f"{path}: client {client!r}: {key!r} holds {value!r:.80}; slots begin and "
                    "end at whole seconds"
                )
    raise AssertionError("some value is no whole second")


def _read_entries(path: Path, keys: tuple[str, ...]) -> dict[Any, dict[str, Any]]:
    """A file's dictionary of clients, each with a dictionary that has the keys."""
    entries = load_builtin_pickle(path)
    form = f"{{id: {{{', '.join(map(repr, keys))}}}}}"
    if type(entries) is not dict:
        raise DataError(f"{path}: holds {type(entries).__name__}; expected {form}")
    if not entries:
        raise DataError(f"{path}: holds no clients; expected {form}")
    wanted = frozenset(keys)
    for client, entry in entries.items():
        if type(entry) is not dict or not wanted <= entry.keys():
            found = set(entry) if type(entry) is dict else set()
            missing = ", ".join(repr(key) for key in keys if key not in found)
            raise DataError(f"{path}: client {client!r} has no {missing}; expected {form}")
    return entries
