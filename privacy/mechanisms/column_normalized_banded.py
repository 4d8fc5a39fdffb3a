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

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from privacy.amplification import Participation
from privacy.description import FRESH, Columns, Description
from privacy.errors import PlanError
from privacy.noise.banded_columns import noise_profile, optimized_columns
from privacy.noise.correlated_noise import BandedOptions, BandedSum
from privacy.noise.toeplitz_noise import TOEPLITZ, check_planned

DESCRIPTION = TOEPLITZ


class Options(BandedOptions):
    """Settings of the banded factorisation with columns of their own.

    Attributes:
        clip_norm: L2 bound of a user's update, the same in every round.
        bands: Rounds that a draw of noise is spread over, at most the separation of a user's
            rounds; 1 is the Gaussian mechanism.
    """


class ColumnNormalizedBanded(BandedSum):
    """Clip to a fixed bound, sum, add correlated noise, divide by the configured cohort size.

    More bands than planned rounds are refused.
    """

    name = "column_normalized_banded"

    @cached_property
    def strategy(self) -> NDArray[np.float64]:
        """Shape (T, bands), float64: columns of C. Found when first needed, not when built.

        Raises:
            PlanError: No rounds are planned.
            PrivacyError: There are too many.
        """
        return optimized_columns(check_planned(self.name, self._noise), self._bands)

    @property
    def description(self) -> Description:  # type: ignore[override]
        """With the bands, which are all that the accounting rests on."""
        strategy = FRESH if self._bands == 1 else Columns(self._bands)
        return replace(DESCRIPTION, strategy=strategy)

    def _squared_sensitivity(self, participation: Participation, rounds: int) -> float:
        """The rounds of a user, which are ``bands`` apart or more, else it is refused."""
        apart = participation.min_separation
        if participation.scheme.pattern != "none" and apart < self._bands:
            raise PlanError(
                f"the mechanism {self.name} has {self._bands} bands, but two rounds of a user may "
                f"be {apart} apart, so that columns overlap, for which no sensitivity is proved "
                "here; set federated.separation to the bands or more (sampling cyclic_poisson or "
                "selected), or take banded_matrix_factorization"
            )
        return float(participation.most_participations(rounds))

    def _noise_profile(self, rounds: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return noise_profile(self.strategy)

    def _weights(self) -> list[float]:
        row, columns = self._rounds, self.strategy
        return [float(columns[row - lag, lag]) for lag in range(min(row + 1, self._bands))]

    def _saved_strategy(self) -> dict[str, Any]:
        return {"columns": torch.from_numpy(self.strategy.copy())}


build = ColumnNormalizedBanded
