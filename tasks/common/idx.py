"""MNIST's idx files, every byte accounted for, and QMNIST's labels, which name the writers."""

from __future__ import annotations

import gzip
import hashlib
import struct
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_bench.types import DataError, RemoteFile
from tasks.common.images.store import Images
from tasks.common.sources import reading

# Third byte of the file: type of the values, which are big-endian.
UBYTE, INT = 0x08, 0x0C
DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}

NUM_ROWS = 60_000
CLASS_COLUMN, WRITER_COLUMN, NUM_COLUMNS = 0, 2, 8
TRAIN_LABELS = "qmnist-train-labels-idx2-int"
TEST_LABELS = "qmnist-test-labels-idx2-int"

QMNIST_URL = "https://raw.githubusercontent.com/facebookresearch/qmnist/master/"
_MNIST_URLS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "http://yann.lecun.com/exdb/mnist/",
)


def _mnist(name: str, md5: str) -> RemoteFile:
    return RemoteFile(name, tuple(f"{mirror}{name}" for mirror in _MNIST_URLS), None, f"md5:{md5}")


def _qmnist(name: str, size: int, md5: str) -> RemoteFile:
    return RemoteFile(name, (f"{QMNIST_URL}{name}",), size, f"md5:{md5}")


# Digests: torchvision's classes MNIST and QMNIST.
MNIST_FILES = (
    _mnist("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
    _mnist("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432"),
    _mnist("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3"),
    _mnist("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c"),
)
LABEL_FILES = (
    _qmnist(f"{TRAIN_LABELS}.gz", 463_024, "0058f8dd561b90ffdd0f734c6a30e5e4"),
    _qmnist(f"{TEST_LABELS}.gz", 526_800, "5b5b05890a5e13444e108efe57b788aa"),
)


def find_idx(folder: Path, name: str) -> Path | None:
    """Find a file, plain or with ``.gz``; the plain one wins, None if there is neither."""
    return next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), None)


def read_idx(path: Path, type_code: int, shape: tuple[int, ...]) -> NDArray[Any]:
    """Read an idx file of a known type and shape, in native byte order; nothing may follow.

    It is read as gzip if it begins with gzip's signature; ``type_code`` is a key of ``DTYPES``.

    Source: Y. LeCun, "The MNIST database", section on file formats.
    """
    header_size = 4 + 4 * len(shape)
    size = prod(shape) * np.dtype(DTYPES[type_code]).itemsize
    with reading(path):
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if packed else path.open("rb") as stream:
            header = stream.read(header_size)
            if len(header) < 4 or header[:2] != b"\0\0" or header[2] not in DTYPES:
                raise DataError(f"{path}: not an idx file (it begins with {header[:4].hex(' ')})")
            if header[2:4] != bytes((type_code, len(shape))):
                raise DataError(
                    f"{path}: idx type 0x{header[2]:02x} with {header[3]} dimensions; expected "
                    f"0x{type_code:02x} with {len(shape)}: is this another file under that name?"
                )
            if len(header) < header_size:
                raise DataError(f"{path}: cut within its header, at byte {len(header)}")
            found = struct.unpack(f">{len(shape)}I", header[4:])
            if found != shape:
                raise DataError(
                    f"{path}: has the shape {found}, but the published file has {shape}"
                )
            body = stream.read(size + 1)
    if len(body) != size:
        state = "goes on after" if len(body) > size else f"is cut at {len(body)} of"
        raise DataError(f"{path}: {state} the {size} bytes of values; get the file anew")
    values = np.frombuffer(body, dtype=DTYPES[type_code]).reshape(shape)
    return values.astype(values.dtype.newbyteorder("="))


def read_labels(path: Path) -> NDArray[np.int32]:
    """Read one of QMNIST's label files.

    Returns:
        Shape (60,000, 8). The first 10,000 rows of the test file are MNIST's test images, all rows
        of the other one MNIST's training images, in order.
    """
    labels: NDArray[np.int32] = read_idx(path, INT, (NUM_ROWS, NUM_COLUMNS))
    classes, writers = labels[:, CLASS_COLUMN], labels[:, WRITER_COLUMN]
    if classes.min() < 0 or classes.max() >= NUM_CLASSES or writers.min() < 0:
        raise DataError(
            f"{path}: column {CLASS_COLUMN} must be digits 0..9 and column {WRITER_COLUMN} "
            "writers from 0; the file is damaged: get it anew"
        )
    return labels


def check_classes(
    mnist: Path, theirs: NDArray[np.uint8], path: Path, labels: NDArray[np.int32]
) -> None:
    """Refuse labels of MNIST and of QMNIST that disagree.

    ``theirs``, shape (n,), are the labels of ``mnist``, MNIST's own label file; the first n of
    ``labels``, read of ``path``, belong to the same images.
    """
    classes = labels[: len(theirs), CLASS_COLUMN]
    differing = np.flatnonzero(theirs != classes)
    if len(differing):
        row = int(differing[0])
        raise DataError(
            f"{mnist}: image {row} is a {theirs[row]}, but {path} says {classes[row]} "
            f"({len(differing)} rows differ); the files do not belong together: get them anew"
        )


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
            f"{source}: {name} is missing, with .gz or without; the folder must hold {names}, "
            "as pfl-bench data download leaves them"
        )
    return path
