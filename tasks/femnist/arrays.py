"""Read FEMNIST's forms that hold pixels: LEAF's JSON, TFF's HDF5, and MNIST with QMNIST's writers.

The first two are streamed: one writer of one file in memory at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_bench.types import DataError, Progress
from tasks.common import idx
from tasks.common.leaf.gathering import UNSPLIT, Gathering
from tasks.common.leaf.json_files import LOOKED_FOR, LeafUser, find_files, read_splits
from tasks.common.sources import open_hdf5
from tasks.femnist.forms import (
    NUM_CHARACTERS,
    NUM_DIGITS,
    NUM_PIXELS,
    SIDE,
    Form,
    Reading,
    rounding_facts,
    to_bytes,
    to_labels,
)


def read(source: Path, gathering: Gathering, progress: Progress) -> Reading:
    """Read all files, in which writers are the same, disjoint, or not split."""
    files, error = find_files(source), 0.0
    for split, user, where in read_splits(source, files, progress):
        images, labels, rounding = _examples(user, where)
        gathering.append(split, user.user, inputs=images, targets=labels)
        error = max(error, rounding)
    paths = [path for of_split in files.values() for path in of_split]
    return Reading(
        source="FEMNIST in LEAF's JSON form"
        + (", split as published" if UNSPLIT not in files else ", all_data files"),
        extra={"files": len(paths), "first_file": paths[0].name, **rounding_facts(error)},
    )


def _examples(user: LeafUser, where: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8], float]:
    """Images, labels and the largest rounding error in grey levels."""
    for index, row in enumerate(user.x):
        if not isinstance(row, list) or len(row) != NUM_PIXELS:
            length = f"{len(row)} values" if isinstance(row, list) else f"{type(row).__name__}"
            raise DataError(
                f"{where}: image {index} of 'x' has {length}; a FEMNIST image has {NUM_PIXELS} "
                f"({SIDE} x {SIDE}): is this another LEAF data set?"
            )
    images, error = to_bytes(_array(user.x), where)
    return images, to_labels(_array(user.y), NUM_CHARACTERS, where), error


def _array(values: list[Any]) -> NDArray[Any]:
    try:
        return np.asarray(values)
    except ValueError:  # nested unevenly; the checks refuse objects with the place
        return np.asarray([None])


FORM = Form(
    name="leaf-json",
    looked_for=LOOKED_FOR,
    is_there=lambda source: bool(find_files(source)),
    read=read,
    is_leafs=True,
)


def _paths(source: Path, stem: str) -> dict[str, Path]:
    return {split: source / f"{stem}_{split}.h5" for split in ("train", "test")}


def read_hdf5(
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
    with open_hdf5(path) as file:
        writers = file.get("examples")
        if not isinstance(writers, h5py.Group) or not len(writers):
            raise DataError(
                f"{path}: has no group 'examples' with writers in it (it has "
                f"{sorted(file)[:5]}); this is not a file of TensorFlow Federated"
            )
        for done, (writer, group) in enumerate(writers.items(), start=1):
            where = f"{path}, user {writer!r}"
            pixels, values = _arrays(group, where)
            images, error = to_bytes(pixels, where)
            labels = to_labels(values, num_classes, where)
            gathering.append(split, writer, inputs=images, targets=labels)
            largest = max(largest, error)
            progress(f"reading {path.name} (writers)", done, len(writers))
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


def _tff_form(variant: str, stem: str, num_classes: int) -> Form:
    return Form(
        name=variant,
        looked_for=f"TensorFlow Federated: {stem}_train.h5 and {stem}_test.h5",
        is_there=lambda source: any(path.exists() for path in _paths(source, stem).values()),
        read=partial(read_hdf5, stem=stem, num_classes=num_classes),
    )


TFF_FORMS = (
    _tff_form("tff", "fed_emnist", NUM_CHARACTERS),
    _tff_form("tff-digits", "fed_emnist_digitsonly", NUM_DIGITS),
)


NUM_MNIST_TEST = 10_000


@dataclass(frozen=True, slots=True)
class Part:
    """Images of consecutive rows, from ``start`` on, of one of QMNIST's label files.

    The image file has ``num_images``; ``classes`` is MNIST's own label file, which must agree if it
    is there.
    """

    images: str
    num_images: int
    labels: str
    start: int
    classes: str | None = None


MNIST_TRAIN = Part(
    "train-images-idx3-ubyte", idx.NUM_ROWS, idx.TRAIN_LABELS, 0, "train-labels-idx1-ubyte"
)
MNIST_TEST = Part(
    "t10k-images-idx3-ubyte", NUM_MNIST_TEST, idx.TEST_LABELS, 0, "t10k-labels-idx1-ubyte"
)
# The first 10,000 of QMNIST's test images redo MNIST's: they are used only if those are absent.
QMNIST_TEST = Part("qmnist-test-images-idx3-ubyte", idx.NUM_ROWS, idx.TEST_LABELS, NUM_MNIST_TEST)
PARTS = (MNIST_TRAIN, MNIST_TEST, QMNIST_TEST)
QMNIST_LOOKED_FOR = (
    f"QMNIST: {idx.TEST_LABELS}[.gz] with {MNIST_TEST.images}[.gz] and perhaps "
    f"{QMNIST_TEST.images}[.gz], or {idx.TRAIN_LABELS}[.gz] with {MNIST_TRAIN.images}[.gz]"
)


def has_digits(source: Path) -> bool:
    """Whether one of the files is there; MNIST's images alone count, to say what they lack."""
    names = {part.images for part in PARTS} | {idx.TRAIN_LABELS, idx.TEST_LABELS}
    return any(idx.find_idx(source, name) for name in names)


