"""DP-FTRL by a banded factorisation beyond Toeplitz: each round's column is optimized for itself.

Guarantee: unit user, added or removed ("selected": zeroed out). Each of a user's contributions has
norm at most ``clip_norm``; round t's sum gets ``(C^-1 Z)_t * z * C_sm / C_lg * clip_norm`` and is
divided by the configured cohort size. C is lower triangular with ``bands`` bands, and every column
has norm 1, the last ones too, which the end of the run cuts short. A user's rounds are at least
``bands`` apart, else the mechanism refuses: then no two of a user's columns have a row in common,
and what an accountant sees is

- cyclic_poisson: amplified. At most ceil(T / separation) Poisson-sampled Gaussians of multiplier z
  at q_g, as for ``banded_matrix_factorization`` with no more bands than the separation.
- selected: one Gaussian of multiplier z / sqrt(k), of the k rounds that cap and separation allow:
  exact, whatever the rounds and whatever the signs of what the user adds.
- one band: C = I, the Gaussian mechanism, accounted as such under every scheme.
- all else: refused. Overlapping columns would have to be bounded over all patterns, and no pattern
  is known to be the worst where columns differ.

A run that stops early has released the first rows of C alone, and the same holds of these: a part
of a column has a norm of at most 1.

Memory: the last ``bands - 1`` noise vectors, float32: 4 (bands - 1) P bytes. To find C takes
seconds to a minute or two (the most for 2,048 rounds, which is the limit), once a run.

Source: Choquette-Choo et al. 2023 (arXiv 2306.08153), algorithm 1, theorems 2, 4; Denisov et al.
2022 (arXiv 2202.08312), theorem 2.1 (adaptivity).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from privacy.amplification import Composition, Participation, sampled_gaussian
from privacy.description import FRESH, SAME_COEFFICIENTS, Columns, Description
from privacy.errors import PlanError, PrivacyError
from privacy.mechanism import NoiseScale, NormalSource, check_state_keys
from privacy.noise.banded_columns import noise_profile, optimized_columns
from privacy.noise.clipped_sum import ClipOptions
from privacy.noise.correlated_noise import (
    CorrelatedSum,
    check_bands,
    check_setting,
    check_vectors,
    solve_row_,
    unamplified,
)
from privacy.noise.toeplitz_noise import TOEPLITZ, check_planned

DESCRIPTION = TOEPLITZ


class Options(ClipOptions):
    """Settings of the banded factorisation with columns of their own.

    Attributes:
        clip_norm: L2 bound of a user's update, the same in every round.
        bands: Rounds that a draw of noise is spread over, at most the separation of a user's
            rounds; 1 is the Gaussian mechanism.
    """

    bands: Annotated[int, Field(ge=1)]


class ColumnNormalizedBanded(CorrelatedSum):
    """Clip to a fixed bound, sum, add correlated noise, divide by the configured cohort size.

    More bands than planned rounds are refused.
    """

    name = "column_normalized_banded"

    def __init__(self, options: Options, noise: NoiseScale) -> None:
        check_bands(options.bands, noise)
        super().__init__(options.clip_norm, noise)
        self._bands = options.bands
        self._columns: NDArray[np.float64] | None = None
        # Noise of the last rounds at multiplier 1, the latest first; a tensor is never changed.
        self._last: list[Tensor] = []

    @property
    def columns(self) -> NDArray[np.float64]:
        """Shape (T, bands), float64: of C. Found when first needed, not when built.

        Raises:
            PlanError: No rounds are planned.
            PrivacyError: There are too many.
        """
        if self._columns is None:
            self._columns = optimized_columns(check_planned(self.name, self._noise), self._bands)
        return self._columns

    @property
    def description(self) -> Description:  # type: ignore[override]
        """With the bands, which are all that the accounting rests on."""
        strategy = FRESH if self._bands == 1 else Columns(self._bands)
        return replace(DESCRIPTION, strategy=strategy)

    @property
    def update_noise_multiplier(self) -> float:
        """The largest of the planned rounds' noise, in multiples of clip_norm."""
        if self._noise.noise_multiplier == 0.0:
            return 0.0
        stddevs, _ = noise_profile(self.columns)
        return self._noise.noise_multiplier * float(stddevs.max())

    def composition(
        self, participation: Participation, noise_multiplier: float, rounds: int
    ) -> Composition:
        """Sampled Gaussians, or one Gaussian, of users whose rounds are ``bands`` apart or more."""
        if self._bands == 1:
            return sampled_gaussian(participation, noise_multiplier, rounds)
        check_setting(self._noise, participation, noise_multiplier, rounds)
        scheme, apart = participation.scheme, participation.min_separation
        if scheme.pattern != "none" and apart < self._bands:
            raise PlanError(
                f"the mechanism {self.name} has {self._bands} bands, but two rounds of a user may "
                f"be {apart} apart, so that columns overlap, for which no sensitivity is proved "
                "here; set federated.separation to the bands or more (sampling cyclic_poisson or "
                "selected), or take banded_matrix_factorization"
            )
        if scheme.is_independent and apart >= self._bands:
            return sampled_gaussian(participation, noise_multiplier, rounds)
        most = float(participation.most_participations(int(rounds)))
        return unamplified(self.name, participation, noise_multiplier, most)

    def _noise_profile(self, rounds: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return noise_profile(self.columns)

    def _next_noise(self, rng: NormalSource, length: int) -> NDArray[np.float64]:
        """Solve the next row of C Y = Z for Y, of ``length`` normal draws; shape (length,)."""
        row = self._rounds
        # Of this row of C: the diagonal, and then one round back, two, ...
        weights = [float(self.columns[row - lag, lag]) for lag in range(min(row + 1, self._bands))]
        noise = rng.standard_normal(length)
        self._last = solve_row_(noise, weights, self._last)[: self._bands - 1]
        return noise

    def state_dict(self) -> dict[str, Any]:
        """Rounds that were released, the strategy, and the noise that the next ones take back."""
        columns = torch.from_numpy(self.columns.copy())
        return {"rounds": self._rounds, "columns": columns, "noise": list(self._last)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` gave.

        The saved columns are taken, so that a last bit that another machine finds differently does
        not change C in the middle of a run.
        """
        check_state_keys(self.name, state, {"rounds", "columns", "noise"})
        rounds, saved = int(state["rounds"]), state["columns"]
        own = self.columns
        good = isinstance(saved, Tensor) and saved.shape == own.shape
        if not good or not np.allclose(saved.numpy(), own, rtol=0.0, atol=SAME_COEFFICIENTS):
            raise PrivacyError(
                f"the saved strategy of the {self.name} mechanism is another than bands "
                f"{self._bands} and num_rounds {self._noise.num_rounds} give; resume with the "
                "configuration that the run was started with"
            )
        kept = min(rounds, self._bands - 1) if self._noise.noise_multiplier else 0
        self._last = check_vectors(self.name, state["noise"], kept)
        self._rounds, self._columns, self._profile = rounds, saved.numpy(), None


def build(options: Options, noise: NoiseScale) -> ColumnNormalizedBanded:
    """Build the mechanism; more bands than planned rounds are refused."""
    return ColumnNormalizedBanded(options, noise)
