"""Planted bugs of one user's influence: clipping, weights, counts, and what bypasses them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pfl_bench.client.engines.sequential import SequentialEngine
from pfl_bench.federated import cohort as cohort_training
from pfl_bench.federated import privacy_session
from pfl_bench.federated import shards as shards
from pfl_bench.federated import trainer as federated
from pfl_bench.federated.algorithms import fedavg
from pfl_bench.types import LocalResult
from privacy import clipping
from privacy.aggregate import Aggregate
from privacy.clipping import ClipOutcome, clip, l2_norm
from privacy.mechanism import Release
from privacy.mechanisms import laplace
from privacy.mechanisms.adaptive_gaussian import AdaptiveGaussian
from privacy.mechanisms.gaussian import Gaussian
from privacy.noise import clipped_sum
from privacy.noise.clipped_sum import accumulate_clipped
from privacy.plan import checks as plan_checks
from tasks.digits import models
from tests.sabotage.planting import (
    ADAPTIVE,
    CLIP_NORM,
    COHORT,
    LAPLACE,
    ROUNDS,
    SEQUENTIAL,
    Bug,
    Patch,
)

# Elements of the first layer's weight, which come before its bias.
WEIGHTS = 640
BAD_USER = 7
LAST_HAND = shards.num_shards(COHORT) - 1


def no_check(*_: Any) -> None:
    """Stand in for a check."""


def clip_after_sum(patch: Patch) -> None:
    def accumulate(
        mechanism: str, aggregate: Aggregate, update: Tensor, weight: float, _: float
    ) -> Any:
        return accumulate_clipped(mechanism, aggregate, update, weight, math.inf)

    real = Gaussian.release

    def release(self: Gaussian, aggregate: Aggregate, rng: np.random.Generator) -> Release:
        return real(self, replace(aggregate, total=clip(aggregate.total, CLIP_NORM)), rng)

    patch.setattr(clipped_sum, "accumulate_clipped", accumulate)
    patch.setattr(Gaussian, "release", release)


def clip_per_layer(patch: Patch) -> None:
    """Each layer to the bound; the mechanism reports what it believes of the whole."""
    real = clipping.add_clipped_

    def add_clipped_(total: Tensor, update: Tensor, clip_norm: float) -> ClipOutcome:
        real(total[:WEIGHTS], update[:WEIGHTS], clip_norm)
        real(total[WEIGHTS:], update[WEIGHTS:], clip_norm)
        norm = l2_norm(update)
        return ClipOutcome(norm, norm <= clip_norm, True, min(norm, clip_norm))

    patch.setattr(clipped_sum, "add_clipped_", add_clipped_)


def clip_each_element(patch: Patch) -> None:
    def add_clipped_(total: Tensor, update: Tensor, clip_norm: float) -> ClipOutcome:
        clipped = update.clamp(-clip_norm, clip_norm)
        total.add_(clipped)
        norm, after = l2_norm(update), l2_norm(clipped)
        return ClipOutcome(norm, norm == after, True, after)

    patch.setattr(clipped_sum, "add_clipped_", add_clipped_)


def lift_small_updates(patch: Patch) -> None:
    patch.setattr(clipping, "clip_factor", lambda norm, bound: bound / norm * (1.0 - 2.0**-22))


def let_nan_pass(patch: Patch) -> None:
    """As ``min(1, bound / norm)`` does, whose comparison with NaN is false."""

    def outcome(norm: float, bound: float) -> tuple[ClipOutcome, float]:
        factor = bound / norm if norm > bound else 1.0
        return ClipOutcome(norm, factor == 1.0, True, norm * factor), factor

    patch.setattr(clipping, "_outcome", outcome)


def nan_client(patch: Patch) -> None:
    """One user's training diverges in the last round but one."""
    real = SequentialEngine._train_client

    def train(
        self: SequentialEngine, user: int, examples: Any, round_index: int, central: Tensor
    ) -> LocalResult:
        result = real(self, user, examples, round_index, central)
        if round_index == ROUNDS - 1:
            result.update[0] = math.nan
        return result

    patch.setattr(SequentialEngine, "_train_client", train)


