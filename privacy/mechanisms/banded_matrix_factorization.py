"""DP-FTRL by banded matrix factorisation: noise that later rounds partly take back.

Guarantee: unit user, added or removed. Each of a user's contributions has norm at most
``clip_norm``; round t's sum gets ``(C^-1 Z)_t * z * C_sm / C_lg * clip_norm`` (Z standard normal, a
fresh row a round, empty cohorts included) and is divided by the configured cohort size. C is
lower triangular Toeplitz with ``bands`` nonnegative coefficients of norm 1, so that no column's
norm is above 1 (``privacy.noise.factorization``). z is the standard deviation of the noise under C,
in
multiples of clip_norm; what an accountant sees of it:

- cyclic_poisson, separation >= bands: amplified. A user's rounds are ``separation`` apart, so their
  columns of C have no row in common: the rows that one round of the user touches are, given all
  rows before, one Gaussian mechanism of sensitivity ||column|| <= 1 and multiplier z, entered with
  probability q_g. After T rounds that is at most ceil(T / separation) Poisson-sampled Gaussians.
- cyclic_poisson with separation < bands, and full participation: columns overlap; the chance of a
  round does not help what the overlap has already shown. Not amplified: one Gaussian of multiplier
  z over the exact sensitivity of the pattern, every ``separation``-th round (full: every round).
- selected: not amplified. One Gaussian of multiplier z over the sensitivity of all patterns within
  the separation and the cap of k rounds, the worst of which is accounted: sqrt(k) for a separation
  of bands or more, above that for less. Adjacency zero-out.
- poisson: refused with more than one band. A user may be in two overlapping rounds, so the rounds
  are no composition of sampled Gaussians, and nothing here bounds them by less than a user who is
  in every round.
- fixed_size: refused with more than one band. Who is drawn depends on who else is, and one user
  replaced by another moves two patterns of rounds: neither argument above covers it.
- one band: C = I, the Gaussian mechanism, accounted as such under every scheme.

A run that stops early has released the first rows alone, of which all of this is true too. Each
release adds noise of its own row's standard deviation, more than z; their sums have less.

Memory: the last ``bands - 1`` noise vectors, float32, on the CPU and in each checkpoint:
4 * (bands - 1) * P bytes (60 MB for 16 bands and a million parameters).

Source: Choquette-Choo et al. 2023 (arXiv 2306.08153), algorithm 1, theorem 4 (amplification by
groups), theorem 2 (sensitivity); Kalinin and Lampert 2024 (arXiv 2405.13763), theorem 2
(sensitivity of every pattern within a separation); Denisov et al. 2022 (arXiv 2202.08312),
theorem 2.1 (adaptivity).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from privacy.amplification import Participation
from privacy.description import FRESH, Description
from privacy.errors import PlanError
from privacy.mechanism import NoiseScale
from privacy.noise.correlated_noise import BandedOptions, BandedSum, pattern_squared_sensitivity
from privacy.noise.factorization import (
    noise_coefficients,
    optimized_coefficients,
    square_root_coefficients,
    toeplitz_profile,
)
from privacy.noise.toeplitz_noise import TOEPLITZ

# Its strategy, the column of C, is that of the options.
DESCRIPTION = TOEPLITZ


class Options(BandedOptions):
    """Settings of banded matrix factorisation.

    Attributes:
        clip_norm: L2 bound of a user's update, the same in every round: the noise of one round is
            taken back in later ones, which holds in one unit alone.
        bands: Rounds that a draw of noise is spread over; 1 is the Gaussian mechanism.
        strategy: "optimized" for the least mean squared error of the prefix sums of the planned
            rounds, "square_root" for the banded square root, which needs to know no rounds.
    """

    strategy: Literal["square_root", "optimized"] = "optimized"


class BandedMatrixFactorization(BandedSum):
    """Clip to a fixed bound, sum, add correlated noise, divide by the configured cohort size.

    More bands than planned rounds are refused.
    """

    name = "banded_matrix_factorization"

    def __init__(self, options: Options, noise: NoiseScale) -> None:
        super().__init__(options, noise)
        self._is_optimized = options.strategy == "optimized"

    @cached_property
    def strategy(self) -> NDArray[np.float64]:
        """Shape (bands,), float64: coefficients of C. Found when first needed, not when built.

        Raises:
            PlanError: They are to be optimized for rounds that nobody has planned.
        """
        rounds = self._noise.num_rounds
        if not self._is_optimized:
            return square_root_coefficients(self._bands)
        if self._bands > 1 and not rounds:
            raise PlanError(
                "strategy optimized needs the number of rounds that it is optimized for, but "
                "none is planned; set num_rounds, or strategy: square_root"
            )
        return optimized_coefficients(max(rounds, 1), self._bands)

    @property
    def description(self) -> Description:  # type: ignore[override]
        """With the column of C, unless it is to be optimized for rounds that nobody has planned."""
        if self._bands == 1:
            return replace(DESCRIPTION, strategy=FRESH)
        if self._is_optimized and not self._noise.num_rounds:
            return DESCRIPTION
        return replace(DESCRIPTION, strategy=tuple(self.strategy.tolist()))

    def _squared_sensitivity(self, participation: Participation, rounds: int) -> float:
        return pattern_squared_sensitivity(lambda: self.strategy, participation, rounds)

    def _noise_profile(self, rounds: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return toeplitz_profile(noise_coefficients(self.strategy, rounds))

    def _weights(self) -> list[float]:
        weights: list[float] = self.strategy.tolist()
        return weights

    def _saved_strategy(self) -> dict[str, Any]:
        return {"coefficients": self._weights()}


build = BandedMatrixFactorization
