"""The HDF5 side of a store's file, made in memory: everything but the content of the arrays."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np

# From 1.10 on, metadata has checksums; earlier files let HDF5 crash or hang on a flipped bit.
# Text attributes are of fixed length for the same reason: the heap of variable ones has none.
_HDF5_VERSIONS = ("v110", "v110")


@dataclass(frozen=True)
class Structure:
    """Arrays of a file, and the groups and attributes around them.

    Attributes:
        positions: Byte at which each dataset's content begins; 0 if it has none.
        pieces: (position, bytes) of what HDF5 wrote, in that order: a later one may cover an
            earlier one.
    """

    positions: tuple[int, ...]
    pieces: tuple[tuple[int, bytes], ...]
    size: int


def make_structure(
    datasets: Iterable[tuple[str, np.dtype[Any], tuple[int, ...]]],
    attributes: Mapping[str, str | int],
) -> Structure:
    """Lay out a file of contiguous datasets (path, dtype, shape), with groups as needed.

    The same arguments give the same layout, and so do attributes of the root of equal lengths.
    """
    recorder = _Recorder()
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    # Space is assigned at once and nothing is written to it: files of gigabytes cost no memory.
    plan.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    plan.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    with h5py.File(recorder, "w", libver=_HDF5_VERSIONS) as file:
        positions = tuple(
            file.create_dataset(name, shape, dtype, dcpl=plan).id.get_offset() or 0
            for name, dtype, shape in datasets
        )
        for name, value in attributes.items():
            if isinstance(value, str):
                data = value.encode()
                file.attrs.create(name, data, dtype=h5py.string_dtype("utf-8", max(1, len(data))))
            else:
                file.attrs[name] = value
    return Structure(positions, tuple(recorder.pieces), recorder.size)


class _Recorder:
    """A file-like object that remembers what HDF5 writes; all else reads as zeros."""

    def __init__(self) -> None:
        self.pieces: list[tuple[int, bytes]] = []
        self.size = 0
        self._position = 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        starts = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size}
        self._position = starts[whence] + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def write(self, data: Any) -> int:
        piece = bytes(data)
        self.pieces.append((self._position, piece))
        self._position += len(piece)
        self.size = max(self.size, self._position)
        return len(piece)

    def read(self, size: int) -> bytes:
        first, self._position = self._position, self._position + size
        found = bytearray(size)
        for start, piece in self.pieces:
            low, high = max(start, first), min(start + len(piece), self._position)
            if low < high:
                found[low - first : high - first] = piece[low - start : high - start]
        return bytes(found)

    def truncate(self, size: int) -> int:
        self.size = size
        return size

    def flush(self) -> None:
        """Nothing is held back."""
