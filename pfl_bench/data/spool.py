"""Raw temporary files that take one split's arrays in whatever order the source has them."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from pfl_bench.data.layout import BLOCK_BYTES, FieldSpec, offsets_name

_BUFFER_BYTES = 256 << 10
_EXAMPLES = ""  # the unit of columns that have one row an example


class Spool:
    """One split's data on its way into a store: rows on disk, an index of segments in memory.

    A segment is what one ``append`` brought: rows of one client. A column is one temporary file;
    a ragged field has two, its items and the number of items of each example.
    """

    def __init__(self, folder: Path, split: str, fields: Mapping[str, FieldSpec]) -> None:
        self.clients: dict[str, int] = {}
        self._num_clients = 0
        self._owners = array("q")
        self._rows: dict[str, array[int]] = {_EXAMPLES: array("q")}
        # Of each unit's rows, once frozen: how many each segment has, and where they start.
        self._counts: dict[str, NDArray[np.int64]] = {}
        self._starts: dict[str, NDArray[np.int64]] = {}
        self._units: dict[str, str] = {}
        self._row_bytes: dict[str, int] = {}
        self._files: dict[str, BinaryIO] = {}
        try:
            for field, spec in fields.items():
                unit = field if spec.ragged else _EXAMPLES
                self._add_column(folder, split, field, spec.row_bytes, unit)
                if spec.ragged:
                    self._rows[field] = array("q")
                    self._add_column(folder, split, offsets_name(field), 8, _EXAMPLES)
        except OSError:
            self.close()
            raise

    def _add_column(self, folder: Path, split: str, name: str, row_bytes: int, unit: str) -> None:
        self._units[name] = unit
        self._row_bytes[name] = row_bytes
        self._files[name] = open(folder / f"{split}.{name}.raw", "wb", buffering=_BUFFER_BYTES)  # noqa: SIM115

    def append(self, client_id: str, count: int, columns: Mapping[str, NDArray[Any]]) -> None:
        """Add a segment of ``count`` examples: C-contiguous arrays in the dtype of the file."""
        for name, rows in columns.items():
            if rows.size:
                self._files[name].write(rows.reshape(-1).view(np.uint8).data)
        self._owners.append(self.clients.setdefault(client_id, len(self.clients)))
        self._rows[_EXAMPLES].append(count)
        for name, unit in self._units.items():
            if unit:
                self._rows[unit].append(len(columns[name]))

    def freeze(self) -> None:
        """End appending: hand the buffers to the operating system, index the segments.

        ``OSError`` if the disk is full, or an append was broken off and left columns unequal.
        """
        for name, file in self._files.items():
            file.flush()
            expected = self.total_rows(name) * self._row_bytes[name]
            if file.tell() != expected:
                raise OSError(
                    f"temporary file {file.name} has {file.tell()} bytes instead of {expected}: "
                    "an append to the store was interrupted"
                )
        for unit, rows in self._rows.items():
            self._counts[unit] = _as_int64(rows)
            self._starts[unit] = np.cumsum(self._counts[unit]) - self._counts[unit]

        self._num_clients = len(self.clients)

    def forget_clients(self) -> list[str]:
        """Give the clients in the order in which they came, once frozen, and keep no names.

        What takes clients by name cannot be called from then on; numbers go on working. A list
        needs a tenth of the memory of the dictionary.
        """
        clients = list(self.clients)
        self.clients = {}
        return clients

    def close(self) -> None:
        """Close the temporary files, whatever state they are in."""
        for file in self._files.values():
            try:
                file.close()
            except OSError:
                # A full disk refuses the last buffer; the file is about to be removed.
                continue

    def examples_per_client(self) -> NDArray[np.int64]:
        """Examples of each client, in the order of ``clients``; shape (U,)."""
        counts = np.zeros(self._num_clients, dtype=np.int64)
        np.add.at(counts, _as_int64(self._owners), self._counts[_EXAMPLES])
        return counts

    def bytes_per_client(self) -> NDArray[np.int64]:
        """Bytes of each client over all columns, in the order of ``clients``; shape (U,)."""
        sizes = np.zeros(self._num_clients, dtype=np.int64)
        for name, unit in self._units.items():
            np.add.at(sizes, _as_int64(self._owners), self._counts[unit] * self._row_bytes[name])
        return sizes

    def total_examples(self) -> int:
        """Examples of all clients."""
        return int(_as_int64(self._rows[_EXAMPLES]).sum())

    def total_rows(self, column: str) -> int:
        """Rows of a column: examples, or items for a ragged field."""
        return int(_as_int64(self._rows[self._units[column]]).sum())

    def total_bytes(self) -> int:
        """Bytes of all columns."""
        return sum(self.total_rows(name) * size for name, size in self._row_bytes.items())

    def segment_order(self, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Order of segments that sorts clients by ``ranks``, shape (U,), stable within each."""
        return np.argsort(ranks[_as_int64(self._owners)], kind="stable").astype(np.int64)

    def segments_by_number(self) -> Callable[[int], NDArray[np.int64]]:
        """Give a function from a client's number to its segments, shape (S,), as they came."""
        owners = _as_int64(self._owners)
        order = np.argsort(owners, kind="stable").astype(np.int64)
        ends = np.cumsum(np.bincount(owners, minlength=self._num_clients))
        return lambda client: order[ends[client - 1] if client else 0 : ends[client]]

    def gather(self, column: str, segments: NDArray[np.int64]) -> Iterator[NDArray[np.uint8]]:
        """Read a column's rows in the order of ``segments``, shape (S,), in blocks of whole rows.

        A block is bytes, at most ``BLOCK_BYTES`` (or one row), and is valid until the next one.
        """
        row_bytes = self._row_bytes[column]
        starts = self._starts[self._units[column]][segments]
        ends = starts + self._counts[self._units[column]][segments]
        # Neighbours in the file are read at once: sources that are sorted already cost one pass.
        fresh = np.flatnonzero(np.concatenate(([True], starts[1:] != ends[:-1])))
        last = np.concatenate((fresh[1:] - 1, [len(segments) - 1]))
        block = np.empty(max(1, BLOCK_BYTES // row_bytes) * row_bytes, dtype=np.uint8)
        room, filled = block.data, 0
        # Unbuffered: a buffer would read 256 KiB for each of many small, scattered segments.
        with open(self._files[column].name, "rb", buffering=0) as file:
            for begin, end in zip(starts[fresh] * row_bytes, ends[last] * row_bytes, strict=True):
                position, remaining = int(begin), int(end - begin)
                while remaining:
                    file.seek(position)
                    got = file.readinto(room[filled : filled + min(remaining, block.size - filled)])
                    if not got:
                        raise OSError(f"temporary file {file.name} ended at byte {position}")
                    position, remaining, filled = position + got, remaining - got, filled + got
                    if filled == block.size:
                        yield block
                        filled = 0
        if filled:
            yield block[:filled]


def _as_int64(values: array[int]) -> NDArray[np.int64]:
    """The array's own memory, which cannot grow while the result is kept."""
    return np.frombuffer(values, np.int64) if values else np.empty(0, np.int64)
