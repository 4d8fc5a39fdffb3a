"""Features of images that are computed once, as a store is prepared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tasks.common.images.store import About, Images
from tasks.common.options import StrictOptions
from tasks.common.progress import Progress

_AT_ONCE = 500


class FeatureOptions(StrictOptions):
    """Options of preparing images.

    Attributes:
        features: "pixels", or "scattering" for the scattering transform of two scales and eight
            angles (float16; 81 features of a channel, at a quarter of the side).
    """

    features: Literal["pixels", "scattering"] = "pixels"


def featured(
    about: About,
    splits: Mapping[str, Images],
    options: FeatureOptions,
    progress: Progress,
    normalization: tuple[tuple[float, ...], tuple[float, ...]] = ((0.0,), (1.0,)),
) -> tuple[About, Mapping[str, Images]]:
    """Give the store of images that the options ask for.

    ``normalization`` is the mean and standard deviation of each channel, in which pixels in 0 to 1
    are measured before they are transformed.
    """
    if options.features == "pixels":
        return about, splits
    made = {
        name: replace(images, inputs=_scattered(images.inputs, normalization, name, progress))
        for name, images in splits.items()
    }
    told = f"{about.source}; scattering transform (2 scales, 8 angles)"
    return replace(about, variant=f"{about.variant}-scattering", source=told), made


def _scattered(
    images: NDArray[np.uint8],
    normalization: tuple[tuple[float, ...], tuple[float, ...]],
    split: str,
    progress: Progress,
) -> NDArray[np.float16]:
    # Preparing pixels needs no torch.
    import torch

    from tasks.common.images.transform import WHITE
    from tasks.common.vision.scattering import scattering

    mean, stddev = (torch.tensor(part).view(1, -1, 1, 1) for part in normalization)
    pixels = torch.from_numpy(images if images.ndim == 4 else images[:, None])
    parts = []
    for start in range(0, len(pixels), _AT_ONCE):
        part = pixels[start : start + _AT_ONCE].float() / WHITE
        parts.append(scattering((part - mean) / stddev).half().numpy())
        progress(f"transforming {split} (images)", start + len(part), len(pixels))
    return np.concatenate(parts)
