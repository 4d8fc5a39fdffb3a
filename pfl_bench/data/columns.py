"""Reading slices of a store's datasets by position in the file."""

from __future__ import annotations

import math
import os
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from pfl_bench.data.layout import BLOCK_BYTES, ContentDigest, FieldSpec, offsets_name
from pfl_bench.types import DataError


class Descriptor:
    """A file descriptor of one's own that says when it is closed.

    It duplicates HDF5's, so it means the same file even if another one takes its path. Where the
    platform cannot read by position, ``number`` is None and readers go through HDF5.
    """

    def __init__(self, file: Any) -> None:
        self.number: int | None = None
        if hasattr(os, "preadv"):
            self.number = os.dup(file.id.get_vfd_handle())

    def close(self) -> None:
        """Close the descriptor; reading by it is an error from then on."""
        if self.number is not None and self.number >= 0:
            os.close(self.number)
        # Never a valid number: the system may give the old one to another file.
        self.number = -1

    def __del__(self) -> None:
        self.close()


class Column:
    """One dataset that ``open_column`` has checked: rows of one shape and dtype."""

    def __init__(self, dataset: Any, descriptor: Descriptor, where: str) -> None:
        self._dataset = dataset
        self._descriptor = descriptor
        self._where = where
        self._row_shape: tuple[int, ...] = dataset.shape[1:]
        self.num_rows: int = dataset.shape[0]
        self.dtype: np.dtype[Any] = dataset.dtype.newbyteorder("=")
        self.row_bytes = self.dtype.itemsize * math.prod(self._row_shape)
        # None: not laid out in one piece (or nothing written), so HDF5 has to read it.
        self._position: int | None = None
        if descriptor.number is not None and dataset.dtype.isnative:
            self._position = dataset.id.get_offset()

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Read the rows ``start:stop`` into a fresh array; the caller has checked the range."""
        rows = np.empty((stop - start, *self._row_shape), dtype=self.dtype)
        if not rows.size:
            return rows
        if self._position is None:
            self._read_through_hdf5(rows, start, stop)
            return rows
        rest, position = rows.data.cast("B"), self._position + start * self.row_bytes
        try:
            # One call reads at most 2 GiB, and less when a signal or a network file system says so.
            while rest:
                got = os.preadv(self._descriptor.number, (rest,), position)  # type: ignore[arg-type]
                if got == 0:
                    raise OSError(f"the file ends at byte {position}")
                rest, position = rest[got:], position + got
        except OSError as error:
            raise self._failure(error) from error
        return rows

    def _read_through_hdf5(self, rows: NDArray[Any], start: int, stop: int) -> None:
        if not self._dataset:
            raise self._failure(OSError("closed"))
        try:
            rows[...] = self._dataset[start:stop]
        except (OSError, RuntimeError) as error:
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> Exception:
        if self._descriptor.number == -1:
            return ValueError(f"{self._where}: the store is closed; read inside its `with` block.")
        return DataError(
            f"{self._where}: cannot be read ({error}). The file was cut or changed after it was "
            "opened, or its disk fails; copy or prepare it again."
        )

    def digest(self, digest: ContentDigest, split: str, name: str) -> None:
        """Feed the whole dataset to a digest, in blocks."""
        stored = self.dtype.newbyteorder("<")
        digest.begin(split, name, stored.str, (self.num_rows, *self._row_shape))
        step = max(1, BLOCK_BYTES // self.row_bytes)
        for start in range(0, self.num_rows, step):
            rows = self.read(start, min(start + step, self.num_rows))
            digest.update(rows.astype(stored, copy=False))


class RaggedColumn:
    """A ragged field: items one after another, those of example e at ``bounds[e]:bounds[e + 1]``.

    ``DataError`` if the bounds do not begin at the first item or end at the last.
    """

    def __init__(self, items: Column, bounds: Column, where: str) -> None:
        self._items = items
        self._bounds = bounds
        self._where = where
        first, last = bounds.read(0, 1)[0], bounds.read(bounds.num_rows - 1, bounds.num_rows)[0]
        if first != 0 or last != items.num_rows:
            raise DataError(
                f"{where}: items {first}:{last} belong to examples, but the file has "
                f"{items.num_rows}; the file is damaged, copy or prepare it again."
            )

    def read(self, start: int, stop: int) -> list[NDArray[Any]]:
        """Read the items of the examples ``start:stop``, an array each."""
        bounds = self._bounds.read(start, stop + 1)
        first, last = int(bounds[0]), int(bounds[-1])
        if not 0 <= first <= last <= self._items.num_rows or (bounds[1:] < bounds[:-1]).any():
            raise DataError(
                f"{self._where}: the bounds of examples {start}:{stop} are damaged; copy or "
                "prepare the file again."
            )
        items = self._items.read(first, last)
        return np.split(items, bounds[1:-1] - first) if stop > start else []

    def digest(self, digest: ContentDigest, split: str, name: str) -> None:
        """Feed bounds and items to a digest, in blocks."""
        self._bounds.digest(digest, split, offsets_name(name))
        self._items.digest(digest, split, name)


def own_member(group: Any, name: str) -> Any:
    """Member of a group of a file by name; None if there is none, or a link elsewhere.

    A link to another file is not followed: that might be a pipe, which would be waited for.
    """
    link = group.get(name, getlink=True)
    return group.get(name) if isinstance(link, h5py.HardLink) else None


def open_column(
    group: Any, name: str, spec: FieldSpec, rows: int | None, descriptor: Descriptor, where: str
) -> Column:
    """Check that a dataset is what the store says it is and lies within the file.

    ``rows`` is the number that it must have; None for any.
    """
    dataset = own_member(group, name)
    if not isinstance(dataset, h5py.Dataset):
        raise DataError(f"{where}: dataset {name!r} is missing; prepare the data again.")
    # Compared before any value is read: HDF5 objects (dtype kind "O") never get further.
    if dataset.dtype.newbyteorder("<") != spec.numpy_dtype:
        raise DataError(
            f"{where}: dataset {name!r} has dtype {dataset.dtype}, but the store announces "
            f"{spec.dtype}; only numbers of that dtype are read. Prepare the data again."
        )
    expected = (dataset.shape[0] if rows is None and dataset.ndim else rows, *spec.shape)
    if dataset.shape != expected:
        raise DataError(
            f"{where}: dataset {name!r} has shape {dataset.shape}, but {expected} was announced; "
            "the file is damaged, copy or prepare it again."
        )
    _check_extent(dataset, name, where)
    return Column(dataset, descriptor, where)


def _check_extent(dataset: Any, name: str, where: str) -> None:
    size = dataset.dtype.itemsize * math.prod(dataset.shape)
    if not size:
        return
    if dataset.chunks is not None:
        # What a file does not hold is read as zeros, however much a damaged header declares.
        chunk = dataset.dtype.itemsize * math.prod(dataset.chunks)
        held = dataset.id.get_num_chunks() * chunk
        if held < size:
            raise DataError(
                f"{where}: dataset {name!r} declares {size} bytes, but the file holds at most "
                f"{held} of them; it is damaged, copy or prepare it again."
            )
        return
    position = dataset.id.get_offset()
    if position is None:  # written nowhere, or in another file or dataset
        raise DataError(
            f"{where}: dataset {name!r} holds no data of its own in this file; prepare the data "
            "again."
        )
    end, there = position + size, os.fstat(dataset.file.id.get_vfd_handle()).st_size
    if end > there:
        raise DataError(
            f"{where}: the file is cut: dataset {name!r} needs bytes up to {end}, but the file "
            f"has {there}. Copy it again, or prepare the data again."
        )
