"""Shared by the readers of the public forms: their contract, and the checks on what they read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_bench.data import FieldSpec
from pfl_bench.types import DataError, SplitBy
from tasks.common import sources

SIDE = 28
NUM_PIXELS = SIDE * SIDE
NUM_CHARACTERS = 62
NUM_DIGITS = 10
# Hexadecimal ASCII codes of the characters, in the order of LEAF's classes.
CODES = tuple(
    f"{ord(first) + place:02x}"
    for first, count in (("0", 10), ("A", 26), ("a", 26))
    for place in range(count)
)
# A ground takes most of a picture, so a mean below this is of ink on black.
MIDDLE_GREY = 127.5
# Grey levels; a pixel that was v / 255 in float32 is off by less than 0.0001.
LOSSLESS_ERROR = 0.01

FIELDS = {"inputs": FieldSpec("uint8", (SIDE, SIDE)), "targets": FieldSpec("uint8")}


@dataclass(frozen=True, slots=True)
class Reading:
    """Findings of a reader: a line for a human, and facts; ``split_by`` is None of unsplit data."""

    source: str
    extra: Mapping[str, Any]
    num_classes: int = NUM_CHARACTERS
    split_by: SplitBy | None = None


@dataclass(frozen=True, slots=True)
class Form(sources.Form):
    """One public form of the data; its name is the variant of stores, too.

    Attributes:
        read: Reads a folder and gathers what it holds, in ``FIELDS``: takes the folder, a
            gathering and a progress, and its own options by name.
        is_leafs: Whether it is what LEAF's own tools make, which its table 1 counts.
    """

    read: Callable[..., Reading]
    is_leafs: bool = False


def to_bytes(pixels: NDArray[Any], where: str) -> tuple[NDArray[np.uint8], float]:
    """Turn pixels of shape (n, 784) or (n, 28, 28), 0 to 1, 1 = white, into bytes.

    Returns images of shape (n, 28, 28) and the largest rounding error in grey levels. Values that
    are no numbers or outside [0, 1] are refused; the message names ``where``.
    """
    if pixels.dtype.kind not in "iuf":
        raise DataError(f"{where}: the pixels are not all numbers; they must be 0 to 1, 1 = white")
    outside = ~((pixels >= 0) & (pixels <= 1))  # written so that NaN is outside
    if outside.any():
        example = int(np.argwhere(outside)[0][0])
        raise DataError(
            f"{where}: example {example} has the pixel value {pixels[outside][0]}; pixels must be "
            "in 0..1, 1 = white: give the data as published, not standardised or as bytes"
        )
    scaled = pixels.astype(np.float64) * 255.0
    rounded = np.rint(scaled)
    error = float(np.abs(scaled - rounded).max(initial=0.0))
    return rounded.astype(np.uint8).reshape(-1, SIDE, SIDE), error


def to_labels(values: NDArray[Any], num_classes: int, where: str) -> NDArray[np.uint8]:
    """Turn labels of shape (n,), whole numbers or floats such as 3.0, into bytes; refuse others."""
    if values.dtype.kind not in "iuf" or values.ndim != 1:
        raise DataError(f"{where}: the labels are not all numbers 0..{num_classes - 1}")
    wrong = ~((values >= 0) & (values < num_classes) & (values == np.floor(values)))
    if wrong.any():
        example = int(np.flatnonzero(wrong)[0])
        raise DataError(
            f"{where}: example {example} has the label {values[example]}; labels must be whole "
            f"numbers in 0..{num_classes - 1}: is this another data set?"
        )
    return values.astype(np.uint8)


def rounding_facts(error: float) -> dict[str, Any]:
    """State how much of the pixels was lost to rounding, with a warning if it is not nothing."""
    facts: dict[str, Any] = {"largest_rounding_error_grey_levels": error}
    if error > LOSSLESS_ERROR:
        facts["warning"] = (
            f"not lossless: pixels were not multiples of 1/255 and moved by up to {error:.3f} "
            "grey levels"
        )
    return facts
