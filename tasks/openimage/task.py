"""The OpenImage task: what is in a picture, one client a Flickr user."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from pfl_bench.data import Store, open_store
from pfl_bench.types import ConfigError, DataError, Examples
from tasks.common.fedscale.stored import LabelledTask, TaskOptions
from tasks.common.vision.pictures import PictureError
from tasks.openimage.pictures import decode_picture
from tasks.openimage.transform import FlipNormalize

TASK_NAME = "openimage"
KEPT_BYTES_LIMIT = 8 << 30


class Options(TaskOptions):
    """Options of the OpenImage task, beside those of all tasks on FedScale's layout.

    Attributes:
        size: Height and width to which pictures are scaled, without regard to their proportions;
            FedScale's is 256.
        augment: Whether training mirrors half of the pictures.
        keep_decoded: Keep decoded pictures in memory (3 * size^2 bytes each, at most 8 GiB).
    """

    size: int = Field(default=256, ge=16, le=1024)
    augment: bool = True
    keep_decoded: bool = False


class OpenImageTask(LabelledTask):
    """One label a picture, cross entropy; pictures are decoded when they are read.

    Args:
        store: An open OpenImage store.
        options: As in ``Options``.

    Raises:
        ConfigError: More decoded pictures would be kept than the limit allows.
    """

    def __init__(self, store: Store, options: Options) -> None:
        self._size = options.size
        self._kept: dict[bytes, NDArray[np.uint8]] | None = {} if options.keep_decoded else None
        self.transform = FlipNormalize(options.augment)
        shape = (3, options.size, options.size)
        fields = ("image", "targets")
        super().__init__(store, fields, self._to_examples, options, input_shape=shape)
        pictures = sum(store.split(name).num_examples for name in self.split_names)
        needed = pictures * 3 * options.size**2
        if options.keep_decoded and needed > KEPT_BYTES_LIMIT:
            raise ConfigError(
                f"task.keep_decoded: {pictures} pictures of {options.size} x {options.size} pixels "
                f"take {needed / 2**30:.1f} GiB, more than the {KEPT_BYTES_LIMIT >> 30} GiB that "
                "are allowed; set it to false, or task.size to a smaller side"
            )

    def _to_examples(self, fields: Mapping[str, Any]) -> Examples:
        """Decode: uint8, shape (n, 3, size, size)."""
        pictures = np.empty((len(fields["image"]), self._size, self._size, 3), dtype=np.uint8)
        for place, content in enumerate(fields["image"]):
            pictures[place] = self._decode(content)
        inputs = torch.from_numpy(pictures).permute(0, 3, 1, 2)
        return Examples(inputs, torch.from_numpy(fields["targets"].astype(np.int64)))

    def _decode(self, content: NDArray[np.uint8]) -> NDArray[np.uint8]:
        if self._kept is None:
            return self._decode_anew(content)
        # By content: equal bytes give equal pixels, whoever has them.
        key = hashlib.blake2b(content.tobytes(), digest_size=16).digest()
        if key not in self._kept:
            self._kept[key] = self._decode_anew(content)
        return self._kept[key]

    def _decode_anew(self, content: NDArray[np.uint8]) -> NDArray[np.uint8]:
        try:
            return decode_picture(content, self._size)
        except PictureError as error:
            raise DataError(
                f"task openimage: a picture of {self.store.path} cannot be decoded ({error}); the "
                "store is damaged: copy it again, or prepare the data again"
            ) from error


def build(options: Options) -> OpenImageTask:
    """Open a prepared store.

    Args:
        options: Options of the task.

    Raises:
        DataError: There is no such file, or it was prepared for another task or is damaged.
        ConfigError: More decoded pictures would be kept than the limit allows.
    """
    return OpenImageTask(open_store(options.data, TASK_NAME), options)
