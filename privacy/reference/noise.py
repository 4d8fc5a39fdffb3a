"""Clip, noise and bound of each mechanism, from its definition.

A round has the bound S, N_C = ``cohort_size`` expected users, and simulates the noise of a cohort
of ``noise_cohort_size``: it is scaled by their ratio r. z is the noise multiplier.

| mechanism | contribution of an update u | noise on the sum, in each element |
|---|---|---|
| gaussian | u min(1, S / |u|_2) | normal of standard deviation z r S |
| adaptive_gaussian | the same | z' r S, and r s_b on the count of unclipped updates |
| laplace | u min(1, S / |u|_1) | Laplace of scale z r S |

The stream of the round gives P draws, in the order of the parameters, and then the count's. An
adaptive bound moves by log S -= rate (noisy fraction of unclipped updates - quantile).

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


@dataclass(frozen=True)
class Setting:
    """Configured settings of a mechanism."""

    name: str
    options: Mapping[str, Any]  # its own, every default filled in
    multiplier: float  # z
    cohort_size: float  # N_C
    noise_cohort_size: float
    length: int  # P, elements of an update
    seed: int  # the private one
    num_rounds: int  # T, planned
    strategy: Any = None  # recorded numbers of noise that is correlated over rounds


class Gaussian:
    """A fixed bound, and normal noise that is drawn anew in each round."""

    order = 2.0  # of the norm
    is_fresh = True  # whether elements of the noise are independent, of each other and of updates
    margin = math.inf  # how near the closest coin of a report is to falling otherwise
    reports: Tensor | float = 0.0  # the noise that came with reports
    follows = 0.0  # the most that the noise moves by, in ``stddev``, where updates move by a bound

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.ratio = setting.cohort_size / setting.noise_cohort_size
        self.bound = float(setting.options["clip_norm"])  # S, of the coming round
        self.lengths: list[float] = []  # of the noise of each report; empty without reports

    def begin(self, number: int) -> None:
        """Begin a round, from 1."""
        self.number = number

    def flaw(self) -> str:
        """The part of the recorded strategy that breaks the guarantee; empty for none."""
        return ""

    def norm(self, update: Tensor) -> float:
        """Norm of an update, shape (P,), that the bound is of."""
        return float(torch.linalg.vector_norm(update.double(), self.order))

    def clip(self, update: Tensor, norm: float) -> Tensor:
        """Contribution of an update, shape (P,), float64, that has a norm."""
        return update.double() * (1.0 if norm <= self.bound else self.bound / norm)

    def report(self, user: int, clipped: Tensor) -> None:
        """Add a user's own noise on its clipped update, shape (P,), to the round's, if any."""

    def noise(self, rng: np.random.Generator) -> Tensor:
        """Noise on the sum, shape (P,), float64, by the first P draws of the round's stream."""
        return self.stddev * torch.from_numpy(rng.standard_normal(self.setting.length))

    @property
    def stddev(self) -> float:
        """Standard deviation of an element's noise."""
        return self.setting.multiplier * self.ratio * self.bound

    def move(self, bits: float, rng: np.random.Generator) -> float | None:
        """Move the bound, and give the noisy fraction of updates within it; None without a count.

        ``bits`` is the sum over contributions of 1/2 if the update was within the bound, else -1/2.
        """
        return None

    def state(self) -> dict[str, Any]:
        """State from round to round, as a checkpoint has it."""
        return {}


class AdaptiveGaussian(Gaussian):
    """The bound follows a quantile of the norms; s_b is a 20th of the simulated cohort."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        of_count = setting.options["count_noise_stddev"]
        self.count = setting.noise_cohort_size / 20.0 if of_count is None else float(of_count)

    def flaw(self) -> str:
        """That the count takes all of the noise multiplier."""
        taken = 2.0 * self.count <= self.setting.multiplier
        return "the noise of the count leaves the sum none that is accounted" if taken else ""

    @property
    def stddev(self) -> float:
        """Standard deviation that the count leaves of z: z^-2 = z'^-2 + (2 s_b)^-2."""
        z = self.setting.multiplier
        left = 0.0 if z == 0.0 else (z**-2 - (2.0 * self.count) ** -2) ** -0.5
        return left * self.ratio * self.bound

    def move(self, bits: float, rng: np.random.Generator) -> float:
        """Move the bound by the noisy count."""
        stddev = 0.0 if self.setting.multiplier == 0.0 else self.count * self.ratio
        noisy = bits + (stddev * rng.standard_normal() if stddev else 0.0)
        fraction = noisy / self.setting.cohort_size + 0.5
        options = self.setting.options
        step = options["clip_learning_rate"] * (fraction - options["quantile"])
        end = math.log(2.0**64)  # the bound stays within 2^-64 and 2^64
        self.bound = math.exp(min(max(math.log(self.bound) - step, -end), end))
        return fraction

    def state(self) -> dict[str, Any]:
        """The bound."""
        return {"clip_norm": self.bound}


class Laplace(Gaussian):
    """An L1 bound, and Laplace noise."""

    order = 1.0
    is_fresh = False  # but its tails are not those of normal draws

    def noise(self, rng: np.random.Generator) -> Tensor:
        """Of scale z r S."""
        scale = self.setting.multiplier * self.ratio * self.bound
        return torch.from_numpy(rng.laplace(0.0, scale, self.setting.length))

    @property
    def stddev(self) -> float:
        """sqrt(2) times the scale."""
        return math.sqrt(2.0) * super().stddev
