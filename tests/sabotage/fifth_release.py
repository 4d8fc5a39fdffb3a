"""The fifth list: bugs of what is released beside the noised sum: models, metrics, checkpoints."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from pfl_bench.client import flat_model
from pfl_bench.client.costs import CostMeter
from pfl_bench.evaluation.evaluator import Evaluator
from pfl_bench.federated import parts, trainer
from pfl_bench.federated import round as federated
from pfl_bench.federated.cohort import CohortTraining
from pfl_bench.federated.trainer import FederatedTrainer
from pfl_bench.runs.best_model import BestModel
from pfl_bench.runs.divergence import DivergenceWatch
from privacy.errors import BudgetExceededError
from tests.sabotage.fifth_planting import (
    SEQUENTIAL,
    FifthBug,
    Patch,
    RawMeans,
    gaussian_with,
)
from tests.sabotage.paper_planting import registering, wrap

BUGS: list[FifthBug] = []
bug = registering(BUGS, FifthBug)
BEST = gaussian_with("evaluation.select_best=val/accuracy", "evaluation.every=1")


@bug(
    "The momentum of the central step is that of the means before noise.",
    settings=gaussian_with("federated.central_optimizer={name: sgd, momentum: 0.5}"),
)
def momentum_of_raw_sums(patch: Patch) -> None:
    raw = RawMeans(patch)

    def stepping(real: Any) -> Any:
        def step(self: Any, mean: Any, index: int) -> Any:
            rate = real(self, mean, index)
            for state in self._optimizer.state.values():
                if state.get("momentum_buffer") is not None:
                    state["momentum_buffer"].copy_(-raw.last)
            return rate

        return step

    wrap(patch, FederatedTrainer, "_take_central_step", stepping)


@bug("Checkpoints have the mean before noise beside the optimizer's state.")
def checkpoint_raw_sum(patch: Patch) -> None:
    raw = RawMeans(patch)

    def saving(real: Any) -> Any:
        def state_dict(self: Any) -> Any:
            state = real(self)
            last = torch.zeros(0) if raw.last is None else raw.last
            state["optimizer"] = {**state["optimizer"], "last_gradient": last}
            return state

        return state_dict

    wrap(patch, FederatedTrainer, "state_dict", saving)


@bug("train/update_norm is the norm of the mean before noise.")
def metrics_raw_norm(patch: Patch) -> None:
    raw = RawMeans(patch)
    _change_scalars(patch, "train/update_norm", lambda: raw.last.norm())


@bug("metrics.jsonl has the median magnitude of the mean before noise, as train/median_norm.")
def val_split_overlaps_train(patch: Patch) -> None:
    raw = RawMeans(patch)
    _change_scalars(patch, "train/median_norm", lambda: raw.last.abs().median())


def _change_scalars(patch: Patch, name: str, value: Callable[[], Any]) -> None:
    def adding(real: Any) -> Any:
        return lambda *arguments: {**real(*arguments), name: float(value())}

    wrap(patch, federated, "_scalars", adding)


@bug("run.log gets 40 coordinates of the mean before noise in each round.")
def log_of_raw_update(patch: Patch) -> None:
    raw = RawMeans(patch)

    def logging(real: Any) -> Any:
        def run_round(run: Any, index: int, step: Any) -> Any:
            scalars = real(run, index, step)
            run.notices._notice(f"round {index}: mean {raw.last[:40].tolist()}")
            return scalars

        return run_round

    wrap(patch, trainer, "run_round", logging)


@bug("The central rate is halved in rounds after the raw training loss rose.")
def rate_follows_train_loss(patch: Patch) -> None:
    now = SimpleNamespace(loss=1e9, factor=1.0)

    def noting(real: Any) -> Any:
        def scalars(*arguments: Any) -> Any:
            found = real(*arguments)
            now.factor = 0.5 if found.get("train/loss", 0) > now.loss else 1.0
            now.loss = found.get("train/loss", now.loss)
            return found

        return scalars

    def slowing(real: Any) -> Any:
        return lambda *arguments: real(*arguments) * now.factor

    wrap(patch, federated, "_scalars", noting)
    wrap(patch, trainer, "rate_factor", slowing)


@bug("The run stops when the raw training loss falls below a threshold.")
def early_stop_on_train_loss(patch: Patch) -> None:
    now = SimpleNamespace(loss=9.0)

    def advancing(real: Any) -> Any:
        def advance(self: Any, index: int) -> Any:
            if now.loss < 1.9:
                self.total = index - 1
                raise BudgetExceededError("train loss low enough")
            scalars = real(self, index)
            now.loss = scalars.get("train/loss", 9.0)
            return scalars

        return advance

    wrap(patch, FederatedTrainer, "advance", advancing)


@bug("The best model is chosen by the raw training loss; it says val/accuracy.", settings=BEST)
def best_by_train_loss(patch: Patch) -> None:
    def looking(real: Any) -> Any:
        def look(self: Any, index: int, scalars: Any) -> None:
            if self._metric:
                scalars = {**scalars, self._metric: scalars.get("train/loss", 0.0)}
            real(self, index, scalars)

        return look

    wrap(patch, BestModel, "look", looking)


@bug("The best model that is kept is one step along the mean before noise ahead.", settings=BEST)
def best_vector_raw(patch: Patch) -> None:
    raw = RawMeans(patch)

    def keeping(real: Any) -> Any:
        def now(self: Any) -> Any:
            kept = real(self)
            if raw.last is not None:
                kept["vector"] = kept["vector"] + raw.last
            return kept

        return now

    wrap(patch, BestModel, "_now", keeping)


@bug("The bias of the first model is the logarithm of the training labels' shares.", shared=True)
def init_from_labels(patch: Patch) -> None:
    real = parts.build_model

    def build_model(resolved: Any, task: Any, device: Any) -> Any:
        model = real(resolved, task, device)
        split = task.split("train")
        labels = split.read_range(0, split.num_examples).targets.long()
        shares = torch.bincount(labels, minlength=10).float()
        shares /= shares.sum()
        with torch.no_grad():
            model.vector[-10:] = shares.clamp_min(1e-6).log()
        model.initial_digest = flat_model._digest(model.module)
        return model

    patch.setattr(parts, "build_model", build_model)
    for name, module in list(sys.modules.items()):
        if name.startswith("pfl_bench") and getattr(module, "build_model", None) is real:
            patch.setattr(module, "build_model", build_model)


@bug(
    "Validation metrics are measured on training users.",
    settings=gaussian_with("evaluation.every=2"),
    shared=True,
)
def val_is_train_users(patch: Patch) -> None:
    _measure_on_train(patch, "val")


@bug("The test metrics of the summary are measured on training users.")
def final_metrics_on_best_client(patch: Patch) -> None:
    _measure_on_train(patch, "test")


def _measure_on_train(patch: Patch, instead_of: str) -> None:
    class Task:
        def __init__(self, real: Any) -> None:
            self._real = real

        def __getattr__(self, name: str) -> Any:
            return getattr(self._real, name)

        def split(self, name: str) -> Any:
            return self._real.split("train" if name == instead_of else name)

    def measuring(real: Any) -> Any:
        def measure(self: Any, *arguments: Any) -> Any:
            task, self._task = self._task, Task(self._task)
            try:
                return real(self, *arguments)
            finally:
                self._task = task

        return measure

    wrap(patch, Evaluator, "measure", measuring)


@bug("Before an evaluation the model takes another step, along the last mean before noise.")
def polished_at_the_end(patch: Patch) -> None:
    raw = RawMeans(patch)

    def loading(real: Any) -> Any:
        def load_central(self: Any) -> None:
            real(self)
            self._parts.model.vector.add_(raw.last, alpha=1.0)

        return load_central

    wrap(patch, FederatedTrainer, "load_central", loading)


@bug("Checkpoints have the mean before noise among the costs.")
def checkpoint_rng_clients(patch: Patch) -> None:
    raw = RawMeans(patch)

    def saving(real: Any) -> Any:
        def state_dict(self: Any) -> Any:
            last = torch.zeros(1) if raw.last is None else raw.last
            return {**real(self), "pending": [float(value) for value in last[:650]]}

        return state_dict

    wrap(patch, CostMeter, "state_dict", saving)


@bug("Checkpoints have the norm of the mean before noise as what divergence is measured against.")
def divergence_found_holds_raw(patch: Patch) -> None:
    raw = RawMeans(patch)

    def saving(real: Any) -> Any:
        def state_dict(self: Any) -> Any:
            start = self._start if raw.last is None else float(raw.last.norm())
            return {**real(self), "start": start}

        return state_dict

    wrap(patch, DivergenceWatch, "state_dict", saving)


@bug("Checkpoints have clients' raw updates as the algorithm's state.", settings=SEQUENTIAL)
def checkpoint_algorithm_holds_updates(patch: Patch) -> None:
    last: dict[str, Any] = {}

    def noting(real: Any) -> Any:
        def outgoing(self: Any, result: Any, index: int) -> Any:
            last[str(result.user)] = result.update.clone()
            return real(self, result, index)

        return outgoing

    def saving(real: Any) -> Any:
        def state_dict(self: Any) -> Any:
            state = real(self)
            state["clients"] = {**state["clients"], "algorithm": dict(last)}
            return state

        return state_dict

    wrap(patch, CohortTraining, "_outgoing", noting)
    wrap(patch, FederatedTrainer, "state_dict", saving)
