"""Turn OpenImage in FedScale's layout into a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pfl_bench.data import FieldSpec
from tasks.common.fedscale.client_data_map import find_map, open_map, read_classes
from tasks.common.fedscale.streaming import Counts, Options, describe, open_layout, write_store
from tasks.common.fedscale.survey import Labels
from tasks.common.progress import Progress
from tasks.openimage.pictures import check_picture

__all__ = ["Options", "prepare"]

# Source: Lai et al. 2022 (FedScale), table 5.
PUBLISHED = Counts(clients=13_771, samples=1_300_000, rounding=100_000)
SIZE = 256
CLASSES = "classTags"


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
    description = describe(
        source,
        found,
        PUBLISHED,
        {"image": FieldSpec("uint8", ragged=True)},
        task="openimage",
        variant="openimage",
        origin="OpenImage, pictures and clients as FedScale publishes them",
        made_up="drawn shapes in FedScale's layout",
        input_shape=(3, SIZE, SIZE),
    )
    return write_store(out, found, options, check_picture, description, progress)


def _read_name(name: str) -> tuple[str, str] | None:
    """Of ID__CLASS.jpg: the ID and the class."""
    identifier, found, rest = name.partition("__")
    return (identifier, rest.removesuffix(".jpg")) if found and name.endswith(".jpg") else None
