"""FedScale's published traces: what devices can do, and when their users let them.

``client_device_capacity`` is a pickle of {id: {"computation": milliseconds a sample of inference,
"communication": kbit/s}}, 500,000 clients; ``client_behave_trace`` one of {id: {"active": [...],
"inactive": [...], "finish_time": 518400, "duration", "model"}}, 107,749 clients. A client is
available from active[i] to inactive[i], in seconds, and again every finish_time. The numbers of the
two files do not mean the same people, so ``Devices.assign`` deals them apart.

Source: FedScale's repository, benchmark/dataset/data/device_info.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from pfl_bench.config.sections import PERIOD_S
from pfl_bench.config.training import Strict
from pfl_bench.data.safe_pickle import load_builtin_pickle
from pfl_bench.simulation.devices.availability import (
    Availability,
    always_available,
    make_availability,
)
from pfl_bench.simulation.devices.devices import Column, Devices, check_capacities
from pfl_bench.types import DataError

_CAPACITY = ("computation", "communication")
_SLOTS = ("active", "inactive")
_BEHAVIOUR = (*_SLOTS, "finish_time")
_WAY_OUT = (
    "or leave such clients out: `pfl-bench data traces fedscale ... --leave-out-bad --out F.npz` "
    "writes the others, for source: {name: file, path: F.npz}"
)
_Entries = dict[Any, dict[str, Any]]


class Options(Strict):
    """Options of FedScale's published files, pickles that are read without running what is in them.

    Attributes:
        capacity: Path of ``client_device_capacity``.
        availability: Path of ``client_behave_trace``; null for devices that are always available.
    """

    capacity: str
    availability: str | None = None


def build(options: Options, num_users: int, left_out: LeftOut | None = None) -> Devices:
    """Read the published files; ``left_out`` is as in ``read_fedscale``."""
    availability = None if options.availability is None else Path(options.availability)
    return read_fedscale(Path(options.capacity), availability, left_out)


@dataclass(slots=True)
class LeftOut:
    """Number of bad clients that are left out of each file, and what is wrong with its first."""

    counts: dict[Path, int] = field(default_factory=dict)
    first: list[str] = field(default_factory=list)

    def sift(self, path: Path, entries: _Entries, check: Callable[[_Entries], object]) -> None:
        """Take out of a file's clients those that ``check`` refuses by a DataError.

        ``check`` refuses a client whoever the others are. Halves are checked until what is wrong is
        one client: quick if few are bad. All being bad is a DataError.
        """
        reasons: dict[Any, str] = {}
        waiting = [list(entries)]
        while waiting:
            clients = waiting.pop()
            try:
                check({client: entries[client] for client in clients})
            except DataError as error:
                if len(clients) == 1:
                    reasons[clients[0]] = str(error)
                else:
                    half = len(clients) // 2
                    waiting += [clients[half:], clients[:half]]
        if not reasons:
            return
        self.first.append(next(iter(reasons.values())))
        if len(reasons) == len(entries):
            raise DataError(f"{path}: all {len(entries)} clients are bad; {self.first[-1]}")
        self.counts[path] = len(reasons)
        for client in reasons:
            del entries[client]


def read_fedscale(
    capacity: Path, availability: Path | None, left_out: LeftOut | None = None
) -> Devices:
    """Read the published files; one after the other, so that only one is in memory as objects.

    Without a file of ``availability`` devices are always available. ``left_out`` takes note of the
    bad clients, which are left out; None to refuse them.
    """
    latency, bandwidth = _read_capacity(capacity, left_out)
    if availability is None:
        slots = always_available(PERIOD_S)
        source = f"{_named(capacity, left_out)}, always available"
    else:
        slots, num_empty = _read_availability(availability, left_out)
        source = f"{_named(capacity, left_out)} and {_named(availability, left_out)}"
        if num_empty:
            source += f" (without {num_empty} slots of no length)"
    return Devices(latency, bandwidth, slots, source, is_generated=False)


def _named(path: Path, left_out: LeftOut | None) -> str:
    number = 0 if left_out is None else left_out.counts.get(path, 0)
    return f"{path.name} (without {number} bad clients)" if number else path.name


@contextmanager
def _way_out_named() -> Iterator[None]:
    """Says in what a file's clients are refused by that they can be left out."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{error}; {_WAY_OUT}") from None


def _read_capacity(path: Path, left_out: LeftOut | None) -> tuple[Column, Column]:
    entries = _read_entries(path, _CAPACITY)
    if left_out is not None:
        left_out.sift(path, entries, lambda some: _capacities(path, some))
    with _way_out_named():
        return _capacities(path, entries)


def _capacities(path: Path, entries: _Entries) -> tuple[Column, Column]:
    _check_keys(path, entries, _CAPACITY)
    latency, bandwidth = (_numbers(path, entries, key) for key in _CAPACITY)
    clients = list(entries)
    return check_capacities(latency, bandwidth, lambda index: f"{path}: client {clients[index]!r}")


def _numbers(path: Path, entries: _Entries, key: str) -> NDArray[np.float64]:
    values = [entry[key] for entry in entries.values()]
    # Text would become a number, and so would True.
    if not {type(value) for value in values} <= {float, int}:
        _name_bad_number(path, entries, key)
    try:
        return np.array(values, np.float64)
    except OverflowError:
        _name_bad_number(path, entries, key)


def _name_bad_number(path: Path, entries: _Entries, key: str) -> NoReturn:
    for client, entry in entries.items():
        value = entry[key]
        if type(value) not in (float, int) or (type(value) is int and abs(value) > 2**1000):
            raise DataError(
                f"{path}: client {client!r}: its {key!r} is {value!r:.80}, not a number; give "
                "every client a capacity: milliseconds a sample and kbit/s"
            )
    raise AssertionError("some number is none")


