"""Putting a store's HDF5 file together from spools: users sorted, arrays contiguous.

HDF5 must never meet a disk that is full: when a write fails while it closes a file, it leaves
its objects half destroyed and the process crashes, then or at exit. So HDF5 only decides, in
memory, what the file looks like around the arrays (``make_structure``); that and the arrays are
written by plain file operations whose failures are exceptions like any other.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from pfl_bench.data.layout import (
    CLIENT_IDS,
    FORMAT,
    LAYOUT_VERSION,
    NAMES,
    ContentDigest,
    FieldSpec,
    offsets_name,
    ordered_splits,
)
from pfl_bench.data.spool import Spool

_IDS_A_BLOCK = 1 << 16
# From 1.10 on, metadata has checksums; earlier files let HDF5 crash or hang on a flipped bit.
# Text attributes are of fixed length for the same reason: the heap of variable ones has none.
_HDF5_VERSIONS = ("v110", "v110")


@dataclass(frozen=True)
class _Array:
    """One array of the store and its content, block after block, which can be taken once."""

    split: str
    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    blocks: Iterable[NDArray[Any]]


def assemble(
    path: Path,
    spools: Mapping[str, Spool],
    fields: Mapping[str, FieldSpec],
    names: Mapping[str, Sequence[str]],
    attributes: Mapping[str, Any],
) -> None:
    """Write a whole store from frozen spools to a new file, in blocks, and synchronise it."""
    splits = ordered_splits(spools)
    arrays = [array for name in splits for array in _arrays(name, spools[name], fields)]
    for name in sorted(names):
        arrays += _texts(NAMES, name, names[name], np.arange(len(names[name])))
    announced = {
        name: {"dtype": spec.dtype, "shape": list(spec.shape), "ragged": spec.ragged}
        for name, spec in fields.items()
    }
    counts = {
        name: {"users": len(spools[name].clients), "examples": spools[name].total_examples()}
        for name in splits
    }
    attributes = {
        "format": FORMAT,
        "layout_version": LAYOUT_VERSION,
        **attributes,
        "fields": json.dumps(announced),
        "counts": json.dumps(counts),
    }
    if names:
        attributes[NAMES] = json.dumps({name: len(names[name]) for name in sorted(names)})
    digest = ContentDigest()
    planned = _structure(arrays, attributes, digest)
    with open(path, "xb") as file:
        for array, position in zip(arrays, planned.positions, strict=True):
            digest.begin(array.split, array.name, array.dtype.str, array.shape)
            file.seek(position)
            for block in array.blocks:
                file.write(block.data)
                digest.update(block)
        # Of the plan only the digest's characters change, so everything stays in its place.
        final = _structure(arrays, attributes, digest)
        assert (final.positions, final.size) == (planned.positions, planned.size)
        for position, piece in final.pieces:
            file.seek(position)
            file.write(piece)
        file.truncate(final.size)
        file.flush()
        os.fsync(file.fileno())


def _structure(
    arrays: Iterable[_Array], attributes: Mapping[str, Any], digest: ContentDigest
) -> Structure:
    datasets = [(f"{array.split}/{array.name}", array.dtype, array.shape) for array in arrays]
    attributes = {**attributes, "content_sha256": digest.hexdigest()}
    # Signals interrupt the main thread only: were Ctrl-C to fail a write of HDF5's to memory,
    # it would crash as on a full disk. Here it is raised when the thread has finished.
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(make_structure, datasets, attributes).result()


def _arrays(split: str, spool: Spool, fields: Mapping[str, FieldSpec]) -> Iterator[_Array]:
    arrived = list(spool.clients)
    order = np.array(sorted(range(len(arrived)), key=arrived.__getitem__), dtype=np.int64)
    ranks = np.empty_like(order)
    ranks[order] = np.arange(len(order))
    segments = spool.segment_order(ranks)
    yield _bounds(split, "offsets", len(order), [spool.examples_per_client()[order]])
    yield from _texts(split, CLIENT_IDS, arrived, order)
    for field, spec in fields.items():
        if spec.ragged:
            name = offsets_name(field)
            counts = (block.view("<i8") for block in spool.gather(name, segments))
            yield _bounds(split, name, spool.total_rows(name), counts)
        shape = (spool.total_rows(field), *spec.shape)
        yield _Array(split, field, spec.numpy_dtype, shape, spool.gather(field, segments))


def _texts(
    group: str, name: str, texts: Sequence[str], order: NDArray[np.int64]
) -> Iterator[_Array]:
    """Texts in an order, shape (n,), one after another, and where each begins."""
    sizes = np.array([len(text.encode()) for text in texts], dtype=np.int64)[order]
    yield _bounds(group, offsets_name(name), len(order), [sizes])
    text = _text_blocks(texts, order)
    yield _Array(group, name, np.dtype("u1"), (int(sizes.sum()),), text)


def _bounds(split: str, name: str, parts: int, sizes: Iterable[NDArray[np.int64]]) -> _Array:
    """Beginnings and ends of parts that follow one another, from blocks of their sizes."""
    return _Array(split, name, np.dtype("<i8"), (parts + 1,), _running_totals(sizes))


def _running_totals(blocks: Iterable[NDArray[np.int64]]) -> Iterator[NDArray[np.int64]]:
    total = np.zeros(1, dtype="<i8")
    yield total
    for sizes in blocks:
        ends = (total[-1] + np.cumsum(sizes)).astype("<i8")
        yield ends
        total = ends


def _text_blocks(texts: Sequence[str], order: NDArray[np.int64]) -> Iterator[NDArray[np.uint8]]:
    for start in range(0, len(order), _IDS_A_BLOCK):
        block = order[start : start + _IDS_A_BLOCK].tolist()
        text = "".join([texts[index] for index in block])
        yield np.frombuffer(text.encode(), dtype=np.uint8)


@dataclass(frozen=True)
class Structure:
    """Arrays of a file (the byte at which each begins, 0 if empty), and what is around them.

    ``pieces`` are positions and bytes, as HDF5 wrote them: a later one may cover an earlier one.
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
