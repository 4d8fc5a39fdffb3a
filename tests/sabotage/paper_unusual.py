"""Bugs of rows that few runs have: compression, canaries, adaptive optimizers, a selected model.

Sources: Alistarh et al. 2017 and Stich et al. 2018 (what compression does to a norm, and keeps),
Wang et al. 2020 (FedNova), Reddi et al. 2021 (moments), Steinke et al. 2023 (canaries).
"""

from __future__ import annotations

from typing import Any

import torch
from opacus.optimizers import DPOptimizer

from pfl_bench.client.batched import gradients
from pfl_bench.federated.algorithms.fednova import FedNova
from pfl_bench.federated.cohort import UpdateAggregator
from pfl_bench.federated.compression.quantization import Quantization
from pfl_bench.federated.compression.top_k import TopK
from pfl_bench.federated.privacy_session import PrivateRounds
from pfl_bench.federated.trainer import FederatedTrainer
from pfl_bench.federated.workers.messages import SharedTraining, Train
from pfl_bench.runs.best_model import BestModel
from pfl_bench.trainers import dp_sgd
from privacy.empirical.canaries import Canaries
from privacy.mechanisms.tree_aggregation import TreeAggregation
from privacy.noise import clipped_sum
from privacy.noise.clipped_sum import add_clipped_
from tests.sabotage.paper_planting import (
    TREE,
    USERS,
    PaperBug,
    Patch,
    change_noise,
    counter,
    follow_clients,
    registering,
    wrap,
)
from tests.sabotage.planting import ADAPTIVE

BUGS: list[PaperBug] = []
bug = registering(BUGS)
of_examples = registering(BUGS, setting="central_dp")
_TOP_K = {"federated__compression": {"name": "top_k", "k": 100}}
_COARSE = {"federated__compression": {"name": "quantization", "levels": 1, "bucket_size": 64}}
_ADAM = {"name": "adam"}
_SELECTED_MODEL = {
    "evaluation__every": 5,
    "evaluation__splits": ["val", "test"],
    "evaluation__select_best": "val/accuracy",
}


@bug("All clients of a round send the places that are largest in its first client's update.",
     changes=_TOP_K)  # fmt: skip
def compression_by_first_client(patch: Patch) -> None:
    places: dict[int, Any] = {}

    def compress(self: TopK, update: Any, user: int, index: int) -> Any:
        chosen = places.setdefault(index, update.abs().topk(self._k).indices)
        return torch.zeros_like(update).index_copy_(0, chosen, update[chosen])

    patch.setattr(TopK, "compress", compress)


@bug("What top-k leaves out is sent the next time, though error feedback is off.", changes=_TOP_K)
def compression_keeps_what_it_left_out(patch: Patch) -> None:
    kept: dict[int, Any] = {}

    def keeping(real: Any) -> Any:
        def compress(self: TopK, update: Any, user: int, index: int) -> Any:
            update = update + kept.get(user, 0.0)
            sent = real(self, update, user, index)
            kept[user] = update - sent
            return sent

        return compress

    wrap(patch, TopK, "compress", keeping)


@bug("Updates are quantised after their clip, which makes them longer.", changes=_COARSE)
def compression_after_clip(patch: Patch) -> None:
    now, real = follow_clients(patch), Quantization.compress
    seen: list[Quantization] = []

    def compress(self: Quantization, update: Any, user: int, index: int) -> Any:
        seen[:] = [self]
        return update

    def clipping_first(total: Any, update: Any, clip_norm: float) -> Any:
        clipped = torch.zeros_like(update)
        outcome = add_clipped_(clipped, update, clip_norm)
        total.add_(real(seen[0], clipped, now.client, now.index))
        return outcome

    patch.setattr(Quantization, "compress", compress)
    patch.setattr(clipped_sum, "add_clipped_", clipping_first)


@bug("FedNova multiplies the release by the mean number of steps that clients took.",
     changes={"federated__algorithm": {"name": "fednova", "effective_steps": 1.5},
              "federated__local_batch_size": 4})  # fmt: skip
def fednova_takes_true_steps(patch: Patch) -> None:
    steps: list[float] = []

    def counting(real: Any) -> Any:
        def train(self: Any, *given: Any) -> Any:
            aggregate, counted = real(self, *given)
            steps.append(counted.num_steps / max(1, aggregate.num_contributions))
            return aggregate, counted

        return train

    def central_gradient(self: FedNova, mean_update: Any, out: Any) -> None:
        torch.mul(mean_update, -steps[-1], out=out)

    wrap(patch, SharedTraining, "train", counting)
    patch.setattr(FedNova, "central_gradient", central_gradient)


@bug("Local gradients are clipped by one factor for all clients that train beside each other.",
     changes={"federated__local_gradient_clip_global_norm": 1.0})  # fmt: skip
