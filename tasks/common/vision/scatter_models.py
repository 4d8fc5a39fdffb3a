"""Small models of normalised scattering features."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from tasks.common.vision.scattering import COEFFICIENTS

_EPSILON = 1e-5
# Of the features of images of 28 and of 32 pixels a side.
_SIDES = (7, 8)


class Standardized(nn.Module):
    """A network of features that are normalised by given statistics of each channel.

    A channel whose variance is given as 0 counts nothing. It is a model of
    ``pfl_bench.types.NormalizesByStatistics``.

    ``network`` goes from normalised features, shape (n, K, height, width), to logits.

    Attributes:
        mean: Shape (K,): a buffer, 0 before ``set_statistics``.
        scale: Shape (K,): a buffer, 1 before it; one over the standard deviation, or 0.

    Source: Tramer and Boneh 2021, section 3.2 and appendix A.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, channels: int, network: nn.Module) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("scale", torch.ones(channels))
        self.network = network

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
        logits: Tensor = self.network(normal)
        return logits


def _linear(shape: tuple[int, int, int], num_classes: int) -> list[nn.Module]:
    return [nn.Flatten(), nn.Linear(math.prod(shape), num_classes)]


def _convolutions(shape: tuple[int, int, int], num_classes: int) -> list[nn.Module]:
    channels, side, _ = shape
    if side == _SIDES[0]:
        return [
            nn.Conv2d(channels, 16, kernel_size=3, stride=2, padding=1),
            nn.Tanh(),
            nn.Conv2d(16, 32, kernel_size=3, padding=1),
            nn.Tanh(),
            *_linear((32, 4, 4), 32),
            nn.Tanh(),
            nn.Linear(32, num_classes),
        ]
    return [
        nn.Conv2d(channels, 64, kernel_size=3, padding=1),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, kernel_size=3, padding=1),
        nn.Tanh(),
        *_linear((64, 4, 4), num_classes),
    ]


def is_scattering(shape: tuple[int, ...]) -> bool:
    """Whether inputs have the shape of scattering features that the models take."""
    if len(shape) != 3:
        return False
    return shape[0] in (COEFFICIENTS, 3 * COEFFICIENTS) and shape[1] == shape[2] in _SIDES


_LAYERS = {"scatter_linear": _linear, "scatter_cnn": _convolutions}
NAMES = tuple(_LAYERS)


def scatter_model(
    name: str, shape: tuple[int, int, int], num_classes: int, groups: int | None
) -> nn.Module:
    """Build a model from scattering features, shape (n, *shape), to logits (n, num_classes).

    Args:
        name: "scatter_linear" (39,700 parameters at 10 classes, of colour images 155,530), or
            "scatter_cnn": two convolutions with tanh (33,066; of colour images 187,210).
        shape: Of an example's features: (81 or 243, 7, 7) or (the same, 8, 8).
        num_classes: Number of logits.
        groups: Normalise each example by so many groups of its own channels; None to normalise by
            statistics that a private run releases.

    Raises:
        ValueError: The groups do not divide the channels.

    Source: Tramer and Boneh 2021, section 3 and appendix C; Handcrafted-DP, models.py (79e7475).
    """
    layers = _LAYERS[name](shape, num_classes)
    if groups is None:
        return Standardized(shape[0], nn.Sequential(*layers))
    return nn.Sequential(nn.GroupNorm(groups, shape[0], affine=False), *layers)
