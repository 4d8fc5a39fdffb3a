"""Linear models of normalised scattering features."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tasks.common.vision.scattering import COEFFICIENTS

_EPSILON = 1e-5


class StandardizedLinear(nn.Module):
    """A linear layer of features that are normalised by given statistics of each channel.

    A channel whose variance is given as 0 counts nothing. It is a model of
    ``pfl_bench.types.NormalizesByStatistics``.

    Args:
        shape: Of an example's features, (K, height, width).
        num_classes: Number of logits.

    Attributes:
        mean: Shape (K,): a buffer, 0 before ``set_statistics``.
        scale: Shape (K,): a buffer, 1 before it; one over the standard deviation, or 0.

    Source: Tramer and Boneh 2021, section 3.2 and appendix A.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, shape: tuple[int, int, int], num_classes: int) -> None:
        super().__init__()
        channels, height, width = shape
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("scale", torch.ones(channels))
        self.linear = nn.Linear(channels * height * width, num_classes)

    def moments(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and mean square of each example's channels, from shape (n, K, height, width)."""
        return inputs.mean((2, 3)), inputs.square().mean((2, 3))

    def set_statistics(self, mean: Tensor, variance: Tensor) -> None:
        """Take mean and variance of each channel, shapes (K,)."""
        scale = torch.where(variance > 0.0, (variance + _EPSILON).rsqrt(), 0.0)
        self.mean.copy_(mean)
        self.scale.copy_(scale)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits of shape (n, num_classes), from shape (n, K, height, width)."""
        shape = (1, -1, 1, 1)
        normal = (inputs - self.mean.view(shape)) * self.scale.view(shape)
        logits: Tensor = self.linear(normal.flatten(1))
        return logits


def scatter_linear(shape: tuple[int, int, int], num_classes: int, groups: int | None) -> nn.Module:
    """Build a linear model of scattering features; 39,700 parameters for 28 x 28 pixels.

    Args:
        shape: Of an example's features: a multiple of 81 channels, height, width.
        num_classes: Number of logits.
        groups: Normalise each example by so many groups of its own channels; None to normalise by
            statistics that a private run releases.

    Returns:
        A model from shape (n, *shape) to logits of shape (n, num_classes).

    Raises:
        ValueError: The channels are no scattering features, or the groups do not divide them.
    """
    channels, height, width = shape
    if channels % COEFFICIENTS:
        raise ValueError(f"{channels} channels are no multiple of {COEFFICIENTS} coefficients")
    if groups is None:
        return StandardizedLinear(shape, num_classes)
    size = channels * height * width
    norm = nn.GroupNorm(groups, channels, affine=False)
    return nn.Sequential(norm, nn.Flatten(), nn.Linear(size, num_classes))
