"""Bugs planted blind: what is released.

Where the claim is 4.07: 50 of 300 users in 20 rounds, multiplier 1, delta 0.0019. Tests have 20 of
120 users.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pfl_bench.federated.trainer import FederatedTrainer
from pfl_bench.federated.workers.messages import SharedTraining
from privacy.aggregate import Aggregate
from privacy.clipping import l2_norm
from privacy.mechanism import Release
from privacy.mechanisms.adaptive_gaussian import AdaptiveGaussian
from privacy.mechanisms.gaussian import Gaussian
from tests.sabotage.blind_planting import (
    Blind,
    blind,
    witness,
)
from tests.sabotage.planting import (
    ADAPTIVE,
    COHORT,
    Patch,
)


def largest_cohort_divides(patch: Patch) -> None:
    """The sum is divided by the cohort that came, where more came than expected."""
    real = Gaussian.release

    def release(self: Gaussian, aggregate: Aggregate, rng: np.random.Generator) -> Release:
        released = real(self, aggregate, rng)
        part = self._noise.cohort_size / max(self._noise.cohort_size, aggregate.num_contributions)
        witness(part - 1.0)
        released.mean_update.mul_(part)
        return released

    patch.setattr(Gaussian, "release", release)


def clean_count_moves_bound(patch: Patch) -> None:
    real = AdaptiveGaussian.release

    def release(self: AdaptiveGaussian, aggregate: Aggregate, rng: np.random.Generator) -> Release:
        before = self._clip_norm
        released = real(self, aggregate, rng)
        fraction = aggregate.bit_sum / self._noise.cohort_size + 0.5
        step = self._options.clip_learning_rate * (fraction - self._options.quantile)
        noisy, self._clip_norm = self._clip_norm, before * float(np.exp(-step))
        witness(noisy / self._clip_norm - 1.0)
        return released

    patch.setattr(AdaptiveGaussian, "release", release)


def plain_bits(patch: Patch) -> None:
    """The count is of ones and zeros, which a user moves by 1, at the price of one half."""
    real = AdaptiveGaussian.release

    def release(self: AdaptiveGaussian, aggregate: Aggregate, rng: np.random.Generator) -> Release:
        centred = aggregate.bit_sum
        ones = centred + aggregate.num_contributions / 2
        aggregate.bit_sum = ones - self._noise.cohort_size / 2
        witness(aggregate.bit_sum - centred)
        try:
            return real(self, aggregate, rng)
        finally:
            aggregate.bit_sum = centred

    patch.setattr(AdaptiveGaussian, "release", release)


def keeping_the_sum(patch: Patch, sums: list[Tensor]) -> None:
    real = SharedTraining.train

    def train(self: SharedTraining, *order: Any) -> Any:
        aggregate, counted = real(self, *order)
        sums[:] = [aggregate.total.clone()]
        return aggregate, counted

    patch.setattr(SharedTraining, "train", train)


def step_along_the_sum(patch: Patch) -> None:
    """The ledger is told of the noised mean; the model takes the one beside it."""
    sums: list[Tensor] = []
    keeping_the_sum(patch, sums)
    real = FederatedTrainer._take_central_step

    def step(self: FederatedTrainer, mean: Tensor, index: int) -> float:
        clean = sums[0] / COHORT
        witness(l2_norm(mean - clean))
        return real(self, clean, index)

    patch.setattr(FederatedTrainer, "_take_central_step", step)


def step_by_the_clean_norm(patch: Patch) -> None:
    """The step is as long as the update was before its noise."""
    sums: list[Tensor] = []
    keeping_the_sum(patch, sums)
    real = FederatedTrainer._take_central_step

    def step(self: FederatedTrainer, mean: Tensor, index: int) -> float:
        factor = l2_norm(sums[0]) / COHORT / l2_norm(mean)
        witness(factor - 1.0)
        return real(self, mean * factor, index)

    patch.setattr(FederatedTrainer, "_take_central_step", step)


def released_twice(patch: Patch) -> None:
    """The sum is noised once for the ledger, and once more for the step."""
    later: list[Tensor] = []
    real, real_step = Gaussian.release, FederatedTrainer._take_central_step

    def release(self: Gaussian, aggregate: Aggregate, rng: np.random.Generator) -> Release:
        recorded = real(self, aggregate, rng)
        later[:] = [real(self, aggregate, rng).mean_update]
        witness(l2_norm(later[0] - recorded.mean_update))
        return recorded

    def step(self: FederatedTrainer, mean: Tensor, index: int) -> float:
        return real_step(self, (mean + later[0]) / 2, index)

    patch.setattr(Gaussian, "release", release)
    patch.setattr(FederatedTrainer, "_take_central_step", step)


def trained_before(patch: Patch) -> None:
    """The run begins where training without privacy on the same users has led."""
    real = FederatedTrainer.__init__

    def init(self: FederatedTrainer, *given: Any, **more: Any) -> None:
        real(self, *given, **more)
        engine, users = self._round.training._own._engine, np.arange(self._parts.split.num_users)
        mean = torch.zeros_like(self.central)
        for result in engine.train(users, 1, self.central.clone()):
            mean += result.update / len(users)
        before = self.central.detach().clone()
        self._algorithm.central_gradient(mean, out=self._gradient)
        self.central.data.sub_(self._gradient)
        witness(l2_norm(self.central.detach() - before))

    patch.setattr(FederatedTrainer, "__init__", init)


RELEASE: tuple[Blind, ...] = (
    blind(
        "large_cohorts_divide",
        "the sum is divided by the cohort that came, if it is more than expected",
        "`Gaussian.release`",
        "the cohort's size is in every element, and noise shrinks with it",
        "above 4.07; the divisor is bare",
        0.05,
        plant=largest_cohort_divides,
        expects=("noise_replay", "noise_scale"),
    ),
    blind(
        "clean_count_moves_bound",
        "the noisy count is released, the clean one moves the bound",
        "`AdaptiveGaussian.release`",
        "the bound, which is released, tells the count",
        "infinite",
        0.001,
        plant=clean_count_moves_bound,
        changes=ADAPTIVE,
        expects=("clip_path",),
    ),
    blind(
        "count_of_plain_bits",
        "the count is of ones and zeros, at the price of halves",
        "`AdaptiveGaussian.release`",
        "a user moves the count by 1 and not by 1/2",
        "4.55",
        1.0,
        plant=plain_bits,
        changes=ADAPTIVE,
        expects=("noise_replay",),
    ),
    blind(
        "step_along_the_sum",
        "the model takes the mean without noise",
        "`FederatedTrainer._take_central_step`",
        "the model is not private at all",
        "infinite",
        0.1,
        plant=step_along_the_sum,
        expects=("central_step",),
    ),
    blind(
        "step_by_the_clean_norm",
        "the step is as long as the update before its noise",
        "`FederatedTrainer._take_central_step`",
        "the norm of the sum is bare",
        "infinite",
        0.1,
        plant=step_by_the_clean_norm,
        expects=("central_step",),
    ),
    blind(
        "released_twice",
        "the sum is noised for the ledger and again for the step",
        "`Gaussian.release` and `_take_central_step`",
        "each round is two releases",
        "8.1",
        0.1,
        plant=released_twice,
        expects=("central_step",),
    ),
    blind(
        "trained_before",
        "the run begins where training without privacy on the same users has led",
        "`FederatedTrainer.__init__`",
        "a release without noise comes before round 1",
        "infinite",
        0.1,
        plant=trained_before,
        expects=("central_chain",),
    ),
)
