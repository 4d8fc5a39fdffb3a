"""Turn CIFAR-10's binary files, or a copy of its images as JPEGs, into a store."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pfl_bench.data import regular
from pfl_bench.types import DataError, Progress, RemoteFile
from tasks.common.images.store import FeatureOptions, Images, write_images
from tasks.common.sources import Form, choose_form, read_tar
from tasks.common.vision.pictures import IMAGENET_MEAN, IMAGENET_STD, PictureError, opened

SIDE = 32
SHAPE = (3, SIDE, SIDE)
NUM_BYTES = 3 * SIDE * SIDE
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PUBLISHED = {"train": 50_000, "test": 10_000}
ARCHIVE = "cifar-10-binary.tar.gz"
FOLDER = "cifar-10-batches-bin"
_BATCHES = {
    "train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    "test": ("test_batch.bin",),
}
_NAMES = tuple(name for names in _BATCHES.values() for name in names)
_JPEG_TARS = ("*.tar", "*.tar.xz", "*.tar.gz", "*.tgz")
_JPEG_NAME = re.compile(
    rf"(?:.*/)?(?P<split>train|test)/(?P<class>{'|'.join(CLASSES)})/(?P<name>[^/]+)\.jpe?g"
)
_PROGRESS_EVERY = 1000


def _unpacked(source: Path) -> Path | None:
    """The folder of the unpacked binary files: the source itself, or in it."""
    folders = (source, source / FOLDER)
    return next((one for one in folders if (one / _BATCHES["test"][0]).is_file()), None)


def _jpeg_tar(source: Path) -> Path | None:
    found = (path for pattern in _JPEG_TARS for path in sorted(source.glob(pattern)))
    return next((path for path in found if path.name != ARCHIVE), None)


def _has_jpegs(source: Path) -> bool:
    return (source / "train").is_dir() or _jpeg_tar(source) is not None


def read_binary(source: Path, progress: Progress) -> dict[str, Images]:
    """Read the binary files, from the archive or unpacked, in published order."""
    folder, splits = _unpacked(source), {}
    if folder is None:
        read = {name.rpartition("/")[2]: content for name, content in read_tar(source / ARCHIVE)}
    else:
        read = {name: (folder / name).read_bytes() for name in _NAMES if (folder / name).is_file()}
    for split, names in _BATCHES.items():
        rows = []
        for name in names:
            if name not in read:
                raise DataError(
                    f"{folder or source / ARCHIVE}: has no {name}; the published archive has "
                    "data_batch_1.bin to data_batch_5.bin and test_batch.bin: get it anew"
                )
            rows.append(_rows(read[name], f"{folder or source / ARCHIVE}, {name}"))
        whole = np.concatenate(rows)
        splits[split] = Images(whole[:, 1:].reshape(-1, *SHAPE), whole[:, 0])
        progress("reading CIFAR-10 (splits)", len(splits), len(_BATCHES))
    return splits


def _rows(content: bytes, where: str) -> NDArray[np.uint8]:
    """Shape (n, 3073): the class, then the pixels, red, green, blue, row by row."""
    if not content or len(content) % (1 + NUM_BYTES):
        raise DataError(
            f"{where}: has {len(content)} bytes, not {1 + NUM_BYTES} an image; it is damaged or "
            "cut: get the archive anew"
        )
    rows = np.frombuffer(content, np.uint8).reshape(-1, 1 + NUM_BYTES)
    wrong = np.flatnonzero(rows[:, 0] >= len(CLASSES))
    if len(wrong):
        raise DataError(
            f"{where}: image {wrong[0]} has the label {rows[wrong[0], 0]}; labels are 0 to "
            f"{len(CLASSES) - 1}: is this another data set?"
        )
    return rows


def read_jpegs(source: Path, progress: Progress) -> dict[str, Images]:
    """Read a folder, or a tar in it, of train/CLASS/NAME.jpg and test/CLASS/NAME.jpg.

    The images of a split come class by class, and by name within a class: the published order is
    not known from such files. An image of another size is refused, and so is a missing split.
    """
    found: dict[tuple[str, int, str], NDArray[np.uint8]] = {}
    tar = None if (source / "train").is_dir() else _jpeg_tar(source)
    for name, content in read_tar(tar) if tar is not None else _files_below(source):
        match = _JPEG_NAME.fullmatch(name)
        if match is None:
            continue
        key = (match["split"], CLASSES.index(match["class"]), match["name"])
        found[key] = _decode(content, f"{tar or source}, {name}")
        if len(found) % _PROGRESS_EVERY == 0:
            progress("reading JPEGs (images)", len(found), None)
    splits = {}
    for split in PUBLISHED:
        keys = sorted(key for key in found if key[0] == split)
        if not keys:
            raise DataError(
                f"{tar or source}: has no image {split}/CLASS/NAME.jpg, where CLASS is one of "
                f"{', '.join(CLASSES)}"
            )
        targets = np.array([label for _, label, _ in keys], np.uint8)
        splits[split] = Images(np.stack([found[key] for key in keys]), targets)
    return splits


def _files_below(source: Path) -> Iterator[tuple[str, bytes]]:
    for split in PUBLISHED:
        for path in sorted((source / split).glob("*/*")):
            yield path.relative_to(source).as_posix(), regular(path).read_bytes()


def _decode(content: bytes, where: str) -> NDArray[np.uint8]:
    """Decode a JPEG to shape (3, 32, 32)."""
    try:
        with opened(content, ("JPEG",), "JPEG") as image:
            if image.size != (SIDE, SIDE):
                raise PictureError(f"it is {image.width} x {image.height} pixels")
            return np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    except PictureError as error:
        raise DataError(
            f"{where}: is no JPEG of {SIDE} x {SIDE} pixels ({error}); get the images anew"
        ) from error


FORMS = (
    Form(
        "binary",
        f"{ARCHIVE}, or what is in it: data_batch_1.bin to data_batch_5.bin and test_batch.bin",
        lambda source: (source / ARCHIVE).is_file() or _unpacked(source) is not None,
    ),
    Form("jpeg", "train/CLASS/NAME.jpg and test/CLASS/NAME.jpg, or a tar of these", _has_jpegs),
)


# Size and digest: the publisher's page.
FILES = (
    RemoteFile(
        ARCHIVE,
        (f"https://www.cs.toronto.edu/~kriz/{ARCHIVE}",),
        170_052_171,
        "md5:c32a1d4ab5d03f1284b67883e8d87530",
    ),
)
FILES_NOTE = "CIFAR-10's binary version as published; for research."
# A lossy copy has other pixels and another order: no number on it is one on CIFAR-10.
JPEG_COPY = "cifar10-jpeg-copy"


class Options(FeatureOptions):
    """Options of preparing CIFAR-10.

    Attributes:
        form: Which form to read; None takes the one that is there.
    """

    form: Literal["binary", "jpeg"] | None = None


def prepare(source: Path, out: Path, options: Options, progress: Progress) -> dict[str, Any]:
    """Read a folder in one of the forms of the README and write a store; see ``tasks``."""
    is_copy = choose_form(source, "CIFAR-10", FORMS, options).name == "jpeg"
    splits = read_jpegs(source, progress) if is_copy else read_binary(source, progress)
    variant = JPEG_COPY if is_copy else "cifar10"
    found = {name: len(images.targets) for name, images in splits.items()}
    if found != PUBLISHED:
        variant += "-partial"
    told = "CIFAR-10, JPEG copy: pixels and order are not the published ones"
    return write_images(
        out,
        splits,
        options,
        progress,
        task="cifar10",
        variant=variant,
        source=told if is_copy else "CIFAR-10 as published",
        class_names=CLASSES,
        normalization=(IMAGENET_MEAN, IMAGENET_STD),
    )
