"""The CelebA task: is a celebrity smiling, one client a celebrity."""

from __future__ import annotations

from typing import Literal

import torch
from PIL.Image import Resampling
from pydantic import Field
from torch import Tensor

from pfl_bench.data import Store, StoredTask, open_store
from tasks.common.classification import CrossEntropy, known_facts
from tasks.common.images.task import Scale
from tasks.common.options import StoredOptions
from tasks.common.vision.decoding import DecodedPictures

TASK_NAME = "celeba"
# Of the store's facts, what a summary repeats.
FACTS_SHOWN = ("split", "label", "generated", "problems", "table1", "differs_from_published")


class Options(StoredOptions):
    """Options of the CelebA task, beside those of all tasks on a store.

    Attributes:
        size: Height and width to which decoded images are scaled, without regard to their
            proportions, as in LEAF.
        resample: Pillow's filter. LEAF's code leaves it to Pillow: nearest before Pillow 7
            (January 2020, after that code was written), bicubic since.
        pixels: "scaled" to -1..1, or "raw", 0..255 as LEAF's code feeds them.
        keep_decoded: Keep decoded images in memory (3 * size^2 bytes each, at most 8 GiB).
    """

    size: int = Field(default=84, ge=8, le=512)
    resample: Literal["nearest", "bilinear", "bicubic"] = "bicubic"
    pixels: Literal["scaled", "raw"] = "scaled"
    keep_decoded: bool = False


class ToNumbers(Scale):
    """Makes numbers of pixels, in -1..1 if ``scale``, else in 0..255; draws nothing."""

    def __init__(self, scale: bool) -> None:
        self.scale = scale

    def __call__(self, inputs: Tensor, draws: Tensor | None) -> Tensor:
        """Turn shape (n, 3, side, side), uint8, into float32."""
        numbers = inputs.to(torch.float32)
        return numbers.mul_(1 / 127.5).sub_(1.0) if self.scale else numbers


class CelebaTask(CrossEntropy, StoredTask):
    """Two classes, cross entropy; images are decoded when read and become numbers by the batch."""

    def __init__(self, store: Store, options: Options) -> None:
        resample = Resampling[options.resample.upper()]
        self.transform = ToNumbers(options.pixels == "scaled")
        super().__init__(
            store,
            ("image", "targets"),
            DecodedPictures(store, options.size, resample, options.keep_decoded, "an image"),
            options.max_examples_per_user,
            input_shape=(3, options.size, options.size),
            class_names=tuple(store.names("targets")),
            extra=known_facts(store, FACTS_SHOWN),
        )


def build(options: Options) -> CelebaTask:
    """Open a prepared store; refused as ``open_store`` says, or if the options do not fit it."""
    return CelebaTask(open_store(options.data, TASK_NAME), options)
