"""Bugs planted blind: what a user can change.

Where the claim is 4.07: 50 of 300 users in 20 rounds, multiplier 1, delta 0.0019. Tests have 20 of
120 users.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pfl_bench.federated.cohort import CohortTraining, UpdateAggregator
from pfl_bench.federated.shards import PairwiseReduction
from pfl_bench.federated.workers import worker_loop
from pfl_bench.federated.workers.messages import SharedTraining
from pfl_bench.types import WorkerGroup
from privacy.aggregate import Aggregate
from privacy.clipping import ClipOutcome, clip_factor, l2_norm
from privacy.mechanism import Release
from privacy.mechanisms.adaptive_gaussian import AdaptiveGaussian
from privacy.noise import clipped_sum
from tests.sabotage.blind_planting import (
    Blind,
    Users,
    blind,
    clipping,
    honest_outcome,
    witness,
    witness_elsewhere,
)
from tests.sabotage.planting import (
    ADAPTIVE,
    Patch,
)

TINY: dict[str, Any] = {
    "federated__local_learning_rate": 1e-5,
    "privacy__mechanism": {"name": "gaussian", "clip_norm": 1e-5},
}
TWO_WORKERS = {"federated__workers": 2}


def each_layer(total: Tensor, update: Tensor, bound: float, state: dict[str, Any]) -> ClipOutcome:
    """Weights and bias are clipped, each to the whole bound."""
    for part in (slice(0, -10), slice(-10, None)):
        piece = update[part]
        total[part] += piece * clip_factor(l2_norm(piece), bound)
    return honest_outcome(update, bound)


def without_bias(total: Tensor, update: Tensor, bound: float, state: dict[str, Any]) -> ClipOutcome:
    """The norm is that of the weights."""
    total += update * clip_factor(l2_norm(update[:-10]), bound)
    return honest_outcome(update, bound)


def norm_of_another(
    total: Tensor, update: Tensor, bound: float, state: dict[str, Any]
) -> ClipOutcome:
    """Norms and updates are one out of step."""
    norm = l2_norm(update)
    total += update * clip_factor(state.get("norm", norm), bound)
    state["norm"] = norm
    return honest_outcome(update, bound)


def norm_in_half(total: Tensor, update: Tensor, bound: float, state: dict[str, Any]) -> ClipOutcome:
    """The squares of a small update are zeros in float16."""
    norm = float(update.to(torch.float16).square().sum(dtype=torch.float16).sqrt())
    total += update * clip_factor(norm, bound)
    return honest_outcome(update, bound)


def sum_of_pairs(patch: Patch) -> None:
    """Microbatches: what is clipped is the sum of two clients.

    Each contribution is within the bound, yet either client can turn it round: by twice the bound.
    """
    state: dict[str, Any] = {}

    def clipped(total: Tensor, update: Tensor, bound: float) -> ClipOutcome:
        if state.get("waits") is None:
            state["waits"] = update.clone()
        else:
            pair = state["waits"] + update
            total += pair * clip_factor(l2_norm(pair), bound)
            # What is left when the first of both had not been there.
            alone = update * clip_factor(l2_norm(update), bound)
            witness(l2_norm(pair * clip_factor(l2_norm(pair), bound) - alone) / bound)
            state["waits"] = None
        return honest_outcome(update, bound)

    patch.setattr(clipped_sum, "add_clipped_", clipped)


def last_of_shard_unclipped(patch: Patch) -> None:
    """What the loop leaves over is added after it, and not by what clips."""
    real = CohortTraining._train_shard
    real_take = UpdateAggregator.add

    def train_shard(self: CohortTraining, users: Users, *rest: Any) -> Any:
        last = users[-1] if len(users) > 1 else -1

        def add(
            aggregator: UpdateAggregator,
            aggregate: Aggregate,
            update: Tensor,
            weight: float,
            *who: int,
        ) -> ClipOutcome:
            if who[1] != last:
                return real_take(aggregator, aggregate, update, weight, *who)
            assert aggregator.mechanism.clip_norm is not None
            outcome = honest_outcome(update, aggregator.mechanism.clip_norm)
            aggregate.total += update
            aggregate.count(outcome)
            witness(l2_norm(update) / aggregator.mechanism.clip_norm - 1.0)
            return outcome

        UpdateAggregator.add = add  # type: ignore[method-assign]
        try:
            return real(self, users, *rest)
        finally:
            UpdateAggregator.add = real_take  # type: ignore[method-assign]

    patch.setattr(CohortTraining, "_train_shard", train_shard)


def sent_again(patch: Patch) -> None:
    """A client whose answer was late is asked again, and both of its answers are added."""
    real = UpdateAggregator.add

    def add(
        self: UpdateAggregator, aggregate: Aggregate, update: Tensor, weight: float, *who: int
    ) -> ClipOutcome:
        outcome = real(self, aggregate, update, weight, *who)
        if who[1] % 10 == 0:
            before = aggregate.total.clone()
            self.mechanism.accumulate(Aggregate(aggregate.total), update, weight)
            witness(l2_norm(aggregate.total - before))
        return outcome

    patch.setattr(UpdateAggregator, "add", add)


def never_zeroed(patch: Patch) -> None:
    """The first shard's sum begins with what its memory still holds: the sum of the last round."""
    real = PairwiseReduction.zeros

    def zeros(self: PairwiseReduction, *size: Any) -> Aggregate:
        if self.nodes or not self._free:
            return real(self, *size)
        kept = Aggregate(self._free.pop())
        witness(l2_norm(kept.total))
        return kept

    patch.setattr(PairwiseReduction, "zeros", zeros)