def wide_bound_for_one(patch: Patch) -> None:
    real = cohort_training.UpdateAggregator.add

    def add(self: Any, aggregate: Any, update: Tensor, weight: float, index: int, user: int) -> Any:
        with Patch.context() as inner:
            if user % 20 == BAD_USER:
                inner.setattr(self.mechanism, "_clip_norm", 4.0 * CLIP_NORM)
            return real(self, aggregate, update, weight, index, user)

    patch.setattr(cohort_training.UpdateAggregator, "add", add)


def silent_wide_bound(patch: Patch) -> None:
    """One user's update is added four times, and nothing counts it."""
    real = cohort_training.UpdateAggregator.add

    def add(self: Any, aggregate: Any, update: Tensor, weight: float, index: int, user: int) -> Any:
        outcome = real(self, aggregate, update, weight, index, user)
        if user == BAD_USER:
            aggregate.total.add_(update, alpha=3.0 * CLIP_NORM / outcome.norm)
        return outcome

    patch.setattr(cohort_training.UpdateAggregator, "add", add)


def weigh_by_examples(patch: Patch) -> None:
    """Past the plan's check and the mechanism's own, as if both had been forgotten."""

    def accumulate(
        mechanism: str, aggregate: Aggregate, update: Tensor, weight: float, clip_norm: float
    ) -> ClipOutcome:
        outcome = accumulate_clipped(mechanism, aggregate, update, 1.0, clip_norm)
        aggregate.total.add_(clip(update, clip_norm), alpha=weight - 1.0)
        aggregate.weight += weight - 1.0
        return outcome

    patch.setattr(plan_checks, "_check_sensitivity", no_check)
    patch.setattr(clipped_sum, "accumulate_clipped", accumulate)


def forget_plan_weights(patch: Patch) -> None:
    patch.setattr(plan_checks, "_check_sensitivity", no_check)


def summed_twice(patch: Patch) -> None:
    """A client that is late is asked again, and both its answers are taken."""
    real = SequentialEngine.train

    def train(self: SequentialEngine, users: Any, round_index: int, central: Tensor) -> Any:
        for result in real(self, users, round_index, central):
            yield result
            if result.user % 20 == BAD_USER:
                yield result

    patch.setattr(SequentialEngine, "train", train)


def hand_summed_twice(patch: Patch) -> None:
    """Two processes' shards are added in two places, and counted in one."""
    real = shards.PairwiseReduction._add

    def add(
        self: shards.PairwiseReduction, left: shards.Node, right: shards.Node
    ) -> Aggregate | None:
        if left.aggregate is not None and right.aggregate is not None:
            left.aggregate.total.add_(right.aggregate.total)
        return real(self, left, right)

    patch.setattr(shards.PairwiseReduction, "_add", add)


def hand_lost(patch: Patch) -> None:
    """What the last shard has sent is lost on its way, and what was counted of it arrives."""
    real = shards.PairwiseReduction.push

    def push(self: shards.PairwiseReduction, node: shards.Node) -> None:
        if node.level == 0 and node.place == LAST_HAND and node.aggregate is not None:
            node.aggregate.total.zero_()
        real(self, node)

    patch.setattr(shards.PairwiseReduction, "push", push)


def bits_of_one(patch: Patch) -> None:
    def accumulate(*arguments: Any) -> ClipOutcome:
        outcome = accumulate_clipped(*arguments)
        aggregate = arguments[1]
        aggregate.bit_sum += 0.5
        return outcome

    patch.setattr(clipped_sum, "accumulate_clipped", accumulate)


def moved_bound(move: Any) -> Any:
    """Plant another step of the adaptive bound.

    Args:
        move: Of the mechanism, the sum, the release and the bound that follows from it: the bound.
    """

    def plant(patch: Patch) -> None:
        real = AdaptiveGaussian.release

        def release(self: AdaptiveGaussian, aggregate: Aggregate, rng: Any) -> Release:
            released = real(self, aggregate, rng)
            self._clip_norm = move(self, aggregate, released, self._clip_norm)
            return released

        patch.setattr(AdaptiveGaussian, "release", release)

    return plant


def wrong_sign(mechanism: Any, aggregate: Aggregate, release: Release, right: float) -> float:
    assert release.clip_norm is not None
    return release.clip_norm**2 / right


