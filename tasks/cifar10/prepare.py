"""Turn CIFAR-10's binary files, or a copy of its images as JPEGs, into a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pfl_bench.types import RemoteFile
from tasks.cifar10.forms import ARCHIVE, CLASSES, FORMS, PUBLISHED, read_binary, read_jpegs
from tasks.common.forms import choose_form
from tasks.common.images.store import About, FeatureOptions, featured, write_images
from tasks.common.progress import Progress
from tasks.common.vision import imagenet

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
    about = About("cifar10", variant, told if is_copy else "CIFAR-10 as published", CLASSES)
    normalization = imagenet.MEAN, imagenet.STD
    return write_images(out, *featured(about, splits, options, progress, normalization))
