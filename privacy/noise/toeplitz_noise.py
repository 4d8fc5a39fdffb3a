"""Base of mechanisms whose strategy is a Toeplitz matrix that is not banded.

Guarantee: unit user; as ``privacy.noise.factorization`` has it, for a lower triangular Toeplitz C
of T rows with no negative element, and noise C^-1 Z, Z standard normal times z. C is scaled so that
its first column, over the planned rounds, has norm 1: z is the multiplier of a user who is in the
first round alone. All rounds are one Gaussian mechanism of multiplier z over the sensitivity:

- cyclic_poisson, full: of the rounds g, g + b, g + 2 b, ... of the worst g; exact.
- selected: of any rounds of which no two are less than b apart, at most k. Exact, that of the
  rounds 1, 1 + b, 1 + 2 b, ..., where the column falls (Kalinin and Lampert 2024, theorem 2);
  else a bound.
- No sampling amplifies: every column of C reaches to the end of the run.
- poisson, truncated_poisson, fixed_size: refused.

A run that stops early has released the first rows of C alone, and claims what those have spent.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from privacy.amplification import Participation
from privacy.description import OF_THE_BOUND, Buffers, Description, Inverse
from privacy.errors import PlanError
from privacy.noise.clipped_sum import ClipOptions
from privacy.noise.correlated_noise import CorrelatedSum, pattern_squared_sensitivity
from privacy.noise.factorization import toeplitz_profile

if TYPE_CHECKING:
    from privacy.mechanism import NoiseScale

# Without the strategy, which the options and the planned rounds give.
TOEPLITZ = Description(
    "each round's sum of clipped updates gets Gaussian noise, of which later rounds take part "
    f"back; the standard deviation of a draw is {OF_THE_BOUND}",
    law="gaussian",
    stddev=1.0,
)


class ToeplitzSum(CorrelatedSum):
    """Base of such mechanisms; a subclass gives ``name``, ``strategy``, the noise and its state."""

    def __init__(self, options: ClipOptions, noise: NoiseScale) -> None:
        super().__init__(options, noise)
        self._column: NDArray[np.float64] | None = None

    @property
    def strategy(self) -> Inverse | Buffers:
        """C, scaled for the planned rounds, without which there is none."""
        raise NotImplementedError

    def noise_column(self, rounds: int) -> NDArray[np.float64]:
        """First column of C^-1, shape (rounds,)."""
        raise NotImplementedError

    def column(self, rounds: int) -> NDArray[np.float64]:
        """First column of C, shape (rounds,)."""
        if self._column is None or len(self._column) < rounds:
            self._column = self.strategy.column(max(rounds, self._noise.num_rounds))
        return self._column[:rounds]

    @property
    def description(self) -> Description:  # type: ignore[override]
        """With the strategy, unless nobody has planned rounds."""
        return replace(TOEPLITZ, strategy=self.strategy) if self._noise.num_rounds else TOEPLITZ

    def _squared_sensitivity(self, participation: Participation, rounds: int) -> float:
        return pattern_squared_sensitivity(lambda: self.column(rounds), participation, rounds)

    def _noise_profile(self, rounds: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return toeplitz_profile(self.noise_column(rounds))


def check_planned(mechanism: str, noise: NoiseScale) -> int:
    """The planned rounds, which there must be."""
    if not noise.num_rounds:
        raise PlanError(
            f"the mechanism {mechanism} needs the number of rounds that its noise is made for, but "
            "none is planned; set num_rounds (--rounds), or take banded_matrix_factorization with "
            "strategy: square_root"
        )
    return noise.num_rounds