def read_digits(source: Path, gathering: Gathering, progress: Progress) -> Reading:
    """Read all parts that are there, the ground turned to white; refuse images without labels."""
    used, absent = [], []
    done = 0
    for part in PARTS:
        path = idx.find_idx(source, part.images)
        if path is None:
            absent.append(part.images)
            continue
        if part is QMNIST_TEST and MNIST_TEST.images in absent:
            part = replace(part, start=0)
        images = idx.read_idx(path, idx.UBYTE, (part.num_images, SIDE, SIDE))
        labels = _labels_of(source, part, path)
        # MNIST has ink 255 on ground 0; LEAF's convention is the inverse.
        images = 255 - images[part.start :]
        _append_digits(gathering, images, labels[part.start : part.num_images])
        used.append(path.name)
        done += len(images)
        progress("reading MNIST/QMNIST (images)", done, None)
    if not used:
        raise DataError(
            f"{source}: has QMNIST's labels but none of the image files "
            f"{', '.join(part.images for part in PARTS)} (plain or .gz): put those there too"
        )
    return Reading(
        source=f"MNIST/QMNIST digits with QMNIST's writers ({', '.join(used)})",
        num_classes=NUM_DIGITS,
        extra={"parts_used": used, "parts_absent": absent},
    )


def _labels_of(source: Path, part: Part, images: Path) -> NDArray[np.int32]:
    """Read and check QMNIST's labels of a part, shape (60,000, 8)."""
    path = idx.find_idx(source, part.labels)
    if path is None:
        raise DataError(
            f"{images}: who wrote these digits is in {part.labels}[.gz], which is missing from "
            f"{source}; get it from QMNIST and put it there"
        )
    labels = idx.read_labels(path)
    mnist = idx.find_idx(source, part.classes) if part.classes else None
    if mnist is not None:
        idx.check_classes(mnist, idx.read_idx(mnist, idx.UBYTE, (part.num_images,)), path, labels)
    return labels


def _append_digits(
    gathering: Gathering, images: NDArray[np.uint8], labels: NDArray[np.int32]
) -> None:
    writers = labels[:, idx.WRITER_COLUMN]
    for writer in np.unique(writers):
        rows = np.flatnonzero(writers == writer)
        classes = labels[rows, idx.CLASS_COLUMN].astype(np.uint8)
        gathering.append(UNSPLIT, f"qmnist-{writer:04d}", inputs=images[rows], targets=classes)


QMNIST_FORM = Form(
    name="qmnist-digits",
    looked_for=QMNIST_LOOKED_FOR,
    is_there=has_digits,
    read=read_digits,
)
