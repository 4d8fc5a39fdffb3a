"""The scattering transform of two scales and eight angles, and small models of its features.

An image is filtered by Morlet wavelets of each scale and angle, and the modulus is taken; moduli of
the finer scale are filtered again at the coarser one. A low-pass filter averages all of them, and a
pixel in four remains along each axis: nothing of it is learned.

Source: Bruna and Mallat 2013, "Invariant scattering convolution networks"; the filters' constants,
the order of the coefficients and the border are those of Andreux et al. 2020, "Kymatio".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

SCALES, ANGLES = 2, 8
# One average of the image, of eight angles at two scales, and of eight angles of a modulus each.
COEFFICIENTS = 1 + SCALES * ANGLES + ANGLES * ANGLES
STRIDE = 1 << SCALES
_AT_ONCE = 16
_SIGMA, _FREQUENCY = 0.8, 0.75 * math.pi

Complex = NDArray[np.complex128]
Real = NDArray[np.float64]


def scattering(images: Tensor) -> Tensor:
    """Transform images.

    Args:
        images: Shape (n, channels, side, side), float32; sides a multiple of 4, from 8 on.

    Returns:
        Shape (n, channels * 81, side // 4, side // 4), float32: of each channel, the image's
        average, then the first order by scale and angle, then the second by both angles.

    Raises:
        ValueError: The sides are not such.
    """
    height, width = images.shape[-2:]
    if height != width or height % STRIDE or height < 2 * STRIDE:
        raise ValueError(
            f"images of {height} x {width} pixels have no scattering transform here: sides must be "
            f"equal and a multiple of {STRIDE}, at least {2 * STRIDE}"
        )
    return torch.cat([_transform(part) for part in torch.split(images, _AT_ONCE)])


def _transform(images: Tensor) -> Tensor:
    """The transform of so few images that what is between stays in the cache."""
    # A border of a stride on either side, mirrored, of which a pixel would remain on each side.
    padded = functional.pad(images, (STRIDE,) * 4, mode="reflect")
    filters = _filters(padded.shape[-1])
    spectrum = torch.fft.fft2(padded)[:, :, None]
    # Moduli of scale 0 at full resolution, those of scale 1 at half of it.
    fine = torch.fft.ifft2(spectrum * filters.wavelets[0]).abs()
    coarse = _at_half(spectrum * filters.wavelets[1]).abs()
    parts = [_averaged(padded[:, :, None], filters.full), _averaged(fine, filters.full)]
    parts.append(_averaged(coarse, filters.half))
    for modulus in torch.fft.fft2(fine).unbind(2):
        second = _at_half(modulus[:, :, None] * filters.wavelets[1]).abs()
        parts.append(_averaged(second, filters.half))
    return torch.cat(parts, dim=2).flatten(1, 2)


def _at_half(spectrum: Tensor) -> Tensor:
    """Every other pixel along each axis of what has a spectrum: leaving them out folds it."""
    side = spectrum.shape[-1] // 2
    folded = spectrum[..., :side, :] + spectrum[..., side:, :]
    kept: Tensor = torch.fft.ifft2((folded[..., :side] + folded[..., side:]) / 4.0)
    return kept


def _averaged(values: Tensor, average: Tensor) -> Tensor:
    """Averages without the border: the low-pass filter is a product of one along each axis."""
    averaged: Tensor = average @ values @ average.t()
    return averaged


@dataclass(frozen=True, slots=True)
class _Filters:
    """The filters for images of one size, all float32.

    Attributes:
        wavelets: Of each scale, spectra of shape (8, side, side): real, for symmetric filters.
        full: Shape (side // 4 - 2, side): the low-pass filter along an axis, at a pixel in four.
        half: Shape (side // 4 - 2, side // 2): the same for values at half the resolution.
    """

    wavelets: tuple[Tensor, ...]
    full: Tensor
    half: Tensor


@lru_cache(maxsize=4)
def _filters(side: int) -> _Filters:
    """The filters for images of so many pixels a side, borders included."""
    wavelets = [
        np.stack([np.fft.fft2(_morlet(side, scale, angle)).real for angle in range(ANGLES)])
        for scale in range(SCALES)
    ]
    bump = _gabor(side, _SIGMA * 2 ** (SCALES - 1), 0.0, 0.0, 1.0)
    spectrum = np.fft.fft2(bump).real
    # Of a product of two equal factors, the first row is one of them.
    low = spectrum[0] / math.sqrt(spectrum[0, 0])
    # Of its pass band, what lies beyond half the resolution is cut off.
    kept = np.where(np.abs(np.fft.fftfreq(side)) < 0.25, low, 0.0)
    kept[-(side // 4)] = low[side // 4]
    half = kept.reshape(2, side // 2).sum(axis=0)
    return _Filters(
        tuple(torch.from_numpy(part.astype(np.float32)) for part in wavelets),
        _average(low, STRIDE),
        _average(half, STRIDE // 2),
    )


def _average(low: Real, stride: int) -> Tensor:
    """A low-pass filter along an axis as a matrix, at a pixel in ``stride``, without the border."""
    whole = np.fft.ifft(low[:, None] * np.fft.fft(np.eye(len(low)), axis=0), axis=0).real
    return torch.from_numpy(np.ascontiguousarray(whole[::stride][1:-1].astype(np.float32)))


def _morlet(side: int, scale: int, angle: int) -> Complex:
    """A wavelet of mean zero, shape (side, side)."""
    theta = (ANGLES // 2 - 1 - angle) * math.pi / ANGLES
    shape = _SIGMA * 2**scale, theta, _FREQUENCY / 2**scale, 4.0 / ANGLES
    wave = _gabor(side, *shape)
    bump = _gabor(side, shape[0], theta, 0.0, shape[3])
    return np.asarray(wave - wave.sum() / bump.sum() * bump)


def _gabor(side: int, sigma: float, theta: float, frequency: float, slant: float) -> Complex:
    """A wave under a Gaussian bump, on a torus, shape (side, side)."""
    turn = np.array([[math.cos(theta), -math.sin(theta)], [math.sin(theta), math.cos(theta)]])
    form = turn @ np.diag([1.0, slant**2]) @ turn.T / (2.0 * sigma**2)
    total = np.zeros((side, side), np.complex128)
    # Copies beyond the border, which the torus folds in.
    for row in range(-2, 3):
        for column in range(-2, 3):
            x, y = np.mgrid[row * side : (row + 1) * side, column * side : (column + 1) * side]
            bump = form[0, 0] * x**2 + (form[0, 1] + form[1, 0]) * x * y + form[1, 1] * y**2
            phase = frequency * (x * math.cos(theta) + y * math.sin(theta))
            total += np.exp(-bump + 1j * phase)
    return total / (2.0 * math.pi * sigma**2 / slant)


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
SCATTER_MODELS = tuple(_LAYERS)


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
