"""Transform of a batch of pictures before the model: crop, flips, normalisation."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from tasks.common.vision.imagenet import MEAN, STD


class CropFlipNormalize:
    """Random crop and flips for training, resizing for evaluation, ImageNet's normalisation.

    Args:
        side: Height and width of the pictures as they are read.
        crop: Height and width of what the model takes, at most ``side``.
        augment: Whether training crops and flips at random; otherwise it sees what evaluation sees.

    Source: Song et al. 2022 (FLAIR), section 5.1; the published code flips in each direction with
        probability 1/2, independently, and resizes bilinearly for evaluation.
    """

    def __init__(self, side: int, crop: int, augment: bool) -> None:
        self.side = side
        self.crop = crop
        self.augment = augment
        # For whole rows of pixels, a pixel's channels side by side: three times as fast on a CPU
        # as three numbers a pixel.
        self._scale = torch.tensor([1.0 / (255.0 * s) for s in STD]).repeat(crop)
        shift = torch.tensor([-m / s for m, s in zip(MEAN, STD, strict=True)])
        self._shift = shift.repeat(crop)

    def draw(self, count: int, rng: np.random.Generator) -> Tensor:
        """Draw crops and flips.

        ``rng``, the client's stream, is untouched without augmentation.

        Returns:
            Shape (count, 4), int64: top, left, whether flipped left-right, whether upside down.
        """
        draws = np.zeros((count, 4), dtype=np.int64)
        if self.augment:
            draws[:, :2] = rng.integers(0, self.side - self.crop + 1, (count, 2))
            draws[:, 2:] = rng.integers(0, 2, (count, 2))
        return torch.from_numpy(draws)

    def __call__(self, inputs: Tensor, draws: Tensor | None) -> Tensor:
        """Transform a batch of shape (n, 3, side, side), uint8.

        ``draws`` are those of ``draw``, on the same device; None for evaluation.

        Returns:
            Shape (n, 3, crop, crop), float32, normalised; channels last in memory.
        """
        if self._scale.device != inputs.device:
            self._scale = self._scale.to(inputs.device)
            self._shift = self._shift.to(inputs.device)
        if draws is None or not self.augment:
            pictures = inputs.float()
            if self.side != self.crop:
                pictures = functional.interpolate(
                    pictures, size=(self.crop, self.crop), mode="bilinear", align_corners=False
                )
            pixels = pictures.permute(0, 2, 3, 1).contiguous()
        elif inputs.device.type == "cpu":
            pixels = self._cut_one_by_one(inputs, draws)
        else:
            pixels = self._cut_at_once(inputs, draws).float()
        pixels.view(-1, 3 * self.crop).mul_(self._scale).add_(self._shift)
        return pixels.permute(0, 3, 1, 2)

    def _cut_one_by_one(self, inputs: Tensor, draws: Tensor) -> Tensor:
        """Copies of slices: on a CPU a fraction of the time of indexing each pixel."""
        out = torch.empty((len(inputs), self.crop, self.crop, 3), dtype=torch.float32)
        pictures = inputs.permute(0, 2, 3, 1)
        for target, picture, draw in zip(out, pictures, draws.tolist(), strict=True):
            top, left, mirrored, upside_down = draw
            cut = picture[top : top + self.crop, left : left + self.crop]
            axes = [axis for axis, flip in ((1, mirrored), (0, upside_down)) if flip]
            target.copy_(cut.flip(axes) if axes else cut)
        return out

    def _cut_at_once(self, inputs: Tensor, draws: Tensor) -> Tensor:
        """One gather for the whole batch, as a GPU likes it."""
        place = torch.arange(self.crop, device=inputs.device)
        top, left, mirrored, upside_down = draws.unbind(1)
        rows = torch.where(upside_down[:, None] > 0, self.crop - 1 - place, place) + top[:, None]
        columns = torch.where(mirrored[:, None] > 0, self.crop - 1 - place, place) + left[:, None]
        batch = torch.arange(len(inputs), device=inputs.device)
        pictures = inputs.permute(0, 2, 3, 1)
        return pictures[batch[:, None, None], rows[:, :, None], columns[:, None, :]]
