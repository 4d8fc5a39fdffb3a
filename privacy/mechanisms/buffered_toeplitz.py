"""DP-FTRL by buffered linear Toeplitz noise (BLT): correlated noise from a few buffers.

Guarantee: unit user, added or removed ("selected": zeroed out); that of
``privacy.noise.toeplitz_noise``, with a column of C that is positive and falls. Each of a user's
contributions has norm at most ``clip_norm``; round t's sum gets ``(C^-1 Z)_t * z * C_sm / C_lg *
clip_norm`` and is divided by the configured cohort size. The sensitivity is exact for every scheme
that is not refused.

C's column is first 1 and then the sum over d buffers of w_i q_i^(n - 1), scaled to norm 1 over the
planned rounds. The noise y_t = (Z_t / scale) - sum of w_i s_i, and s_i becomes q_i s_i + y_t: the
round costs d vectors, whatever the rounds. Decays and weights make the mean squared error of the
prefix sums small for users in every ``separation``-th of the planned rounds.

Memory: the d buffers, float32, on the CPU and in each checkpoint: 4 * d * P bytes (16 MB for 4
buffers and a million parameters), where ``banded_matrix_factorization`` has 4 * (bands - 1) * P.

Source: Dvijotham, McMahan, Pillutla, Steinke, Thakurta 2024 (arXiv 2404.16706); McMahan, Xu, Zhang
2024 (arXiv 2408.08868; separated participations); Kalinin and Lampert 2024, theorem 2.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from privacy.description import Buffers
from privacy.mechanism import NoiseScale, NormalSource
from privacy.noise.buffered_toeplitz import noise_column, optimized_buffers
from privacy.noise.clipped_sum import ClipOptions
from privacy.noise.correlated_noise import check_length
from privacy.noise.toeplitz_noise import TOEPLITZ, ToeplitzSum, check_planned

DESCRIPTION = TOEPLITZ

# All are there from the first round on.
MOST_BUFFERS = 8


class Options(ClipOptions):
    """Settings of buffered linear Toeplitz noise.

    Attributes:
        clip_norm: L2 bound of a user's update, the same in every round.
        buffers: Vectors that the noise is made from; more than 4 gain little.
    """

    buffers: Annotated[int, Field(ge=1, le=MOST_BUFFERS)] = 4


class BufferedToeplitz(ToeplitzSum):
    """Clip to a fixed bound, sum, add correlated noise, divide by the configured cohort size."""

    name = "buffered_toeplitz"

    def __init__(self, options: Options, noise: NoiseScale) -> None:
        super().__init__(options, noise)
        self._num_buffers = options.buffers

    @cached_property
    def strategy(self) -> Buffers:
        """C, where rounds are planned; found when first needed, not when built."""
        rounds = check_planned(self.name, self._noise)
        return optimized_buffers(rounds, self._num_buffers, self._noise.separation)

    def noise_column(self, rounds: int) -> NDArray[np.float64]:
        """First column of C^-1, shape (rounds,)."""
        return noise_column(self.strategy, rounds)

    def _next_noise(self, rng: NormalSource, length: int) -> NDArray[np.float64]:
        """The coming row of C^-1 Z, of ``length`` normal draws; shape (length,)."""
        check_length(self._kept, length)
        strategy = self.strategy
        noise = rng.standard_normal(length)
        noise /= strategy.first
        for weight, vector in zip(strategy.weights, self._kept, strict=False):
            noise -= weight * vector.numpy().astype(np.float64)
        kept = self._kept or [torch.zeros(length)] * len(strategy.decays)
        newest = torch.from_numpy(noise.astype(np.float32))
        self._kept = [
            decay * vector + newest for decay, vector in zip(strategy.decays, kept, strict=True)
        ]
        return noise

    def _num_kept(self, rounds: int) -> int:
        """The buffers, from the first round on."""
        return self._num_buffers if rounds else 0

    def _saved_strategy(self) -> dict[str, Any]:
        strategy = self.strategy
        columns = {"weights": list(strategy.weights), "decays": list(strategy.decays)}
        return {"strategy": {"first": strategy.first, **columns}}


build = BufferedToeplitz