def _read_availability(path: Path, left_out: LeftOut | None = None) -> tuple[Availability, int]:
    entries = _read_entries(path, _BEHAVIOUR)
    if left_out is not None:
        period = _commonest_period(entries)

        def check(some: _Entries) -> None:
            _slots(path, some, period).in_order(path, lambda: list(some))

        left_out.sift(path, entries, check)
    with _way_out_named():
        slots = _slots(path, entries)
        # As columns they take a tenth of the memory, and what follows takes some as well; names
        # that were kept would keep the memory around them from being given back.
        del entries
        return slots.in_order(path, lambda: list(load_builtin_pickle(path)))


class _Slots(NamedTuple):
    """The slots of a file as columns, in whole seconds and shape (S,), client by client.

    ``counts``, of shape (A,), are those of each client; all clients share the period.
    """

    counts: NDArray[np.int64]
    begin: NDArray[np.int32]
    end: NDArray[np.int32]
    period_s: int

    def in_order(self, path: Path, clients: Callable[[], list[Any]]) -> tuple[Availability, int]:
        """Check them and put them in order, without those of no length: how many these are."""
        # A charger that was put in and pulled out within a second.
        some = self.begin != self.end
        owner = np.repeat(np.arange(len(self.counts)), self.counts)[some]
        begin, end = self.begin[some].astype(np.int64), self.end[some].astype(np.int64)

        def place(slot: int) -> str:
            return f"{path}: client {clients()[owner[slot]]!r}"

        slots = make_availability(owner, begin, end, len(self.counts), self.period_s, place)
        return slots, int(np.count_nonzero(~some))


def _commonest_period(entries: _Entries) -> int:
    periods = (entry.get("finish_time") for entry in entries.values() if type(entry) is dict)
    common = Counter(period for period in periods if type(period) is int).most_common(1)
    return common[0][0] if common else PERIOD_S


def _slots(path: Path, entries: _Entries, period: int | None = None) -> _Slots:
    """Slots of clients; None for the first one's period."""
    _check_keys(path, entries, _BEHAVIOUR)
    others = "most"
    if period is None:
        first = next(iter(entries))
        period, others = entries[first]["finish_time"], f"client {first!r}"
    counts = np.empty(len(entries), np.int64)
    for index, (client, entry) in enumerate(entries.items()):
        if type(entry["finish_time"]) is not int or not 0 < entry["finish_time"] < 2**31:
            raise DataError(
                f"{path}: client {client!r}: 'finish_time' is {entry['finish_time']!r:.80}; it "
                "must be the period in whole seconds, above 0"
            )
        if entry["finish_time"] != period:
            raise DataError(
                f"{path}: client {client!r}: 'finish_time' is {entry['finish_time']}, but {period} "
                f"of {others}; all clients of a file share one period"
            )
        begins, ends = entry["active"], entry["inactive"]
        if type(begins) is not list or type(ends) is not list or len(begins) != len(ends):
            raise DataError(
                f"{path}: client {client!r}: 'active' and 'inactive' must be two lists of the same "
                "length: each slot begins and ends"
            )
        counts[index] = len(begins)
    begin, end = (_flatten(path, entries, key, int(counts.sum())) for key in _SLOTS)
    return _Slots(counts, begin, end, period)


def _flatten(path: Path, entries: _Entries, key: str, count: int) -> NDArray[np.int32]:
    """All lists under a key, one behind the other, whole seconds."""

    def values() -> Iterator[Any]:
        return chain.from_iterable(entry[key] for entry in entries.values())

    # Text would become a number, and so would True.
    kinds = set(map(type, values()))
    try:
        if kinds <= {int}:
            return np.fromiter(values(), np.int32, count)
        if kinds <= {int, float}:
            numbers = np.fromiter(values(), np.float64, count)
            # Comparisons with NaN fail.
            if np.min(numbers) > -(2**31) and np.max(numbers) < 2**31:
                seconds = numbers.astype(np.int32)
                if (seconds == numbers).all():
                    return seconds
    except OverflowError:
        pass  # named below
    for client, entry in entries.items():
        for value in entry[key]:
            if type(value) not in (int, float) or value != value // 1 or abs(value) >= 2**31:
                raise DataError(
                    f"{path}: client {client!r}: {key!r} holds {value!r:.80}; slots begin and "
                    "end at whole seconds"
                )
    raise AssertionError("some value is no whole second")


def _read_entries(path: Path, keys: tuple[str, ...]) -> _Entries:
    """A file's dictionary of clients, whatever these are."""
    entries = load_builtin_pickle(path)
    if type(entries) is not dict:
        raise DataError(f"{path}: holds {type(entries).__name__}; expected {_form(keys)}")
    if not entries:
        raise DataError(f"{path}: holds no clients; expected {_form(keys)}")
    return entries


def _check_keys(path: Path, entries: _Entries, keys: tuple[str, ...]) -> None:
    """Each client has a dictionary that has the keys."""
    wanted = frozenset(keys)
    for client, entry in entries.items():
        if type(entry) is not dict or not wanted <= entry.keys():
            found = set(entry) if type(entry) is dict else set()
            missing = ", ".join(repr(key) for key in keys if key not in found)
            raise DataError(f"{path}: client {client!r} has no {missing}; expected {_form(keys)}")


def _form(keys: tuple[str, ...]) -> str:
    return f"{{id: {{{', '.join(map(repr, keys))}}}}}"
