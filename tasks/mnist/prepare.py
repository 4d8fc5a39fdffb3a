"""Turn MNIST's four files, perhaps with QMNIST's labels, into a store; perhaps without slant."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from pfl_bench.types import DataError, Progress
from tasks.common import idx
from tasks.common.images.store import FeatureOptions, Images, write_images

# Columns by which a line moves against the next, at most: bars without an axis would tip over.
_MOST_SHEAR = 1.0
_AT_ONCE = 500


def deskewed(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Take the slant out of each image, by nothing but its own pixels.

    Lines are shifted until columns and rows of the ink are uncorrelated, and the ink's centre comes
    to the image's. Between pixels values are linear, and beyond the border there is no ink.

    ``images`` has shape (n, height, width), as what is given back.

    Source: LeCun, Bottou, Bengio and Haffner 1998, section III.A ("deslanting").
    """
    starts = range(0, len(images), _AT_ONCE)
    return np.concatenate([_upright(images[start : start + _AT_ONCE]) for start in starts])


def _upright(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The same of a few images, shape (n, height, width)."""
    ink = images.astype(np.float64)
    numbers, rows, columns = np.indices(ink.shape)
    weights = ink / np.maximum(ink.sum((1, 2), keepdims=True), 1.0)

    def mean(values: Any) -> NDArray[np.float64]:
        found: NDArray[np.float64] = (weights * values).sum((1, 2), keepdims=True)
        return found

    row, column = mean(rows), mean(columns)
    moment, spread = mean((rows - row) * (columns - column)), mean((rows - row) ** 2)
    # One line of ink, or none, has no spread, and no moment.
    shear = np.clip(moment / np.maximum(spread, 1e-9), -_MOST_SHEAR, _MOST_SHEAR)
    below, beside = rows - (images.shape[1] - 1) / 2, columns - (images.shape[2] - 1) / 2
    taken_from = (numbers, row + below, column + shear * below + beside)
    made: NDArray[np.float64] = ndimage.map_coordinates(ink, taken_from, order=1)
    return np.rint(made).astype(np.uint8)


FILES = (*idx.MNIST_FILES, *idx.LABEL_FILES)
FILES_NOTE = (
    "MNIST as published (CC BY-SA 3.0), and QMNIST's labels (BSD), which name each digit's writer."
)
# MD5 of the unpacked files of images and labels.
_DIGESTS = {
    "train": ("6bbc9ace898e44ae57da46a324031adb", "a25bea736e30d166cdddb491f175f624"),
    "test": ("2646ac647ad5339dbf082846283269ea", "27ae3e4e09519cfbb04c329615203637"),
}
_LABELS = {"train": idx.TRAIN_LABELS, "test": idx.TEST_LABELS}


class Options(FeatureOptions):
    """Options of preparing MNIST: which features of images.

    Attributes:
        deskew: Whether to take the slant out of each digit first (``tasks.mnist.prepare``).
    """

    deskew: bool = False


def prepare(source: Path, out: Path, options: Options, progress: Progress) -> dict[str, Any]:
    """Read a folder of public files and write a store; see ``tasks``.

    ``source`` is a folder with MNIST's four files; with QMNIST's two label files beside them, the
    store knows who wrote each digit. Files of other content give the variant "mnist-other", whose
    numbers are not MNIST's.
    """
    splits = {}
    for done, name in enumerate(idx.PARTS, start=1):
        splits[name] = _with_writers(source, name, idx.read_split(source, name))
        progress("reading MNIST (splits)", done, len(idx.PARTS))
    known = [images.writers for images in splits.values() if images.writers is not None]
    if len(known) == 1:
        there = next(name for name, images in splits.items() if images.writers is not None)
        absent = next(name for name in _LABELS.values() if name != _LABELS[there])
        raise DataError(
            f"{source}: has {_LABELS[there]}, but not {absent}, with .gz or without; put both of "
            "QMNIST's label files there, or neither"
        )
    counts = {"writers": len({int(one) for part in known for one in part})} if known else {}
    told = ", with QMNIST's writers" if known else ""
    variant, name = "mnist", "MNIST as published"
    if not idx.are_published(splits, _DIGESTS):
        variant, name = "mnist-other", "other data in files of MNIST's names"
    if options.deskew:
        variant, told = f"{variant}-deskewed", f"{told}, without slant"
        for done, (split, images) in enumerate(splits.items(), start=1):
            splits[split] = replace(images, inputs=deskewed(images.inputs))
            progress("taking out the slant (splits)", done, len(splits))
    return write_images(
        out,
        splits,
        options,
        progress,
        task="mnist",
        variant=variant,
        source=f"{name}{told}",
        class_names=[*"0123456789"],
        extra=counts,
    )


def _with_writers(source: Path, split: str, images: Images) -> Images:
    path = idx.find_idx(source, _LABELS[split])
    if path is None:
        return images
    labels = idx.read_labels(path)
    mnist = idx.find_idx(source, idx.file_names(split)[1])
    assert mnist is not None  # it was read
    idx.check_classes(mnist, images.targets, path, labels)
    return Images(images.inputs, images.targets, labels[: len(images.targets), idx.WRITER_COLUMN])
