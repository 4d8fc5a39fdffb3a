"""The CelebA task: is a celebrity smiling, one client a celebrity."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor
from torch.nn import functional

from pfl_bench.data import Store, StoredTask, open_store
from pfl_bench.types import ConfigError, DataError, Examples
from tasks.celeba.transform import ToNumbers
from tasks.common.vision.pictures import PictureError, opened

TASK_NAME = "celeba"
KEPT_BYTES_LIMIT = 8 << 30
FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
}
# Of the store's facts, what a summary repeats.
FACTS_SHOWN = ("split", "label", "generated", "problems", "table1", "differs_from_published")


class Options(BaseModel):
    """Options of the CelebA task.

    Attributes:
        data: Path of the store that ``pfl-bench data prepare celeba`` wrote.
        max_examples_per_user: A celebrity with more gives a random subset of this size, drawn
            anew at each read for training; None for no limit.
        size: Height and width to which decoded images are scaled, without regard to their
            proportions, as in LEAF.
        resample: Pillow's filter. LEAF's code leaves it to Pillow: nearest before Pillow 7
            (January 2020, after that code was written), bicubic since.
        pixels: "scaled" to -1..1, or "raw", 0..255 as LEAF's code feeds them.
        keep_decoded: Keep decoded images in memory (3 * size^2 bytes each, at most 8 GiB).
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    data: str
    max_examples_per_user: int | None = Field(default=None, ge=1)
    size: int = Field(default=84, ge=8, le=512)
    resample: Literal["nearest", "bilinear", "bicubic"] = "bicubic"
    pixels: Literal["scaled", "raw"] = "scaled"
    keep_decoded: bool = False


class CelebaTask(StoredTask):
    """Two classes, cross entropy; images are decoded when read and become numbers by the batch.

    Args:
        store: An open CelebA store.
        options: As in ``Options``.

    Raises:
        ConfigError: More decoded images would be kept than the limit allows.
    """

    metrics: tuple[str, ...] = ("classification",)

    def __init__(self, store: Store, options: Options) -> None:
        self._size = options.size
        self._filter = FILTERS[options.resample]
        self._kept: dict[bytes, NDArray[np.uint8]] | None = {} if options.keep_decoded else None
        self.transform = ToNumbers(options.pixels == "scaled")
        known = store.facts.extra
        super().__init__(
            store,
            ("image", "targets"),
            self._to_examples,
            options.max_examples_per_user,
            input_shape=(3, options.size, options.size),
            class_names=tuple(store.names("targets")),
            extra={key: known[key] for key in FACTS_SHOWN if key in known},
        )
        images = sum(self.split(name).num_examples for name in self.split_names)
        needed = images * 3 * options.size**2
        if options.keep_decoded and needed > KEPT_BYTES_LIMIT:
            raise ConfigError(
                f"task.keep_decoded: {images} images of {options.size} x {options.size} pixels "
                f"take {needed / 2**30:.1f} GiB, more than the {KEPT_BYTES_LIMIT >> 30} GiB that "
                "are allowed; set it to false, or task.size to a smaller side"
            )

    def _to_examples(self, fields: Mapping[str, Any]) -> Examples:
        """Decode: uint8, shape (n, 3, size, size)."""
        images = np.empty((len(fields["image"]), self._size, self._size, 3), dtype=np.uint8)
        for place, data in enumerate(fields["image"]):
            images[place] = self._decode(data)
        inputs = torch.from_numpy(images).permute(0, 3, 1, 2)
        return Examples(inputs, torch.from_numpy(fields["targets"].astype(np.int64)))

    def _decode(self, data: NDArray[np.uint8]) -> NDArray[np.uint8]:
        if self._kept is None:
            return self._decode_anew(data)
        # By content: equal bytes give equal pixels, whichever user and split they come from.
        key = hashlib.blake2b(data.tobytes(), digest_size=16).digest()
        if key not in self._kept:
            self._kept[key] = self._decode_anew(data)
        return self._kept[key]

    def _decode_anew(self, data: NDArray[np.uint8]) -> NDArray[np.uint8]:
        try:
            with opened(data.tobytes()) as image:
                scaled = image.convert("RGB").resize((self._size, self._size), self._filter)
        except PictureError as error:
            raise DataError(
                f"task celeba: an image of {self.store.path} cannot be decoded ({error}); the "
                "store is damaged: copy it again, or prepare the data again"
            ) from error
        return np.asarray(scaled)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy of logits of shape (n, 2) and targets of shape (n,)."""
        return functional.cross_entropy(outputs, targets)

    def example_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Cross entropy of each example, shape (n,)."""
        return functional.cross_entropy(outputs, targets, reduction="none")


def build(options: Options) -> CelebaTask:
    """Open a prepared store.

    Args:
        options: Options of the task.

    Raises:
        DataError: There is no such file, or it was prepared for another task or is damaged.
        ConfigError: More decoded images would be kept than the limit allows.
    """
    return CelebaTask(open_store(options.data, TASK_NAME), options)
