"""Read TensorFlow Federated's HDF5 files of federated EMNIST, split as published."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_bench.types import DataError
from tasks.common.leaf.partition import Gathering
from tasks.common.progress import Progress
from tasks.femnist.forms import (
    NUM_CHARACTERS,
    NUM_DIGITS,
    SIDE,
    Form,
    Reading,
    rounding_facts,
    to_bytes,
    to_labels,
)


def _paths(source: Path, stem: str) -> dict[str, Path]:
    return {split: source / f"{stem}_{split}.h5" for split in ("train", "test")}


def read(
    source: Path, gathering: Gathering, progress: Progress, *, stem: str, num_classes: int
) -> Reading:
    """Read the pair of files ``<stem>_train.h5`` and ``<stem>_test.h5``, one writer at a time.

    Labels are 0 to ``num_classes`` less one; the split is inside each writer.
    """
    paths = _paths(source, stem)
    missing = [path.name for path in paths.values() if not path.is_file()]
    if missing:
        raise DataError(
            f"{source}: {missing[0]} is missing; the archive has both {stem}_train.h5 and "
            f"{stem}_test.h5: put them side by side"
        )
    error = max(
        _read_file(path, split, gathering, progress, num_classes) for split, path in paths.items()
    )
    if not set(gathering.clients("train")) & set(gathering.clients("test")):
        raise DataError(
            f"{source}: no writer is in both {stem}_train.h5 and {stem}_test.h5, but the "
            "published files divide each writer's examples; these are not a pair: get them anew"
        )
    what = "digits only" if num_classes == NUM_DIGITS else "62 classes"
    return Reading(
        source=f"TensorFlow Federated's federated EMNIST ({what}), split as published",
        num_classes=num_classes,
        split_by="example",
        extra=rounding_facts(error),
    )


def _read_file(
    path: Path, split: str, gathering: Gathering, progress: Progress, num_classes: int
) -> float:
    import h5py

    largest = 0.0
    try:
        with h5py.File(path, "r") as file:
            writers = file.get("examples")
            if not isinstance(writers, h5py.Group) or not len(writers):
                raise DataError(
                    f"{path}: has no group 'examples' with writers in it (it has "
                    f"{sorted(file)[:5]}); this is not a file of TensorFlow Federated"
                )
            for done, (writer, group) in enumerate(writers.items(), start=1):
                pixels, values = _arrays(group, f"{path}, user {writer!r}")
                images, error = to_bytes(pixels, f"{path}, user {writer!r}")
                labels = to_labels(values, num_classes, f"{path}, user {writer!r}")
                gathering.append(split, writer, inputs=images, targets=labels)
                largest = max(largest, error)
                progress(f"reading {path.name} (writers)", done, len(writers))
    except (OSError, RuntimeError, KeyError) as error:  # how HDF5 reports a damaged file
        raise DataError(
            f"{path}: not a readable HDF5 file ({error}); it is damaged, cut or packed: get it "
            "anew, and unpack it"
        ) from error
    return largest


def _arrays(group: Any, where: str) -> tuple[NDArray[Any], NDArray[Any]]:
    import h5py

    parts: list[Any] = [group.get(key) if isinstance(group, h5py.Group) else None for key in _KEYS]
    if not all(isinstance(part, h5py.Dataset) for part in parts):
        raise DataError(f"{where}: must have the data sets {' and '.join(map(repr, _KEYS))}")
    pixels, labels = parts
    count = len(labels) if labels.ndim == 1 else -1
    if count < 1 or pixels.shape != (count, SIDE, SIDE):
        raise DataError(
            f"{where}: pixels of shape {pixels.shape} and labels of shape {labels.shape}; must be "
            f"(n, {SIDE}, {SIDE}) and (n,) with the same n of at least 1"
        )
    return np.asarray(pixels[:]), np.asarray(labels[:])


_KEYS = ("pixels", "label")


def _form(variant: str, stem: str, num_classes: int) -> Form:
    return Form(
        name=variant,
        looked_for=f"TensorFlow Federated: {stem}_train.h5 and {stem}_test.h5",
        is_there=lambda source: any(path.exists() for path in _paths(source, stem).values()),
        read=partial(read, stem=stem, num_classes=num_classes),
    )


FORMS = (
    _form("tff", "fed_emnist", NUM_CHARACTERS),
    _form("tff-digits", "fed_emnist_digitsonly", NUM_DIGITS),
)
