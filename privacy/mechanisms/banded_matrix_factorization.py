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

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from privacy.amplification import Composition, Participation, sampled_gaussian
from privacy.description import FRESH, SAME_COEFFICIENTS, Description
from privacy.errors import PlanError, PrivacyError
from privacy.mechanism import NoiseScale, NormalSource, check_state_keys
from privacy.noise.clipped_sum import ClipOptions
from privacy.noise.correlated_noise import (
    CorrelatedSum,
    check_bands,
    check_setting,
    check_vectors,
    pattern_squared_sensitivity,
    solve_row_,
    unamplified,
)
from privacy.noise.factorization import (
    lag_correlations,
    noise_stddevs,
    optimized_coefficients,
    square_root_coefficients,
)
from privacy.noise.toeplitz_noise import TOEPLITZ

# Its strategy, the column of C, is that of the options.
DESCRIPTION = TOEPLITZ


class Options(ClipOptions):
    """Settings of banded matrix factorisation.

    Attributes:
        clip_norm: L2 bound of a user's update, the same in every round: the noise of one round is
            taken back in later ones, which holds in one unit alone.
        bands: Rounds that a draw of noise is spread over; 1 is the Gaussian mechanism.
        strategy: "optimized" for the least mean squared error of the prefix sums of the planned
            rounds, "square_root" for the banded square root, which needs to know no rounds.
    """

    bands: Annotated[int, Field(ge=1)]
    strategy: Literal["square_root", "optimized"] = "optimized"


class BandedMatrixFactorization(CorrelatedSum):
    """Clip to a fixed bound, sum, add correlated noise, divide by the configured cohort size.

    More bands than planned rounds are refused.
    """

    name = "banded_matrix_factorization"

    def __init__(self, options: Options, noise: NoiseScale) -> None:
        check_bands(options.bands, noise)
        super().__init__(options.clip_norm, noise)
        self._options = options
        self._strategy: NDArray[np.float64] | None = None
        # Noise of the last rounds at multiplier 1, the latest first; a tensor is never changed.
        self._last: list[Tensor] = []

    @property
    def coefficients(self) -> NDArray[np.float64]:
        """Shape (bands,), float64: of C. Found when first needed, not when built.

        Raises:
            PlanError: They are to be optimized for rounds that nobody has planned.
        """
        if self._strategy is None:
            bands = self._options.bands
            if self._options.strategy == "square_root":
                self._strategy = square_root_coefficients(bands)
            elif bands > 1 and not self._noise.num_rounds:
                raise PlanError(
                    "strategy optimized needs the number of rounds that it is optimized for, but "
                    "none is planned; set num_rounds, or strategy: square_root"
                )
            else:
                self._strategy = optimized_coefficients(max(self._noise.num_rounds, 1), bands)
        return self._strategy

    @property
    def description(self) -> Description:  # type: ignore[override]
        """With the column of C, unless it is to be optimized for rounds that nobody has planned."""
        if self._options.bands == 1:
            return replace(DESCRIPTION, strategy=FRESH)
        if self._options.strategy == "optimized" and not self._noise.num_rounds:
            return DESCRIPTION
        return replace(DESCRIPTION, strategy=tuple(self.coefficients.tolist()))

    def composition(
        self, participation: Participation, noise_multiplier: float, rounds: int
    ) -> Composition:
        """Poisson-sampled Gaussians, one a round of a user, where that is proved; else one."""
        bands = self._options.bands
        if bands == 1:
            return sampled_gaussian(participation, noise_multiplier, rounds)
        check_setting(self._noise, participation, noise_multiplier, rounds)
        if participation.scheme.is_independent and participation.min_separation >= bands:
            return sampled_gaussian(participation, noise_multiplier, rounds)
        squared = pattern_squared_sensitivity(lambda: self.coefficients, participation, int(rounds))
        return unamplified(self.name, participation, noise_multiplier, squared)

    def _next_noise(self, rng: NormalSource, length: int) -> NDArray[np.float64]:
        """The coming row of C^-1 Z, of ``length`` normal draws; shape (length,)."""
        return self._correlated(rng.standard_normal(length))

    def _noise_profile(self, rounds: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return noise_stddevs(self.coefficients, rounds), lag_correlations(self.coefficients, rounds)

    def _correlated(self, draws: NDArray[np.float64]) -> NDArray[np.float64]:
        """Solve the next row of C Y = Z for Y, in place, and remember it."""
        weights = self.coefficients.tolist()
        self._last = solve_row_(draws, weights, self._last)[: len(weights) - 1]
        return draws

    def state_dict(self) -> dict[str, Any]:
        """Rounds that were released, the strategy, and the noise that the next ones take back."""
        return {
            "rounds": self._rounds,
            "coefficients": self.coefficients.tolist(),
            "noise": list(self._last),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` gave.

        The saved coefficients are taken, so that a last bit that another machine finds differently
        does not change C in the middle of a run.
        """
        check_state_keys(self.name, state, {"rounds", "coefficients", "noise"})
        rounds, saved = int(state["rounds"]), np.array(state["coefficients"], dtype=np.float64)
        if saved.shape != self.coefficients.shape or not np.allclose(
            saved, self.coefficients, rtol=0.0, atol=SAME_COEFFICIENTS
        ):
            raise PrivacyError(
                f"the saved strategy of the {self.name} mechanism is another than bands "
                f"{self._options.bands}, strategy {self._options.strategy} and num_rounds "
                f"{self._noise.num_rounds} give; resume with the configuration that the run was "
                "started with"
            )
        kept = min(rounds, self._options.bands - 1) if self._noise.noise_multiplier else 0
        self._last = check_vectors(self.name, state["noise"], kept)
        self._rounds, self._strategy, self._profile = rounds, saved, None


def build(options: Options, noise: NoiseScale) -> BandedMatrixFactorization:
    """Build the mechanism; more bands than planned rounds are refused."""
    return BandedMatrixFactorization(options, noise)
