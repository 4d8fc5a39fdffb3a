"""DP-FTRL by a banded inverse square root (BISR): noise that is a moving sum of the last draws.

Guarantee: unit user, added or removed ("selected": zeroed out); that of
``privacy.noise.toeplitz_noise``. Each of a user's contributions has norm at most ``clip_norm``;
round t's sum gets ``(C^-1 Z)_t * z * C_sm / C_lg * clip_norm`` and is divided by the configured
cohort size. C^-1 is banded: its coefficients are the first ``bands`` of (1 - x)^(1/2), scaled so
that the first column
of C, over the planned rounds, has norm 1. C itself is not banded. Its coefficients are positive:
those of 1 / (1 - a_1 x - a_2 x^2 - ...) with a_j > 0, of sum below 1. The sensitivity is computed
from them: exact for cyclic_poisson and full; for selected users exact where they fall (which is
checked, not assumed), else a bound.

Nothing is optimized, so that every machine finds the same strategy, at any number of rounds.

Memory: the last ``bands - 1`` draws, float32, on the CPU and in each checkpoint: 4 (bands - 1) P
bytes.

Source: Kalinin, McKenna, Upadhyay, Lampert 2025, "Back to square roots"; Kalinin and Lampert 2024
(arXiv 2405.13763), theorem 2 (sensitivity).
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from privacy.description import Inverse
from privacy.mechanism import NoiseScale, NormalSource
from privacy.noise.correlated_noise import CHUNK, BandedOptions, check_bands, check_length
from privacy.noise.toeplitz_noise import TOEPLITZ, ToeplitzSum, check_planned

DESCRIPTION = TOEPLITZ


def inverse_square_root(bands: int, rounds: int) -> Inverse:
    """First coefficients of (1 - x)^(1/2), scaled so that the column of C has norm 1."""
    index = np.arange(1, bands)
    raw = np.concatenate([[1.0], np.cumprod((index - 1.5) / index)])
    norm = float(np.linalg.norm(Inverse(tuple(raw.tolist())).column(rounds)))
    return Inverse(tuple((raw * norm).tolist()))


class Options(BandedOptions):
    """Settings of the banded inverse square root.

    Attributes:
        clip_norm: L2 bound of a user's update, the same in every round.
        bands: Draws that a round's noise is made of; 1 is independent noise.
    """


class BandedInverseSquareRoot(ToeplitzSum):
    """Clip to a fixed bound, sum, add correlated noise, divide by the configured cohort size.

    More bands than planned rounds are refused.
    """

    name = "banded_inverse_square_root"

    def __init__(self, options: Options, noise: NoiseScale) -> None:
        check_bands(options.bands, noise)
        super().__init__(options, noise)
        self._bands = options.bands

    @cached_property
    def strategy(self) -> Inverse:
        """C, where rounds are planned."""
        return inverse_square_root(self._bands, check_planned(self.name, self._noise))

    def noise_column(self, rounds: int) -> NDArray[np.float64]:
        """First column of C^-1, shape (rounds,)."""
        column = np.zeros(max(rounds, self._bands))
        column[: self._bands] = self.strategy.inverse
        return column[:rounds]

    def _next_noise(self, rng: NormalSource, length: int) -> NDArray[np.float64]:
        """The coming row of C^-1 Z, of ``length`` normal draws; shape (length,)."""
        check_length(self._kept, length)
        first, *later = self.strategy.inverse
        noise = rng.standard_normal(length)
        newest = torch.from_numpy(noise.astype(np.float32))
        for start in range(0, length, CHUNK):
            part = noise[start : start + CHUNK]
            part *= first
            for weight, vector in zip(later, self._kept, strict=False):
                part += vector.numpy()[start : start + CHUNK].astype(np.float64) * weight
        self._kept = [newest, *self._kept][: len(later)]
        return noise

    def _num_kept(self, rounds: int) -> int:
        """The last draws, the latest first."""
        return min(rounds, self._bands - 1)


build = BandedInverseSquareRoot
