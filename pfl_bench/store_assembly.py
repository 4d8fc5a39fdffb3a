"""Putting a store's HDF5 file together from spools: users sorted, arrays contiguous."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from pfl_bench.store_layout import (
    FORMAT,
    LAYOUT_VERSION,
    ContentDigest,
    FieldSpec,
    offsets_name,
    ordered_splits,
)
from pfl_bench.store_spool import Spool

_IDS_A_BLOCK = 1 << 16
# From 1.10 on, metadata has checksums; earlier files let HDF5 crash or hang on a flipped bit.
# Text attributes are of fixed length for the same reason: the heap of variable ones has none.
_HDF5_VERSIONS = ("v110", "v110")


def assemble(
    path: Path,
    spools: Mapping[str, Spool],
    fields: Mapping[str, FieldSpec],
    attributes: Mapping[str, Any],
) -> None:
    """Write a whole store, in blocks, and synchronise it to disk.

    Args:
        path: The file to write.
        spools: The data of each split, frozen.
        fields: What each example has, by name.
        attributes: Further attributes of the root: strings and integers.

    Raises:
        OSError: The file cannot be written.
    """
    digest = ContentDigest()
    announced = {
        name: {"dtype": spec.dtype, "shape": list(spec.shape), "ragged": spec.ragged}
        for name, spec in fields.items()
    }
    try:
        with h5py.File(path, "w", libver=_HDF5_VERSIONS) as file:
            counts = {
                name: _write_split(file.create_group(name), name, spools[name], fields, digest)
                for name in ordered_splits(spools)
            }
            _write_attributes(
                file,
                {
                    "format": FORMAT,
                    "layout_version": LAYOUT_VERSION,
                    **attributes,
                    "fields": json.dumps(announced),
                    "counts": json.dumps(counts),
                    "content_sha256": digest.hexdigest(),
                },
            )
    except RuntimeError as error:
        # So HDF5 reports a disk that fills up when the file is closed.
        raise OSError(f"HDF5 could not complete the file: {error}") from error
    synchronise(path)


def synchronise(path: Path) -> None:
    """Make a file, or a folder's entries, outlive a power cut."""
    if path.is_dir() and os.name == "nt":
        return  # Windows cannot open folders
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_attributes(file: Any, attributes: Mapping[str, str | int]) -> None:
    for name, value in attributes.items():
        if isinstance(value, str):
            data = value.encode()
            file.attrs.create(name, data, dtype=h5py.string_dtype("utf-8", max(1, len(data))))
        else:
            file.attrs[name] = value


def _write_split(
    group: Any,
    name: str,
    spool: Spool,
    fields: Mapping[str, FieldSpec],
    digest: ContentDigest,
) -> dict[str, int]:
    arrived = list(spool.clients)
    order = np.array(sorted(range(len(arrived)), key=arrived.__getitem__), dtype=np.int64)
    ranks = np.empty_like(order)
    ranks[order] = np.arange(len(order))
    segments = spool.segment_order(ranks)
    offsets = np.concatenate(([0], np.cumsum(spool.examples_per_client()[order]))).astype("<i8")
    group.create_dataset("offsets", data=offsets)
    digest.begin(name, "offsets", "<i8", offsets.shape)
    digest.update(offsets)
    _write_identifiers(group, name, [arrived[client] for client in order], digest)
    for field, spec in fields.items():
        if spec.ragged:
            _write_item_offsets(group, name, field, spool, segments, digest)
        shape = (spool.total_rows(field), *spec.shape)
        dataset = group.create_dataset(field, shape=shape, dtype=spec.numpy_dtype)
        digest.begin(name, field, spec.numpy_dtype.str, shape)
        start = 0
        for block in spool.gather(field, segments):
            rows = block.view(spec.numpy_dtype).reshape(-1, *spec.shape)
            dataset[start : start + len(rows)] = rows
            digest.update(block)
            start += len(rows)
    return {"users": len(arrived), "examples": int(offsets[-1])}


def _write_identifiers(
    group: Any, split: str, identifiers: list[str], digest: ContentDigest
) -> None:
    shape = (len(identifiers),)
    dataset = group.create_dataset("client_ids", shape=shape, dtype=h5py.string_dtype("utf-8"))
    digest.begin(split, "client_ids", "utf-8", shape)
    for start in range(0, len(identifiers), _IDS_A_BLOCK):
        block = identifiers[start : start + _IDS_A_BLOCK]
        dataset[start : start + len(block)] = block
        digest.identifiers(block)


def _write_item_offsets(
    group: Any,
    split: str,
    field: str,
    spool: Spool,
    segments: NDArray[np.int64],
    digest: ContentDigest,
) -> None:
    name = offsets_name(field)
    shape = (spool.total_rows(name) + 1,)
    dataset = group.create_dataset(name, shape=shape, dtype="<i8")
    digest.begin(split, name, "<i8", shape)
    dataset[0] = 0
    digest.update(bytes(8))
    start, items = 1, 0
    for block in spool.gather(name, segments):
        ends = (items + np.cumsum(block.view("<i8"))).astype("<i8")
        dataset[start : start + len(ends)] = ends
        digest.update(ends)
        start, items = start + len(ends), int(ends[-1])