def bare_fraction(mechanism: Any, aggregate: Aggregate, release: Release, right: float) -> float:
    assert release.clip_norm is not None
    options, cohort = mechanism._options, mechanism._noise.cohort_size
    fraction = aggregate.bit_sum / cohort + 0.5
    step = options.clip_learning_rate * (fraction - options.quantile)
    return float(release.clip_norm * math.exp(-step))


def l2_for_l1(patch: Patch) -> None:
    patch.setattr(laplace, "add_clipped_l1_", clipping.add_clipped_)


class WithBatchNorm(nn.Sequential):
    """The digits' softmax regression behind a BatchNorm layer of its one channel."""

    def __init__(self) -> None:
        super().__init__(
            nn.Unflatten(-1, (1, 8, 8)), nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(64, 10)
        )

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs.reshape(len(inputs), 64))


def batchnorm_model(patch: Patch) -> None:
    patch.setattr(models, "build", lambda options, facts: WithBatchNorm())


def forget_batchnorm_plan(patch: Patch) -> None:
    patch.setattr(privacy_session, "batchnorm_layers", lambda module: ())


def forget_batchnorm(patch: Patch) -> None:
    """Past the plan, and past the trainer's own look at the buffers."""
    forget_batchnorm_plan(patch)
    patch.setattr(cohort_training.CohortTraining, "_check_fixed", no_check)


def scaffold(patch: Patch) -> None:
    """An algorithm whose clients send a control variate too, as SCAFFOLD's do."""

    def build(options: Any, local_training: Any) -> Any:
        return fedavg.FedAvg(local_training, uploads=("update", "control_variate"))

    patch.setattr(fedavg, "build", build)


def move_by_bare_mean(patch: Patch) -> None:
    """The mean of what clients sent moves the model, beside the noised update."""
    sent: list[Tensor] = []
    add = cohort_training.UpdateAggregator.add
    step = federated.FederatedTrainer._take_central_step

    def collect(self: Any, aggregate: Any, update: Tensor, *rest: Any) -> ClipOutcome:
        sent.append(update.clone())
        return add(self, aggregate, update, *rest)

    def corrected(self: Any, mean_update: Tensor, index: int) -> float:
        correction = torch.stack(sent).mean(dim=0)
        sent.clear()
        return step(self, mean_update + 0.1 * correction, index)

    patch.setattr(cohort_training.UpdateAggregator, "add", collect)
    patch.setattr(federated.FederatedTrainer, "_take_central_step", corrected)


def forget_uploads(patch: Patch) -> None:
    """The variates, which are as the updates, are summed without a bound."""
    patch.setattr(plan_checks, "_check_uploads", no_check)
    move_by_bare_mean(patch)


