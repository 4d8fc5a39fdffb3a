"""Pictures of a store as batches of pixels, decoded when they are read or kept."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL.Image import Resampling

from pfl_bench.data import Store
from pfl_bench.types import ConfigError, DataError, Examples
from tasks.common.vision.pictures import PictureError, opened

KEPT_BYTES_LIMIT = 8 << 30


def check_kept(pictures: int, side: int, what: str, smaller: str) -> None:
    """Refuse to keep more decoded pictures than the limit allows.

    Messages call them ``what``, as "pictures"; the option ``smaller`` makes them smaller.
    """
    needed = pictures * 3 * side**2
    if needed > KEPT_BYTES_LIMIT:
        raise ConfigError(
            f"task.keep_decoded: {pictures} {what} of {side} x {side} pixels take "
            f"{needed / 2**30:.1f} GiB, more than the {KEPT_BYTES_LIMIT >> 30} GiB that are "
            f"allowed; set it to false, or {smaller} to a smaller side"
        )


class DecodedPictures:
    """Turns the fields "image" and "targets" of a store into examples.

    Args:
        size: Height and width to which pictures are scaled, whatever their proportions.
        resample: Pillow's filter for that.
        what: What messages call a picture, with its article.

    Raises:
        ConfigError: More decoded pictures would be kept than the limit allows.
    """

    def __init__(
        self, store: Store, size: int, resample: Resampling, keep: bool, what: str = "a picture"
    ) -> None:
        self._store = store
        self._size = size
        self._resample = resample
        self._what = what
        self._kept: dict[bytes, NDArray[np.uint8]] | None = {} if keep else None
        if keep:
            pictures = sum(store.split(name).num_examples for name in store.split_names)
            check_kept(pictures, size, f"{what.split()[-1]}s", "task.size")

    def __call__(self, fields: Mapping[str, Any]) -> Examples:
        """Decode: uint8, shape (n, 3, size, size), and targets, int64, shape (n,)."""
        pictures = np.empty((len(fields["image"]), self._size, self._size, 3), dtype=np.uint8)
        for place, content in enumerate(fields["image"]):
            pictures[place] = self._decode(content.tobytes())
        inputs = torch.from_numpy(pictures).permute(0, 3, 1, 2)
        return Examples(inputs, torch.from_numpy(fields["targets"].astype(np.int64)))

    def _decode(self, content: bytes) -> NDArray[np.uint8]:
        # By content: equal bytes give equal pixels, whichever user and split they come from.
        key = b"" if self._kept is None else hashlib.blake2b(content, digest_size=16).digest()
        if self._kept is not None and key in self._kept:
            return self._kept[key]
        try:
            with opened(content) as picture:
                size = (self._size, self._size)
                pixels = np.asarray(picture.convert("RGB").resize(size, self._resample))
        except PictureError as error:
            raise DataError(
                f"task {self._store.task}: {self._what} of {self._store.path} cannot be decoded "
                f"({error}); the store is damaged: copy it again, or prepare the data again"
            ) from error
        if self._kept is not None:
            self._kept[key] = pixels
        return pixels