def local_clip_of_all_slots(patch: Patch) -> None:
    def shared(real: Any) -> Any:
        return lambda found: torch.full_like(real(found), float(real(found).mean()))

    wrap(patch, gradients, "_norms", shared)


@bug("Adam's second moment is that of the bare mean.",
     changes={"federated__central_optimizer": _ADAM,
              "federated__central_learning_rate": 0.02})  # fmt: skip
def step_with_second_moment_of_bare_mean(patch: Patch) -> None:
    bare: list[Any] = []

    def noting(real: Any) -> Any:
        def record(self: Any, index: int, users: Any, release: Any, aggregate: Any, *rest: Any):
            bare[:] = [aggregate.total / self.plan.noise.cohort_size]
            real(self, index, users, release, aggregate, *rest)

        return record

    def mixing(real: Any) -> Any:
        def step(self: Any, *given: Any) -> Any:
            rate = real(self, *given)
            for state in self._optimizer.state.values():
                state["exp_avg_sq"].lerp_(bare[0].square(), 0.5)
            return rate

        return step

    wrap(patch, PrivateRounds, "record", noting)
    wrap(patch, FederatedTrainer, "_take_central_step", mixing)


@bug("One parameter has no noise in one round.")
def noise_missing_once_in_one_parameter(patch: Patch) -> None:
    def change(noise: Any, bare: Any, before: int) -> Any:
        noise[333] *= before != 12
        return noise

    change_noise(patch, change)


@bug("A canary sends the update of the round's last client once more.",
     changes={"privacy__audit": {"kind": "one_run", "count": 40}})  # fmt: skip
def canary_repeats_a_client(patch: Patch) -> None:
    last: list[Any] = []

    def noting(real: Any) -> Any:
        def add(self: Any, aggregate: Any, update: Any, weight: float, index: int, client: int):
            if client < USERS:
                last[:] = [update.clone()]
            return real(self, aggregate, update, weight, index, client)

        return add

    def repeating(real: Any) -> Any:
        def updates(self: Any, *given: Any) -> Any:
            for place, update in enumerate(real(self, *given)):
                yield update if place else last[0]

        return updates

    wrap(patch, UpdateAggregator, "add", noting)
    wrap(patch, Canaries, "updates", repeating)


@bug("The second worker clips to the bound of the round before.",
     changes={**ADAPTIVE, "federated__workers": 2})  # fmt: skip
def worker_clips_to_bound_before(patch: Patch) -> None:
    bounds: list[Any] = []

    def late(real: Any) -> Any:
        def init(self: Any, index: int, shards: Any, probed: int, clip_norm: Any) -> None:
            bounds.append(clip_norm)
            real(self, index, shards, probed, bounds[-2:][0])

        return init

    wrap(patch, Train, "__init__", late)


@bug("A tree's open nodes are saved in half precision.",
     changes={**TREE, "checkpoint__every": 3}, interrupt_after=9)  # fmt: skip
def resume_rounds_open_nodes(patch: Patch) -> None:
    def rounding(real: Any) -> Any:
        def state_dict(self: Any) -> Any:
            saved = real(self)
            return {**saved, "noise": [node.half().float() for node in saved["noise"]]}

        return state_dict

    wrap(patch, TreeAggregation, "state_dict", rounding)


@bug("A model that is selected by val/accuracy is that of the least test loss.",
     changes=_SELECTED_MODEL, effects=("selection",))  # fmt: skip
def model_selected_by_another_metric(patch: Patch) -> None:
    def other(real: Any) -> Any:
        def look(self: Any, index: int, scalars: Any) -> None:
            real(self, index, {**scalars, self._metric: scalars["test/loss"]})

        return look

    wrap(patch, BestModel, "look", other)


@of_examples("Adam's second moment is that of the clipped sum.",
             changes={"central__optimizer": _ADAM, "central__learning_rate": 0.02})  # fmt: skip
def dp_sgd_second_moment_of_bare_sum(patch: Patch) -> None:
    def mixing(real: Any) -> Any:
        def step(self: Any, *given: Any) -> Any:
            found = real(self, *given)
            for parameter in self.params:
                state = self.original_optimizer.state.get(parameter)
                if state and parameter.summed_grad is not None:
                    bare = parameter.summed_grad / self.expected_batch_size
                    state["exp_avg_sq"].lerp_(bare.square(), 0.1)
            return found

        return step

    wrap(patch, DPOptimizer, "step", mixing)


@of_examples("Under Adam, gradients are clipped to twice the bound in every fifth step.",
             changes={"central__optimizer": _ADAM, "central__learning_rate": 0.02})  # fmt: skip
def dp_sgd_clips_less_now_and_then(patch: Patch) -> None:
    calls = counter()

    def lenient(real: Any) -> Any:
        return lambda samples, bound: real(samples, bound * (1 + (calls() % 5 == 4)))

    wrap(patch, dp_sgd, "clipped_sums", lenient)
