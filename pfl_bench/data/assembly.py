"""Putting a store's HDF5 file together from spools: users sorted, arrays contiguous.

HDF5 must never meet a disk that is full: when a write fails while it closes a file, it leaves
its objects half destroyed and the process crashes, then or at exit. So HDF5 only decides, in
memory, what the file looks like around the arrays (``structure``); that and the arrays are written
here, by plain file operations whose failures are exceptions like any other.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from pfl_bench.data.structure import Structure, make_structure

_IDS_A_BLOCK = 1 << 16


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
    arrays.extend(array for name in sorted(names) for array in _name_arrays(name, names[name]))
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
    sizes = np.array([len(client_id.encode()) for client_id in arrived], dtype=np.int64)[order]
    yield _bounds(split, offsets_name(CLIENT_IDS), len(order), [sizes])
    text = _text_blocks(arrived, order)
    yield _Array(split, CLIENT_IDS, np.dtype("u1"), (int(sizes.sum()),), text)
    for field, spec in fields.items():
        if spec.ragged:
            name = offsets_name(field)
            counts = (block.view("<i8") for block in spool.gather(name, segments))
            yield _bounds(split, name, spool.total_rows(name), counts)
        shape = (spool.total_rows(field), *spec.shape)
        yield _Array(split, field, spec.numpy_dtype, shape, spool.gather(field, segments))


def _name_arrays(name: str, values: Sequence[str]) -> Iterator[_Array]:
    sizes = np.array([len(value.encode()) for value in values], dtype=np.int64)
    yield _bounds(NAMES, offsets_name(name), len(values), [sizes])
    text = _text_blocks(values, np.arange(len(values), dtype=np.int64))
    yield _Array(NAMES, name, np.dtype("u1"), (int(sizes.sum()),), text)


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
