"""The fifth list: bugs of the clip, of the sum, and of what clients compute."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from pfl_bench.client.engines import sequential
from pfl_bench.client.engines.sequential import SequentialEngine
from pfl_bench.data import in_memory
from pfl_bench.federated import round as federated
from pfl_bench.federated.workers import messages
from pfl_bench.federated.workers.messages import SharedTraining
from pfl_bench.types import Examples, LocalTraining
from privacy import clipping
from privacy.clipping import add_clipped_, clip, l2_norm
from privacy.mechanisms import laplace
from privacy.noise import client_reports, clipped_sum
from tests.sabotage.fifth_planting import (
    ADAPTIVE,
    PLD,
    SEQUENTIAL,
    FifthBug,
    Patch,
    RawMeans,
    gaussian_with,
    honest_outcome,
    mechanism,
)
from tests.sabotage.paper_planting import registering, wrap

BUGS: list[FifthBug] = []
bug = registering(BUGS, FifthBug)
MEDIAN_OF = 30


@bug(
    "The clip's norm leaves out the last layer's bias, so that a user's bias has no bound.",
    shared=True,
    settings=ADAPTIVE,
)
def norm_skips_bias(patch: Patch) -> None:
    patch.setattr(clipping, "l2_norm", lambda update: l2_norm(update[:-10]))


@bug("Weights and bias are clipped to the bound each: sensitivity is sqrt(2) bounds.", shared=True)
def clip_per_tensor(patch: Patch) -> None:
    def accumulate(name: str, aggregate: Any, update: Any, weight: float, bound: float) -> Any:
        parts = (clip(update[:-10], bound), clip(update[-10:], bound))
        add_clipped_(aggregate.total, torch.cat(parts), math.inf)
        return _counted(aggregate, update, bound)

    patch.setattr(clipped_sum, "accumulate_clipped", accumulate)
    patch.setattr(client_reports, "accumulate_clipped", accumulate)


@bug(
    "The norm is computed in bfloat16, 0.4 % off: clipped updates exceed the bound a little.",
    shared=True,
)
def norm_in_bfloat16(patch: Patch) -> None:
    def norm(update: Any) -> float:
        return float(torch.linalg.vector_norm(update.detach().to(torch.bfloat16)))

    patch.setattr(clipping, "l2_norm", norm)


@bug(
    "A clipped update is rounded away from zero to a grid: its norm is above the bound.",
    shared=True,
)
def quantize_after_clip(patch: Patch) -> None:
    def accumulate(name: str, aggregate: Any, update: Any, weight: float, bound: float) -> Any:
        clipped = clip(update, bound)
        clipped = torch.sign(clipped) * torch.ceil(clipped.abs() / 0.01) * 0.01
        add_clipped_(aggregate.total, clipped, math.inf)
        return _counted(aggregate, update, bound)

    patch.setattr(clipped_sum, "accumulate_clipped", accumulate)


@bug("The sum of a shard is initialised by its first client's raw update.", shared=True)
def first_client_unclipped(patch: Patch) -> None:
    def accumulating(real: Any) -> Any:
        def accumulate(name: str, aggregate: Any, update: Any, weight: float, bound: float) -> Any:
            if aggregate.num_contributions:
                return real(name, aggregate, update, weight, bound)
            add_clipped_(aggregate.total, update, math.inf)
            return _counted(aggregate, update, bound)

        return accumulate

    wrap(patch, clipped_sum, "accumulate_clipped", accumulating)


def _counted(aggregate: Any, update: Any, clip_norm: float) -> Any:
    outcome = honest_outcome(update, clip_norm)
    aggregate.count(outcome)
    return outcome


@bug(
    "Local momentum is not zeroed between clients: a user moves the updates of later users.",
    shared=True,
    settings=gaussian_with("federated.local_momentum=0.5", "federated.engine=sequential"),
)
def velocity_kept_between_clients(patch: Patch) -> None:
    def training(real: Any) -> Any:
        def train_client(self: Any, *arguments: Any) -> Any:
            # Never zeroed, it begins as what was in its memory: the run may diverge.
            velocity, zero = self._velocity, torch.Tensor.zero_

            def zero_others(tensor: Any) -> Any:
                return tensor if tensor is velocity else zero(tensor)

            with Patch.context() as training_only:
                training_only.setattr(torch.Tensor, "zero_", zero_others)
                return real(self, *arguments)

        return train_client

    wrap(patch, SequentialEngine, "_train_client", training)


@bug(
    "A user's examples end one too late: the next user's first example counts twice.",
    shared=True,
)
def user_has_neighbours_example(patch: Patch) -> None:
    def read_user(self: Any, user: int, rng: Any) -> Any:
        start, end = in_memory.user_range(self, user)
        return self.read_range(start, min(end + 1, self.num_examples))

    patch.setattr(in_memory.InMemorySplit, "read_user", read_user)


@bug(
    "Laplace noise is calibrated to the L1 norm, but the clip is by L2.",
    shared=True,
    settings=(*ADAPTIVE, mechanism("laplace", 3.0), PLD, "privacy.epsilon=20.0"),
)
def laplace_clips_l2(patch: Patch) -> None:
    patch.setattr(laplace, "add_clipped_l1_", add_clipped_)


@bug(
    "Workers are sent four times the first round's bound for ever (two processes).",
    settings=(*ADAPTIVE, "federated.workers=2"),
)
def workers_clip_to_first_bound(patch: Patch) -> None:
    first: list[Any] = []

    def sending(real: Any) -> Any:
        def init(self: Any, index: int, shards: Any, probed: int, clip_norm: Any) -> None:
            first.append(clip_norm)
            real(self, index, shards, probed, 4 * first[0])

        return init

    wrap(patch, messages.Train, "__init__", sending)


@bug(
    "All clients of a round have a local rate set by the raw training losses of the round before.",
    shared=True,
)
def local_lr_from_cohort_loss(patch: Patch) -> None:
    now = SimpleNamespace(factor=1.0)

    def noting(real: Any) -> Any:
        def scalars(*arguments: Any) -> Any:
            found = real(*arguments)
            now.factor = 0.7 if found.get("train/loss", 0) < 2.0 else 1.0
            return found

        return scalars

    def slowing(real: Any) -> Any:
        return lambda self, index: real(self, index) * now.factor

    wrap(patch, federated, "_scalars", noting)
    wrap(patch, LocalTraining, "rate", slowing)


@bug("Clients start from a central model that raw sums have moved.")
def clients_train_from_unnoised(patch: Patch) -> None:
    raw = RawMeans(patch)
    started: list[Any] = []

    def training(real: Any) -> Any:
        def train(self: Any, users: Any, index: int, central: Any, probed: int) -> Any:
            if not started:
                started.append(central.clone())
            elif raw.last is not None:
                started[0] += raw.last
            return real(self, users, index, started[0], probed)

        return train

    wrap(patch, SharedTraining, "train", training)


@bug(
    "Updates above five bounds are set to zero before the clip: who counts depends on data.",
    shared=True,
)
def nan_client_drops_round(patch: Patch) -> None:
    _filter_updates(patch, lambda norm, clip_norm: norm < 5 * clip_norm)


@bug(
    "Updates above 1.2 running medians of norms are dropped: a user moves others' membership.",
    shared=True,
)
def cohort_median_filter(patch: Patch) -> None:
    norms: list[float] = []

    def keeps(norm: float, clip_norm: float) -> bool:
        norms.append(norm)
        return bool(norm <= 1.2 * np.median(norms[-MEDIAN_OF:]))

    _filter_updates(patch, keeps)


def _filter_updates(patch: Patch, keeps: Callable[[float, float], bool]) -> None:
    """Set updates to zero that are not kept, by norm and bound."""

    def accumulating(real: Any) -> Any:
        def accumulate(name: str, aggregate: Any, update: Any, weight: float, bound: float) -> Any:
            kept = 1.0 if keeps(clipping.l2_norm(update), bound) else 0.0
            return real(name, aggregate, update * kept, weight, bound)

        return accumulate

    wrap(patch, clipped_sum, "accumulate_clipped", accumulating)


@bug(
    "Inputs are divided by the largest of all clients before: a user moves others' updates.",
    shared=True,
    settings=SEQUENTIAL,
)
def input_standardised_by_cohort(patch: Patch) -> None:
    largest = [1.0]

    def reading(real: Any) -> Any:
        def read_users(*arguments: Any) -> Any:
            for user, examples in real(*arguments):
                largest.append(max(largest[-1], float(examples.inputs.abs().max())))
                yield user, Examples(examples.inputs / largest[-1] * 1.01, examples.targets)

        return read_users

    wrap(patch, sequential, "read_users", reading)
