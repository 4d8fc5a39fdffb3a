"""Transform of a batch of images before the model: from bytes to numbers."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


class ToNumbers:
    """Makes numbers of pixels, in -1..1 if ``scale``, else in 0..255; draws nothing."""

    def __init__(self, scale: bool) -> None:
        self.scale = scale

    def draw(self, count: int, rng: np.random.Generator) -> Tensor:
        """Draw nothing: shape (count, 0); ``rng`` stays untouched."""
        return torch.zeros((count, 0), dtype=torch.int64)

    def __call__(self, inputs: Tensor, draws: Tensor | None) -> Tensor:
        """Turn shape (n, 3, side, side), uint8, into float32."""
        numbers = inputs.to(torch.float32)
        return numbers.mul_(1 / 127.5).sub_(1.0) if self.scale else numbers