CLIPPING_BUGS = (
    Bug(
        "clip_after_sum",
        "the sum is clipped, not each user's update",
        "`accumulate_clipped` without a bound, `Gaussian.release` clips",
        expects=("clip_probe", "clip_bound"),
        plant=clip_after_sum,
    ),
    Bug(
        "clip_per_layer",
        "each layer is clipped to the bound that is accounted for the whole",
        "`add_clipped_` layer by layer, reporting the bound",
        expects=("clip_probe",),
        plant=clip_per_layer,
    ),
    Bug(
        "clip_each_element",
        "each element is clipped to the bound of the L2 norm",
        "`add_clipped_` clamps",
        expects=("clip_probe", "clip_bound"),
        plant=clip_each_element,
    ),
    Bug(
        "small_updates_lifted",
        "updates within the bound are scaled up to it",
        "`clip_factor` without its minimum",
        expects=("clip_probe",),
        plant=lift_small_updates,
    ),
    Bug(
        "nan_passes",
        "an update with a NaN passes the clip",
        "`clipping._outcome` compares, and NaN is never larger",
        expects=("clip_bound", "clip_probe"),
        plant=let_nan_pass,
        around=nan_client,
        changes=SEQUENTIAL,
    ),
    Bug(
        "wide_bound_for_one",
        "a bound four times as large for one user in twenty",
        "`UpdateAggregator.add`",
        expects=("clip_bound",),
        plant=wide_bound_for_one,
    ),
    Bug(
        "silent_wide_bound",
        "one user's update counts four times, and no count says so",
        "`UpdateAggregator.add` adds it again",
        expects=("clip_probe",),
        plant=silent_wide_bound,
    ),
    Bug(
        "l2_for_l1",
        "Laplace noise, but the L2 norm is clipped",
        "`laplace.add_clipped_l1_` is `add_clipped_`",
        expects=("clip_probe",),
        plant=l2_for_l1,
        changes=LAPLACE,
    ),
    Bug(
        "weights_configured",
        "users weigh by their examples",
        "configured: `federated.weighting: examples`",
        words="weighting by examples with a private mechanism",
        changes={"federated__weighting": "examples"},
    ),
    Bug(
        "weights_unplanned",
        "users weigh by their examples, the plan's check forgotten",
        "`plan_checks._check_sensitivity` does nothing",
        words="every client must have weight 1",
        plant=forget_plan_weights,
        changes={"federated__weighting": "examples"},
    ),
    Bug(
        "weights_by_examples",
        "users weigh by their examples, all checks forgotten",
        "and `accumulate_clipped` multiplies",
        expects=("configuration", "clip_probe"),
        plant=weigh_by_examples,
        changes={"federated__weighting": "examples"},
    ),
    Bug(
        "summed_twice",
        "a client that answers twice is summed twice",
        "`SequentialEngine.train` yields it again",
        expects=("users_distinct",),
        plant=summed_twice,
        changes=SEQUENTIAL,
    ),
    Bug(
        "hand_summed_twice",
        "sums that processes bring are added twice, and counted once",
        "`PairwiseReduction._add` adds the right one again",
        expects=("clip_probe",),
        plant=hand_summed_twice,
        changes=SEQUENTIAL,
    ),
    Bug(
        "hand_lost",
        "the sum that a process brings is lost, its counts are not",
        "`PairwiseReduction.push` empties the last shard",
        expects=("clip_probe",),
        plant=hand_lost,
        changes=SEQUENTIAL,
    ),
    Bug(
        "bits_not_centred",
        "the count takes bits of 0 and 1, its noise is for halves",
        "`accumulate_clipped` adds another half",
        expects=("clip_probe", "clip_path"),
        plant=bits_of_one,
        changes=ADAPTIVE,
    ),
    Bug(
        "quantile_step_sign",
        "the adaptive bound moves away from its quantile",
        "`AdaptiveGaussian.release` with the other sign",
        expects=("clip_path",),
        plant=moved_bound(wrong_sign),
        changes=ADAPTIVE,
    ),
    Bug(
        "bound_follows_bare_count",
        "the adaptive bound follows the count before its noise",
        "`AdaptiveGaussian.release`",
        expects=("clip_path",),
        plant=moved_bound(bare_fraction),
        changes=ADAPTIVE,
    ),
    Bug(
        "batchnorm_planned",
        "a model with BatchNorm, whose statistics are released",
        "the digits' model",
        words="running statistics of users' data",
        around=batchnorm_model,
        changes=SEQUENTIAL,
    ),
    Bug(
        "batchnorm_unplanned",
        "a model with BatchNorm that the plan has overlooked",
        "the trainer's `batchnorm_layers` finds none",
        words="training changed its buffer",
        plant=forget_batchnorm_plan,
        around=batchnorm_model,
        changes=SEQUENTIAL,
    ),
    Bug(
        "batchnorm_released",
        "a model with BatchNorm, all checks forgotten",
        "and `_check_fixed` does nothing",
        expects=("configuration",),
        plant=forget_batchnorm,
        around=batchnorm_model,
        changes=SEQUENTIAL,
    ),
    Bug(
        "control_variate_planned",
        "clients send a control variate too, which nothing clips",
        "FedAvg's `uploads`",
        words="only 'update' is clipped and noised",
        around=scaffold,
    ),
    Bug(
        "control_variate_released",
        "unclipped control variates move the model, the plan's check forgotten",
        "`plan_checks._check_uploads` does nothing, `_take_central_step` adds them",
        expects=("configuration",),
        plant=forget_uploads,
        around=scaffold,
    ),
)
