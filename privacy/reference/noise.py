"""Clip, noise and bound of each mechanism, from its definition.

A round has the bound S, N_C = ``cohort_size`` expected users, and simulates the noise of a cohort
of ``noise_cohort_size``: it is scaled by their ratio r. z is the noise multiplier.

| mechanism | contribution of an update u | noise on the sum, in each element |
|---|---|---|
| gaussian | u min(1, S / |u|_2) | normal of standard deviation z r S |
| adaptive_gaussian | the same | z' r S, and r s_b on the count of unclipped updates |
| laplace | u min(1, S / |u|_1) | Laplace of scale z r S |

The stream of the round gives P draws, in the order of the parameters, and then the count's.

Source: McMahan et al. 2018 (gaussian); Andrew et al. 2021, algorithm 1 and theorem 1 (adaptive);
Dwork et al. 2006 (laplace).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

# A bound that adapts stays within these.
_SMALLEST, _LARGEST = 2.0**-64, 2.0**64


@dataclass(frozen=True)
class Setting:
    """What a mechanism is configured to do.

    Attributes:
        options: Its own, every default filled in.
        multiplier: z.
        cohort_size: N_C.
        noise_cohort_size: The cohort whose noise is simulated.
        length: P, elements of an update.
        seed: The private seed.
        num_rounds: T, planned rounds.
        strategy: Recorded numbers of noise that is correlated over rounds; None where none are.
    """

    options: Mapping[str, Any]
    multiplier: float
    cohort_size: float
    noise_cohort_size: float
    length: int
    seed: int = 0
    num_rounds: int = 0
    strategy: Any = None

    @property
    def ratio(self) -> float:
        """Of the cohorts: r."""
        return self.cohort_size / self.noise_cohort_size


class Gaussian:
    """A fixed bound, and normal noise that is drawn anew in each round.

    Args:
        setting: As configured.

    Attributes:
        bound: S, of the coming round.
        number: The round, from 1.
        margin: How near the closest coin of a report is to falling otherwise; infinite for none.
        follows: Most that the noise moves by, in ``stddev``, where all updates move by a bound.
    """

    order = 2.0
    margin = math.inf
    follows = 0.0

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.bound = float(setting.options["clip_norm"])
        self.begin(1)

    def begin(self, number: int) -> None:
        """Begin a round."""
        self.number = number

    def report(self, user: int, clipped: Tensor) -> None:
        """Add a user's own noise on its clipped update, shape (P,), to the round's, if any."""

    def flaw(self) -> str:
        """What of the recorded strategy breaks the guarantee; empty for nothing."""
        return ""

    def norm(self, update: Tensor) -> float:
        """Norm of an update, shape (P,), that the bound is of."""
        return float(torch.linalg.vector_norm(update.double(), self.order))

    def clip(self, update: Tensor) -> Tensor:
        """What an update contributes, shape (P,), float64."""
        norm = self.norm(update)
        return update.double() * (1.0 if norm <= self.bound else self.bound / norm)

    def noise(self, rng: np.random.Generator) -> Tensor:
        """Noise on the sum, shape (P,), float64, by the first P draws of the round's stream."""
        return self.stddev * torch.from_numpy(rng.standard_normal(self.setting.length))

    @property
    def stddev(self) -> float:
        """Standard deviation of an element's noise."""
        return self.setting.multiplier * self.setting.ratio * self.bound

    @property
    def count_stddev(self) -> float | None:
        """Standard deviation of the noise on the count; None where no count is released."""
        return None

    def move(self, bits: float, rng: np.random.Generator) -> float | None:
        """Move the bound at the end of a round.

        Args:
            bits: Sum over contributions of 1/2 if the update was within the bound, else -1/2.
            rng: The round's stream, after the noise on the sum.

        Returns:
            Noisy fraction of updates within the bound; None where no count is released.
        """
        return None


class AdaptiveGaussian(Gaussian):
    """The bound follows a quantile of the norms: log S moves by -rate (fraction - quantile)."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        of_count = setting.options["count_noise_stddev"]
        self._count = setting.noise_cohort_size / 20.0 if of_count is None else float(of_count)

    @property
    def stddev(self) -> float:
        """What the count leaves of z: z^-2 = z'^-2 + (2 s_b)^-2."""
        z, setting = self.setting.multiplier, self.setting
        left = 0.0 if z == 0.0 else (z**-2 - (2.0 * self._count) ** -2) ** -0.5
        return left * setting.ratio * self.bound

    @property
    def count_stddev(self) -> float:
        """That of the noise on the count."""
        return 0.0 if self.setting.multiplier == 0.0 else self._count * self.setting.ratio

    def move(self, bits: float, rng: np.random.Generator) -> float:
        """Move the bound by the noisy count."""
        noisy = bits + (self.count_stddev * rng.standard_normal() if self.count_stddev else 0.0)
        fraction = noisy / self.setting.cohort_size + 0.5
        options = self.setting.options
        step = options["clip_learning_rate"] * (fraction - options["quantile"])
        within = min(max(math.log(self.bound) - step, math.log(_SMALLEST)), math.log(_LARGEST))
        self.bound = math.exp(within)
        return fraction


class Laplace(Gaussian):
    """An L1 bound, and Laplace noise."""

    order = 1.0

    def noise(self, rng: np.random.Generator) -> Tensor:
        """Of scale z r S."""
        scale = self.setting.multiplier * self.setting.ratio * self.bound
        return torch.from_numpy(rng.laplace(0.0, scale, self.setting.length))

    @property
    def stddev(self) -> float:
        """sqrt(2) times the scale."""
        return math.sqrt(2.0) * super().stddev


MECHANISMS: dict[str, type[Gaussian]] = {
    "gaussian": Gaussian,
    "adaptive_gaussian": AdaptiveGaussian,
    "laplace": Laplace,
}
