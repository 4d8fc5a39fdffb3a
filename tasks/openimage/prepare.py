"""Turn OpenImage in FedScale's layout into a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_bench.data import FieldSpec
from pfl_bench.types import Progress
from tasks.common.fedscale.client_data_map import find_map, open_map, read_classes
from tasks.common.fedscale.layout import Labels
from tasks.common.fedscale.streaming import Counts, Options, open_layout, write_store
from tasks.common.vision.pictures import opened, read_to_end

__all__ = ["Options", "prepare"]

# Source: Lai et al. 2022 (FedScale), table 5.
PUBLISHED = Counts(clients=13_771, samples=1_300_000, rounding=100_000)
SIZE = 256
CLASSES = "classTags"
FORMATS = ("JPEG", "PNG")


def prepare(source: Path, out: Path, options: Options, progress: Progress) -> dict[str, Any]:
    """Read a folder in FedScale's layout and write a store; see ``tasks``.

    Pictures keep their bytes, JPEG or PNG. Memory does not grow with them.
    """
    pickled = find_map(source)
    if pickled is not None:
        classes = read_classes(source / CLASSES)
        found = open_map(source, pickled, _read_name, classes, progress)
    else:
        found = open_layout(source, Labels(), options, progress)
    return write_store(
        out,
        found,
        PUBLISHED,
        check_picture,
        options,
        progress,
        value=("image", FieldSpec("uint8", ragged=True)),
        task="openimage",
        variant="openimage",
        origin="OpenImage, pictures and clients as FedScale publishes them",
        made_up="drawn shapes in FedScale's layout",
        input_shape=(3, SIZE, SIZE),
    )


def check_picture(content: bytes) -> NDArray[np.uint8]:
    """Give a picture's n bytes back, shape (n,), or a PictureError if they cannot be decoded."""
    with opened(content, FORMATS, "picture in JPEG or PNG") as picture:
        read_to_end(picture)
    return np.frombuffer(content, dtype=np.uint8)


def _read_name(name: str) -> tuple[str, str] | None:
    """Of ID__CLASS.jpg: the ID and the class."""
    identifier, found, rest = name.partition("__")
    return (identifier, rest.removesuffix(".jpg")) if found and name.endswith(".jpg") else None
