"""Stores of images, or of features of them, in their published order, whole splits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pfl_bench.data import FieldSpec, StoreWriter
from pfl_bench.types import Progress
from tasks.common.options import StrictOptions

WRITER = "writer"
# Of a byte; what pixels are divided by.
WHITE = 255.0
_AT_ONCE = 500
_SCATTERING = "scattering transform (2 scales, 8 angles)"


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


class FeatureOptions(StrictOptions):
    """Options of preparing images.

    Attributes:
        features: "pixels", or "scattering" for the scattering transform of two scales and eight
            angles (float16; 81 features of a channel, at a quarter of the side).
    """

    features: Literal["pixels", "scattering"] = "pixels"


# Mean and standard deviation of each channel, in which pixels in 0 to 1 are measured before they
# are transformed.
Normalization = tuple[tuple[float, ...], tuple[float, ...]]


def write_images(
    out: Path,
    splits: Mapping[str, Images],
    options: FeatureOptions,
    progress: Progress,
    *,
    task: str,
    variant: str,
    source: str,
    class_names: Sequence[str],
    extra: Mapping[str, Any] | None = None,
    normalization: Normalization = ((0.0,), (1.0,)),
) -> dict[str, Any]:
    """Write a store of whole splits, each of one user of that name, with the features asked for.

    All splits have writers, or none; ``source`` is one line for a human. Gives facts for printing.
    """
    if options.features == "scattering":
        variant, source = f"{variant}-scattering", f"{source}; {_SCATTERING}"
        splits = {
            name: replace(images, inputs=_scattered(images.inputs, normalization, name, progress))
            for name, images in splits.items()
        }
    extra = extra or {}
    first = next(iter(splits.values())).inputs
    shape = first.shape[1:]
    fields = {"inputs": FieldSpec(first.dtype.name, shape), "targets": FieldSpec("uint8")}
    has_writers = all(images.writers is not None for images in splits.values())
    if has_writers:
        fields[WRITER] = FieldSpec("uint16")
    with StoreWriter(
        out,
        task=task,
        variant=variant,
        source=source,
        split_by="user",
        num_classes=len(class_names),
        input_shape=shape,
        fields=fields,
        # Nobody holds a whole split: clients are made when a row is loaded.
        extra={"artificial_users": True, "has_writers": has_writers, **extra},
        names={"targets": class_names},
    ) as writer:
        for name, images in splits.items():
            arrays = {"inputs": images.inputs, "targets": images.targets.astype(np.uint8)}
            if images.writers is not None and has_writers:
                arrays[WRITER] = images.writers.astype(np.uint16)
            writer.append(name, name, **arrays)
    examples = {name: len(images.targets) for name, images in splits.items()}
    return {"variant": variant, "source": source, "examples": examples, **extra}


def _scattered(
    images: NDArray[np.uint8], normalization: Normalization, split: str, progress: Progress
) -> NDArray[np.float16]:
    # Preparing pixels needs no torch.
    import torch

    from tasks.common.vision.scattering import scattering

    mean, stddev = (torch.tensor(part).view(1, -1, 1, 1) for part in normalization)
    pixels = torch.from_numpy(images if images.ndim == 4 else images[:, None])
    parts = []
    for start in range(0, len(pixels), _AT_ONCE):
        part = pixels[start : start + _AT_ONCE].float() / WHITE
        parts.append(scattering((part - mean) / stddev).half().numpy())
        progress(f"transforming {split} (images)", start + len(part), len(pixels))
    return np.concatenate(parts)
