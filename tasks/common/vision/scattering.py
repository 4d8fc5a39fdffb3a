"""The scattering transform of two scales and eight angles: features that nothing is learned for.

An image is filtered by Morlet wavelets of each scale and angle, and the modulus is taken; moduli of
the finer scale are filtered again at the coarser one. A low-pass filter averages all of them, and a
pixel in four remains along each axis.

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
from torch import Tensor
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
