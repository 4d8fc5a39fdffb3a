"""Read MNIST images with QMNIST's writers: digits of real writers, known by number."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pfl_bench.types import DataError
from tasks.common.idx import (
    CLASS_COLUMN,
    NUM_ROWS,
    TEST_LABELS,
    TRAIN_LABELS,
    UBYTE,
    WRITER_COLUMN,
    check_classes,
    find_idx,
    read_idx,
    read_labels,
)
from tasks.common.leaf.partition import Gathering
from tasks.common.leaf.plan import UNSPLIT
from tasks.common.progress import Progress
from tasks.femnist.forms import NUM_DIGITS, SIDE, Form, Reading

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


MNIST_TRAIN = Part("train-images-idx3-ubyte", NUM_ROWS, TRAIN_LABELS, 0, "train-labels-idx1-ubyte")
MNIST_TEST = Part(
    "t10k-images-idx3-ubyte", NUM_MNIST_TEST, TEST_LABELS, 0, "t10k-labels-idx1-ubyte"
)
# The first 10,000 of QMNIST's test images redo MNIST's: they are used only if those are absent.
QMNIST_TEST = Part("qmnist-test-images-idx3-ubyte", NUM_ROWS, TEST_LABELS, NUM_MNIST_TEST)
PARTS = (MNIST_TRAIN, MNIST_TEST, QMNIST_TEST)
LOOKED_FOR = (
    f"QMNIST: {TEST_LABELS}[.gz] with {MNIST_TEST.images}[.gz] and perhaps "
    f"{QMNIST_TEST.images}[.gz], or {TRAIN_LABELS}[.gz] with {MNIST_TRAIN.images}[.gz]"
)


def is_there(source: Path) -> bool:
    """Whether one of the files is there; MNIST's images alone count, to say what they lack."""
    names = {part.images for part in PARTS} | {TRAIN_LABELS, TEST_LABELS}
    return any(find_idx(source, name) for name in names)


def read(source: Path, gathering: Gathering, progress: Progress) -> Reading:
    """Read all parts that are there, the ground turned to white; refuse images without labels."""
    used, absent = [], []
    done = 0
    for part in PARTS:
        path = find_idx(source, part.images)
        if path is None:
            absent.append(part.images)
            continue
        if part is QMNIST_TEST and MNIST_TEST.images in absent:
            part = replace(part, start=0)
        images = read_idx(path, UBYTE, (part.num_images, SIDE, SIDE))
        labels = _labels(source, part, path)
        # MNIST has ink 255 on ground 0; LEAF's convention is the inverse.
        images = 255 - images[part.start :]
        _append(gathering, images, labels[part.start : part.num_images])
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
        split_by=None,
        extra={"parts_used": used, "parts_absent": absent},
    )


def _labels(source: Path, part: Part, images: Path) -> NDArray[np.int32]:
    """Read and check QMNIST's labels of a part, shape (60,000, 8)."""
    path = find_idx(source, part.labels)
    if path is None:
        raise DataError(
            f"{images}: who wrote these digits is in {part.labels}[.gz], which is missing from "
            f"{source}; get it from QMNIST and put it there"
        )
    labels = read_labels(path)
    mnist = find_idx(source, part.classes) if part.classes else None
    if mnist is not None:
        check_classes(mnist, read_idx(mnist, UBYTE, (part.num_images,)), path, labels)
    return labels


def _append(gathering: Gathering, images: NDArray[np.uint8], labels: NDArray[np.int32]) -> None:
    writers = labels[:, WRITER_COLUMN]
    for writer in np.unique(writers):
        rows = np.flatnonzero(writers == writer)
        classes = labels[rows, CLASS_COLUMN].astype(np.uint8)
        gathering.append(UNSPLIT, f"qmnist-{writer:04d}", inputs=images[rows], targets=classes)


FORM = Form(name="qmnist-digits", looked_for=LOOKED_FOR, is_there=is_there, read=read)
