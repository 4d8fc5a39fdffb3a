"""Transform of a batch of pictures before the model: mirroring, normalisation."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

# Of pixels in 0..1. They are CIFAR-10's, which FedScale's code (dataloaders/utils_data.py) takes
# for OpenImage.
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2023, 0.1994, 0.2010)


class FlipNormalize:
    """Mirrors half of the training pictures, and normalises all.

    Args:
        augment: Whether training mirrors at random.

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
        """Transform a batch.

        Args:
            inputs: Shape (n, 3, size, size), uint8.
            draws: Shape (n, 1), of ``draw``, on the same device; None for evaluation.

        Returns:
            The same shape, float32, normalised.
        """
        if self._scale.device != inputs.device:
            self._scale = self._scale.to(inputs.device)
            self._shift = self._shift.to(inputs.device)
        pixels = inputs.float()
        if draws is not None and self.augment:
            pixels = torch.where(draws.view(-1, 1, 1, 1) > 0, pixels.flip(3), pixels)
        return pixels.mul_(self._scale).add_(self._shift)
