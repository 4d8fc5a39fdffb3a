"""Digits without their slant: each image is sheared until its main axis is upright."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

# Columns by which a line moves against the next, at most: bars without an axis would tip over.
_MOST_SHEAR = 1.0
_AT_ONCE = 500


def deskewed(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Take the slant out of each image, by nothing but its own pixels.

    Lines are shifted until columns and rows of the ink are uncorrelated, and the ink's centre comes
    to the image's. Between pixels values are linear, and beyond the border there is no ink.

    ``images`` has shape (n, height, width), as what is given back.

    Source: LeCun, Bottou, Bengio and Haffner 1998, section III.A ("deslanting").
    """
    starts = range(0, len(images), _AT_ONCE)
    return np.concatenate([_upright(images[start : start + _AT_ONCE]) for start in starts])


def _upright(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The same of a few images, shape (n, height, width)."""
    ink = images.astype(np.float64)
    numbers, rows, columns = np.indices(ink.shape)
    weights = ink / np.maximum(ink.sum((1, 2), keepdims=True), 1.0)

    def mean(values: Any) -> NDArray[np.float64]:
        found: NDArray[np.float64] = (weights * values).sum((1, 2), keepdims=True)
        return found

    row, column = mean(rows), mean(columns)
    moment, spread = mean((rows - row) * (columns - column)), mean((rows - row) ** 2)
    # One line of ink, or none, has no spread, and no moment.
    shear = np.clip(moment / np.maximum(spread, 1e-9), -_MOST_SHEAR, _MOST_SHEAR)
    below, beside = rows - (images.shape[1] - 1) / 2, columns - (images.shape[2] - 1) / 2
    taken_from = (numbers, row + below, column + shear * below + beside)
    made: NDArray[np.float64] = ndimage.map_coordinates(ink, taken_from, order=1)
    return np.rint(made).astype(np.uint8)
