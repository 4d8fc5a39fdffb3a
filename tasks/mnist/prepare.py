"""Turn MNIST's four files, perhaps with QMNIST's labels, into a store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from pfl_bench.types import DataError
from tasks.common.idx import (
    LABEL_FILES,
    MNIST_FILES,
    PARTS,
    TEST_LABELS,
    TRAIN_LABELS,
    WRITER_COLUMN,
    are_published,
    check_classes,
    file_names,
    find_idx,
    read_labels,
    read_split,
)
from tasks.common.images.store import About, FeatureOptions, Images, featured, write_images
from tasks.common.progress import Progress
from tasks.mnist.deskewing import deskewed

FILES = (*MNIST_FILES, *LABEL_FILES)
FILES_NOTE = (
    "MNIST as published (CC BY-SA 3.0), and QMNIST's labels (BSD), which name each digit's writer."
)
# MD5 of the unpacked files of images and labels.
_DIGESTS = {
    "train": ("6bbc9ace898e44ae57da46a324031adb", "a25bea736e30d166cdddb491f175f624"),
    "test": ("2646ac647ad5339dbf082846283269ea", "27ae3e4e09519cfbb04c329615203637"),
}
_LABELS = {"train": TRAIN_LABELS, "test": TEST_LABELS}


class Options(FeatureOptions):
    """Options of preparing MNIST: which features of images.

    Attributes:
        deskew: Whether to take the slant out of each digit first (``tasks.mnist.deskewing``).
    """

    deskew: bool = False


def prepare(source: Path, out: Path, options: Options, progress: Progress) -> dict[str, Any]:
    """Read a folder of public files and write a store; see ``tasks``.

    ``source`` is a folder with MNIST's four files; with QMNIST's two label files beside them, the
    store knows who wrote each digit. Files of other content give the variant "mnist-other", whose
    numbers are not MNIST's.
    """
    splits = {}
    for done, name in enumerate(PARTS, start=1):
        splits[name] = _with_writers(source, name, read_split(source, name))
        progress("reading MNIST (splits)", done, len(PARTS))
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
    if not are_published(splits, _DIGESTS):
        variant, name = "mnist-other", "other data in files of MNIST's names"
    if options.deskew:
        variant, told = f"{variant}-deskewed", f"{told}, without slant"
        for done, (split, images) in enumerate(splits.items(), start=1):
            splits[split] = replace(images, inputs=deskewed(images.inputs))
            progress("taking out the slant (splits)", done, len(splits))
    about = About("mnist", variant, f"{name}{told}", [*"0123456789"], counts)
    return write_images(out, *featured(about, splits, options, progress))


def _with_writers(source: Path, split: str, images: Images) -> Images:
    path = find_idx(source, _LABELS[split])
    if path is None:
        return images
    labels = read_labels(path)
    mnist = find_idx(source, file_names(split)[1])
    assert mnist is not None  # it was read
    check_classes(mnist, images.targets, path, labels)
    return Images(images.inputs, images.targets, labels[: len(images.targets), WRITER_COLUMN])
