"""Transform of a batch of images before the model: pixels become numbers in 0 to 1."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

WHITE = 255.0
PADDING = 4


class Scale:
    """Turns bytes into numbers in 0 to 1; nothing is drawn."""

    def draw(self, count: int, rng: np.random.Generator) -> Tensor:
        """Draw nothing: shape (count, 1), zeros; the stream is untouched."""
        return torch.zeros((count, 1), dtype=torch.int64)

    def __call__(self, inputs: Tensor, draws: Tensor | None) -> Tensor:
        """Scale a batch, shape (n, ...), to float32; floating-point numbers stay as they are."""
        return inputs.float().div_(WHITE) if inputs.dtype == torch.uint8 else inputs.float()


class CropFlip(Scale):
    """Training images are padded by mirroring, cropped at random, and flipped with probability 1/2.

    Each edge is padded by ``padding`` pixels.

    Source: Li et al. 2022 (NIID-Bench), whose code pads CIFAR-10 by 4, mirrored, and crops to 32.
    """

    def __init__(self, side: int, padding: int = PADDING) -> None:
        places = torch.arange(side) + torch.arange(-padding, padding + 1).unsqueeze(1)
        places = places.abs()
        # Row s is where the pixels come from if the crop begins s pixels into the padded image.
        self._places = torch.where(places < side, places, 2 * (side - 1) - places)
        self._side = side
        self._shifts = 2 * padding + 1

    def draw(self, count: int, rng: np.random.Generator) -> Tensor:
        """Draw crops and flips: shape (count, 3), int64: top, left, whether flipped left-right."""
        places = rng.integers(0, self._shifts, (count, 2))
        return torch.from_numpy(np.column_stack([places, rng.integers(0, 2, count)]))

    def __call__(self, inputs: Tensor, draws: Tensor | None) -> Tensor:
        """Crop, flip and scale a batch, shape (n, C, side, side), to float32.

        ``draws`` are those of ``draw``, on the same device; None, in evaluation, scales alone.
        """
        if draws is None:
            return super().__call__(inputs, None)
        if self._places.device != inputs.device:
            self._places = self._places.to(inputs.device)
        rows, columns = self._places[draws[:, 0]], self._places[draws[:, 1]]
        columns = torch.where(draws[:, 2:] > 0, columns.flip(1), columns)
        taken = (rows.unsqueeze(2) * self._side + columns.unsqueeze(1)).flatten(1).unsqueeze(1)
        pixels = inputs.flatten(2)
        cut = pixels.gather(2, taken.expand(-1, pixels.shape[1], -1)).view(inputs.shape)
        return super().__call__(cut, None)
