"""The OpenImage task: what is in a picture, one client a Flickr user."""

from __future__ import annotations

import numpy as np
import torch
from PIL.Image import Resampling
from pydantic import Field
from torch import Tensor

from pfl_bench.data import Store, open_store
from tasks.common.fedscale.stored import LabelledTask, TaskOptions
from tasks.common.vision.decoding import DecodedPictures

TASK_NAME = "openimage"
# Of pixels in 0..1. They are CIFAR-10's, which FedScale's code (dataloaders/utils_data.py) takes
# for OpenImage.
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2023, 0.1994, 0.2010)


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


class FlipNormalize:
    """Mirrors half of the training pictures, if they are augmented, and normalises all.

    Source: FedScale's repository, dataloaders/utils_data.py ("openImg"): no crop.
    """

    def __init__(self, augment: bool) -> None:
        self.augment = augment
        self._scale = torch.tensor([1.0 / (255.0 * s) for s in STD]).view(3, 1, 1)
        shift = torch.tensor([-m / s for m, s in zip(MEAN, STD, strict=True)])
        self._shift = shift.view(3, 1, 1)

    def draw(self, count: int, rng: np.random.Generator) -> Tensor:
        """Draw which pictures are mirrored: shape (count, 1), int64; nothing if not augmented."""
        if not self.augment:
            return torch.zeros((count, 1), dtype=torch.int64)
        return torch.from_numpy(rng.integers(0, 2, (count, 1)))

    def __call__(self, inputs: Tensor, draws: Tensor | None) -> Tensor:
        """Normalise a batch of shape (n, 3, size, size), uint8; mirror by draws of shape (n, 1)."""
        self._scale, self._shift = (t.to(inputs.device) for t in (self._scale, self._shift))
        pixels = inputs.float()
        if draws is not None and self.augment:
            pixels = torch.where(draws.view(-1, 1, 1, 1) > 0, pixels.flip(3), pixels)
        return pixels.mul_(self._scale).add_(self._shift)


class OpenImageTask(LabelledTask):
    """One label a picture, cross entropy; pictures are decoded when they are read."""

    def __init__(self, store: Store, options: Options) -> None:
        self.transform = FlipNormalize(options.augment)
        pictures = DecodedPictures(store, options.size, Resampling.BILINEAR, options.keep_decoded)
        shape = (3, options.size, options.size)
        super().__init__(store, ("image", "targets"), pictures, options, input_shape=shape)


def build(options: Options) -> OpenImageTask:
    """Open a prepared store; refused as ``open_store`` says, or if the options do not fit it."""
    return OpenImageTask(open_store(options.data, TASK_NAME), options)
