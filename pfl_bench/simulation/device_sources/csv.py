"""Own traces as CSV: capacities, a line a client, and slots of availability, a line a slot."""

from __future__ import annotations

import csv
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from pfl_bench.config.sections import PERIOD_S
from pfl_bench.config.training import Strict
from pfl_bench.files import regular
from pfl_bench.simulation.devices.availability import (
    Availability,
    always_available,
    make_availability,
)
from pfl_bench.simulation.devices.devices import Devices, check_capacities
from pfl_bench.types import DataError

CAPACITY_HEADER = ("client_id", "latency_ms", "bandwidth_kbps")
SLOTS_HEADER = ("client_id", "start_s", "end_s")


class Options(Strict):
    """Options of own traces.

    Attributes:
        capacity: A file with the columns client_id, latency_ms, bandwidth_kbps.
        availability: A file with the columns client_id, start_s, end_s, a line a slot, in whole
            seconds; null for devices that are always available.
        period_s: Seconds after which the slots come again, below 2^31.
    """

    capacity: str
    availability: str | None = None
    period_s: Annotated[int, Field(ge=1, lt=2**31)] = PERIOD_S


def build(options: Options, num_users: int) -> Devices:
    """Read the traces; the devices are as many as they have."""
    availability = None if options.availability is None else Path(options.availability)
    return read_csv(Path(options.capacity), availability, options.period_s)


def read_csv(capacity: Path, availability: Path | None, period_s: int) -> Devices:
    """Read traces.

    Args:
        capacity: CSV of ``CAPACITY_HEADER``, every client once.
        availability: CSV of ``SLOTS_HEADER``, in any order; None for devices that are always
            available. A client without a line there is never available.
        period_s: Seconds after which the slots come again.
    """
    clients: dict[str, int] = {}
    lines, latency, bandwidth = array("q"), array("d"), array("d")
    for line, (client, first, second) in _rows(capacity, CAPACITY_HEADER):
        if client in clients:
            raise DataError(
                f"{capacity}:{line}: client {client!r} has a capacity already, in line "
                f"{lines[clients[client]]}; leave one of them out"
            )
        clients[client] = len(clients)
        lines.append(line)
        latency.append(_number(first, capacity, line, CAPACITY_HEADER[1]))
        bandwidth.append(_number(second, capacity, line, CAPACITY_HEADER[2]))
    columns = check_capacities(
        np.array(latency),
        np.array(bandwidth),
        lambda index: f"{capacity}:{lines[index] if index < len(lines) else 2}",
    )
    if availability is None:
        slots = always_available(period_s, len(clients))
        source = f"{capacity.name}, always available"
    else:
        slots = _read_slots(availability, clients, period_s, capacity)
        source = f"{capacity.name} and {availability.name}"
    return Devices(*columns, slots, source, is_generated=False)


def _read_slots(path: Path, clients: dict[str, int], period_s: int, capacity: Path) -> Availability:
    lines, owner, start, end = array("q"), array("q"), array("q"), array("q")
    for line, (client, first, second) in _rows(path, SLOTS_HEADER):
        number = clients.get(client)
        if number is None:
            raise DataError(
                f"{path}:{line}: client {client!r} has no capacity; give it a line in {capacity}, "
                "or leave its slots out"
            )
        lines.append(line)
        owner.append(number)
        start.append(_seconds(first, path, line, SLOTS_HEADER[1]))
        end.append(_seconds(second, path, line, SLOTS_HEADER[2]))
    return make_availability(
        np.array(owner, np.int64),
        np.array(start, np.int64),
        np.array(end, np.int64),
        len(clients),
        period_s,
        lambda index: f"{path}:{lines[index]}",
    )


def _rows(path: Path, header: tuple[str, str, str]) -> Iterator[tuple[int, list[str]]]:
    """Lines behind the header, each with its number."""
    form = f"expected CSV in UTF-8 with the header {','.join(header)}"
    try:
        # A byte order mark, which some spreadsheets write, is no part of the header.
        with regular(path).open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            found = next(reader, [])
            if tuple(found) != header:
                raise DataError(f"{path}:1: the header is {','.join(found)!r:.80}; {form}")
            for row in reader:
                if len(row) != len(header):
                    raise DataError(f"{path}:{reader.line_num}: {len(row)} columns; {form}")
                yield reader.line_num, row
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: {error}; {form}") from None


def _number(text: str, path: Path, line: int, name: str) -> float:
    try:
        # float() would take "1_0".
        return float(text.replace("_", "x"))
    except ValueError:
        raise DataError(f"{path}:{line}: {name} is {text!r:.80}, not a number") from None


def _seconds(text: str, path: Path, line: int, name: str) -> int:
    number = _number(text, path, line, name)
    # Comparisons with NaN fail.
    if not (abs(number) < 2**31 and number == int(number)):
        raise DataError(f"{path}:{line}: {name} is {text!r:.80}; it must be whole seconds")
    return int(number)
