"""Images and labels in MNIST's four files, as MNIST and Fashion-MNIST are published."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pfl_bench.types import DataError
from tasks.common.idx import UBYTE, find_idx, read_idx
from tasks.common.images.store import Images

SIDE = 28
NUM_CLASSES = 10
# By split: how the two files' names begin, and how many images the published ones have.
PARTS = {"train": ("train", 60_000), "test": ("t10k", 10_000)}


def file_names(split: str) -> tuple[str, str]:
    """Names of a split's images and labels, without ``.gz``."""
    start, _ = PARTS[split]
    return f"{start}-images-idx3-ubyte", f"{start}-labels-idx1-ubyte"


def read_split(source: Path, split: str) -> Images:
    """Read the two files of "train" or "test", plain or with ``.gz``."""
    count = PARTS[split][1]
    images, labels = (_found(source, name) for name in file_names(split))
    inputs = read_idx(images, UBYTE, (count, SIDE, SIDE))
    targets: NDArray[np.uint8] = read_idx(labels, UBYTE, (count,))
    if targets.max() >= NUM_CLASSES:
        row = int(np.argmax(targets))
        raise DataError(
            f"{labels}: image {row} has the label {targets[row]}; labels are 0 to "
            f"{NUM_CLASSES - 1}: is this another data set?"
        )
    return Images(inputs, targets)


def are_published(splits: Mapping[str, Images], digests: Mapping[str, tuple[str, str]]) -> bool:
    """Whether splits are those of a publication: other data come in files of the same names.

    ``digests`` are MD5 of each split's published images and labels, as unpacked files.
    """
    return all(
        digests[name] == (_digest(images.inputs), _digest(images.targets))
        for name, images in splits.items()
    )


def _digest(array: NDArray[np.uint8]) -> str:
    """MD5 of the IDX file that an array of bytes fills."""
    header = bytes((0, 0, UBYTE, array.ndim)) + np.array(array.shape, ">u4").tobytes()
    return hashlib.md5(header + array.tobytes(), usedforsecurity=False).hexdigest()


def _found(source: Path, name: str) -> Path:
    path = find_idx(source, name)
    if path is None:
        names = ", ".join(f"{one}.gz" for split in PARTS for one in file_names(split))
        raise DataError(
            f"{source}: {name} is missing, with .gz or without; the folder must hold {names}"
        )
    return path