def summed_twice(patch: Patch) -> None:
    """The sum of all processes is summed over all processes once more."""
    real = SharedTraining.train

    def train(self: SharedTraining, *order: Any) -> Any:
        aggregate, counted = real(self, *order)
        aggregate.total.mul_(2.0)
        witness(1.0)
        return aggregate, counted

    patch.setattr(SharedTraining, "train", train)


def bound_moved_first(patch: Patch) -> None:
    """The noise is for the bound of the coming round, not for that which the updates had."""
    real = AdaptiveGaussian.release

    def release(self: AdaptiveGaussian, aggregate: Aggregate, rng: np.random.Generator) -> Release:
        clipped_to = self._clip_norm
        state = rng.bit_generator.state
        real(self, aggregate, rng)
        moved = self._clip_norm
        rng.bit_generator.state = state
        released = real(self, aggregate, rng)
        self._clip_norm = moved
        witness(clipped_to / moved - 1.0)
        return released

    patch.setattr(AdaptiveGaussian, "release", release)


def follow_unclipped(group: WorkerGroup) -> None:
    """A worker whose mechanism was built without its bound."""
    real = clipped_sum.add_clipped_

    def unclipped(total: Tensor, update: Tensor, bound: float) -> ClipOutcome:
        witness_elsewhere(max(0.0, l2_norm(update) / bound - 1.0))
        total += update
        return honest_outcome(update, bound)

    clipped_sum.add_clipped_ = unclipped
    try:
        real_follow(group)
    finally:
        clipped_sum.add_clipped_ = real


real_follow = worker_loop.follow


def worker_unclipped(patch: Patch) -> None:
    patch.setattr(worker_loop, "follow", follow_unclipped)


CLIPPING: tuple[Blind, ...] = (
    blind(
        "each_layer_to_the_bound",
        "weights and bias are clipped apart, each to the whole bound",
        "`add_clipped_`",
        "a user moves the sum by up to 1.41 times the bound",
        "8.1",
        plant=clipping(each_layer),
        expects=("clip_probe",),
    ),
    blind(
        "norm_without_bias",
        "the norm that is clipped by leaves out the bias",
        "`add_clipped_`",
        "nothing bounds the bias",
        "infinite",
        plant=clipping(without_bias),
        expects=("clip_probe",),
    ),
    blind(
        "norm_of_another",
        "updates are clipped by the norm of the client before",
        "`add_clipped_`",
        "nothing bounds a user",
        "infinite",
        0.05,
        plant=clipping(norm_of_another),
        expects=("clip_probe",),
    ),
    blind(
        "norm_in_half",
        "the norm is computed in float16, where small squares are zeros",
        "`add_clipped_`, at a small learning rate and bound",
        "nothing bounds a user whose update is small and has many parameters",
        "infinite",
        0.05,
        plant=clipping(norm_in_half),
        changes=TINY,
        expects=("clip_probe",),
    ),
    blind(
        "sum_of_pairs_clipped",
        "the sums of pairs of clients are clipped, not the clients",
        "`add_clipped_`",
        "a user moves a pair's sum by up to twice the bound",
        "up to 17",
        0.5,
        plant=sum_of_pairs,
        expects=("clip_probe",),
    ),
    blind(
        "last_of_a_shard_unclipped",
        "the last client of each shard is added without clipping",
        "`CohortTraining._train_shard`",
        "nothing bounds these users",
        "infinite",
        0.05,
        plant=last_of_shard_unclipped,
        expects=("clip_probe",),
    ),
    blind(
        "sent_again",
        "one client in ten is added twice, and counted once",
        "`UpdateAggregator.add`",
        "these users move the sum by twice the bound",
        "17",
        0.1,
        plant=sent_again,
        expects=("clip_probe",),
    ),
    blind(
        "sum_never_zeroed",
        "a round's sum begins with the sum of the last round",
        "`PairwiseReduction.zeros`",
        "a user is in every later round too",
        "above 24",
        0.1,
        plant=never_zeroed,
        expects=(
            "clip_bound",
            "clip_probe",
        ),
    ),
    blind(
        "summed_over_processes_twice",
        "the sum is doubled after it was made, the noise is not",
        "`SharedTraining.train`",
        "a user moves the sum by twice the bound",
        "17",
        plant=summed_twice,
        expects=("clip_probe",),
    ),
    blind(
        "noise_of_the_next_bound",
        "adaptive clipping moves the bound, and then noises for it",
        "`AdaptiveGaussian.release`",
        "the noise is too small wherever the bound falls",
        "about 4.2",
        0.02,
        plant=bound_moved_first,
        changes=ADAPTIVE,
        expects=(
            "clip_bound",
            "clip_path",
            "clip_probe",
        ),
    ),
    blind(
        "worker_unclipped",
        "one of two worker processes does not clip",
        "`follow`, in the worker",
        "nothing bounds half of the users",
        "infinite",
        0.05,
        plant=worker_unclipped,
        changes=TWO_WORKERS,
        expects=("clip_probe",),
    ),
)
