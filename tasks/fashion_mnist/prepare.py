"""Turn Fashion-MNIST's four files into a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pfl_bench.types import Progress, RemoteFile
from tasks.common.idx import PARTS, are_published, read_split
from tasks.common.images.store import FeatureOptions, write_images

_MIRRORS = (
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
)
# Digests: the publisher's README, and torchvision's class FashionMNIST.
_DIGESTS = {
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}
# The same of the unpacked files of images and labels.
_CONTENT = {
    "train": ("f4a8712d7a061bf5bd6d2ca38dc4d50a", "9018921c3c673c538a1fc5bad174d6f9"),
    "test": ("8181f5470baa50b63fa0f6fddb340f0a", "15d484375f8d13e6eb1aabb0c3f46965"),
}
FILES = tuple(
    RemoteFile(name, tuple(f"{mirror}{name}" for mirror in _MIRRORS), None, f"md5:{digest}")
    for name, digest in _DIGESTS.items()
)
FILES_NOTE = "Fashion-MNIST as published (MIT)."
# fmt: off
CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag",
    "Ankle boot",
)
# fmt: on


class Options(FeatureOptions):
    """Options of preparing Fashion-MNIST: which features of images."""


def prepare(source: Path, out: Path, options: Options, progress: Progress) -> dict[str, Any]:
    """Read a folder with the four files and write a store; see ``tasks``.

    Files of other content give the variant "fashion-mnist-other", whose numbers are not
    Fashion-MNIST's.
    """
    splits = {}
    for done, name in enumerate(PARTS, start=1):
        splits[name] = read_split(source, name)
        progress("reading Fashion-MNIST (splits)", done, len(PARTS))
    variant, name = "fashion-mnist", "Fashion-MNIST as published"
    if not are_published(splits, _CONTENT):
        variant, name = "fashion-mnist-other", "other data in files of Fashion-MNIST's names"
    return write_images(
        out,
        splits,
        options,
        progress,
        task="fashion_mnist",
        variant=variant,
        source=name,
        class_names=CLASSES,
    )
