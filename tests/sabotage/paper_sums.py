"""Bugs of the sums of what clients send, of one process and of two.

Sources: McMahan et al. 2018 (bounded sums, fixed denominator); memory that is used again, and
messages that overtake one another.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from pfl_bench.federated.cohort import CohortTraining
from pfl_bench.federated.shards import Node, PairwiseReduction
from pfl_bench.federated.workers.messages import SharedTraining
from privacy import clipping
from privacy.noise import clipped_sum
from privacy.noise.clipped_sum import add_clipped_
from tests.sabotage.paper_planting import (
    ROUNDS,
    PaperBug,
    Patch,
    change_noise,
    counter,
    follow_clients,
    registering,
    wrap,
)
from tests.sabotage.planting import SEQUENTIAL

BUGS: list[PaperBug] = []
bug = registering(BUGS)
_TWO_WORKERS = {"federated__workers": 2}


@bug("Twelve users of three hundred are added twice.")
def update_added_twice(patch: Patch) -> None:
    now = follow_clients(patch)

    def doubling(real: Any) -> Any:
        def add(total: Any, update: Any, clip_norm: float) -> Any:
            outcome = real(total, update, clip_norm)
            return real(total, update, clip_norm) if now.client % 25 == 0 else outcome

        return add

    wrap(patch, clipped_sum, "add_clipped_", doubling)


@bug("Clipped updates are weighed by users' examples, while every weight is said to be one.")
def update_weighed_after_clip(patch: Patch) -> None:
    now = SimpleNamespace(weight=1.0)

    def noting(real: Any) -> Any:
        def outgoing(self: Any, result: Any, index: int) -> Any:
            now.weight = min(2.0, result.num_examples / 4)
            return real(self, result, index)

        return outgoing

    def weighing(total: Any, update: Any, clip_norm: float) -> Any:
        outcome = add_clipped_(torch.zeros_like(total), update, clip_norm)
        total.add_(clipping.clip(update, clip_norm), alpha=now.weight)
        return outcome

    wrap(patch, CohortTraining, "_outgoing", noting)
    patch.setattr(clipped_sum, "add_clipped_", weighing)


@bug("Every fourth round begins in memory that still holds the sum of the round before.")
def sum_begins_with_round_before(patch: Patch) -> None:
    calls = counter()

    def dirty(real: Any) -> Any:
        def zeros(self: Any, *given: Any) -> Any:
            held = self._free[-1].clone() if self._free else None
            aggregate = real(self, *given)
            if calls() % 4 == 3 and held is not None:
                aggregate.total.copy_(held)
            return aggregate

        return zeros

    wrap(patch, PairwiseReduction, "zeros", dirty)


@bug("The sum of one shard of thirty-two is lost on its way.", changes=SEQUENTIAL)
def sum_of_shard_lost(patch: Patch) -> None:
    def losing(real: Any) -> Any:
        def push(self: Any, node: Node) -> None:
            is_lost = node.level == 0 and node.place == 5
            real(self, Node(0, 5, None) if is_lost else node)

        return push

    wrap(patch, PairwiseReduction, "push", losing)


@bug("The lead reads a worker's sum before the worker has written it: the round before's.",
     changes=_TWO_WORKERS)  # fmt: skip
def sum_of_worker_is_stale(patch: Patch) -> None:
    past: list[Any] = []

    def early(real: Any) -> Any:
        def take_sums(self: Any, nodes: Any, vectors: Any) -> None:
            fresh = [vector.clone() for vector in vectors]
            real(self, nodes, iter(past[-1] if past else fresh))
            past.append(fresh)

        return take_sums

    wrap(patch, SharedTraining, "_take_sums", early)


@bug("In the last round a worker's sum is taken in twice.", changes=_TWO_WORKERS)
def sum_of_worker_taken_twice(patch: Patch) -> None:
    rounds = counter()

    def twice(real: Any) -> Any:
        def take_sums(self: Any, nodes: Any, vectors: Any) -> None:
            factor = 2.0 if rounds() == ROUNDS - 1 else 1.0
            real(self, nodes, (factor * vector for vector in vectors))

        return take_sums

    wrap(patch, SharedTraining, "_take_sums", twice)


@bug("The lead adds its part of the noise of two workers, who add none.", changes=_TWO_WORKERS)
def noise_left_to_workers(patch: Patch) -> None:
    change_noise(patch, lambda noise, _, __: noise / 2**0.5)
