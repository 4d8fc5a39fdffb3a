"""Stores of images in their published order, whole splits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_bench.data import FieldSpec
from pfl_bench.types import DataError
from tasks.common.description import SplitCounts, StoreDescription

WRITER = "writer"


@dataclass(frozen=True, slots=True)
class Images:
    """One split, in published order.

    Attributes:
        inputs: Shape (n, ...), uint8; or features of images, float16.
        targets: Shape (n,), classes from 0.
        writers: Shape (n,), who wrote each image; None if that is not known.
    """

    inputs: NDArray[Any]
    targets: NDArray[Any]
    writers: NDArray[Any] | None = None


@dataclass(frozen=True, slots=True)
class About:
    """Description of a store of images; ``source`` is one line for a human."""

    task: str
    variant: str
    source: str
    class_names: Sequence[str]
    extra: Mapping[str, Any] = field(default_factory=dict)


def write_images(out: Path, about: About, splits: Mapping[str, Images]) -> dict[str, Any]:
    """Write a store of whole splits, each of one user of that name.

    All splits have writers, or none; gives facts for printing.
    """
    if out.is_dir():
        raise DataError(
            f"{out} is a folder; --out names the file to write, such as {about.task}.h5"
        )
    first = next(iter(splits.values())).inputs
    shape = first.shape[1:]
    fields = {"inputs": FieldSpec(first.dtype.name, shape), "targets": FieldSpec("uint8")}
    has_writers = all(images.writers is not None for images in splits.values())
    if has_writers:
        fields[WRITER] = FieldSpec("uint16")
    description = StoreDescription(
        task=about.task,
        variant=about.variant,
        source=about.source,
        num_classes=len(about.class_names),
        input_shape=shape,
        fields=fields,
        # Nobody holds a whole split: clients are made when a row is loaded.
        extra={"artificial_users": True, "has_writers": has_writers, **about.extra},
        names={"targets": about.class_names},
    )
    written = SplitCounts()
    with description.writer(out, "user") as writer:
        for name, images in splits.items():
            arrays = {"inputs": images.inputs, "targets": images.targets.astype(np.uint8)}
            if images.writers is not None and has_writers:
                arrays[WRITER] = images.writers.astype(np.uint16)
            writer.append(name, name, **arrays)
            written.add(name, len(images.targets))
    examples = {name: counts["examples"] for name, counts in written.counts.items()}
    return {"variant": about.variant, "source": about.source, "examples": examples, **about.extra}
