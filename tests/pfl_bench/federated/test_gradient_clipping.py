"""Clipping by the whole gradient's norm: what configurations may ask for, and what runs do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pfl_bench.client.flat_model import FlatModel
from pfl_bench.federated.parts import (
    FederatedParts,
    RunParts,
    build_algorithm,
    build_model,
    build_task,
)
from pfl_bench.federated.trainer import FederatedTrainer
from pfl_bench.rng import Purpose, stream
from pfl_bench.trainers.central import CentralTrainer
from pfl_bench.types import ConfigError, LocalTraining
from tests.helpers import make_config


@pytest.mark.parametrize(
    ("setting", "prefix"), [("federated", "federated__local_"), ("central", "central__")]
)
def test_the_two_clippings_exclude_each_other(setting: str, prefix: str) -> None:
    one, other = f"{prefix}gradient_clip_norm", f"{prefix}gradient_clip_global_norm"
    make_config(setting, **{one: 1.0})
    make_config(setting, **{other: 1.0})
    with pytest.raises(ConfigError, match=r"gradient_clip_global_norm \(2\).*give one of them"):
        make_config(setting, **{one: 1.0, other: 2.0})
    with pytest.raises(ConfigError, match="gradient_clip_global_norm"):
        make_config(setting, **{other: 0.0})


@pytest.mark.parametrize("name", ["gradient_clip_norm", "gradient_clip_global_norm"])
def test_example_level_privacy_clips_in_its_own_way(name: str) -> None:
    with pytest.raises(ConfigError, match=f"remove .*central.{name}"):
        make_config("central_dp", **{f"central__{name}": 1.0})


def train(folder: Path, **changes: Any) -> tuple[torch.Tensor, torch.Tensor, Any]:
    resolved = make_config("central", central__batch_size=32, central__num_epochs=1, **changes)
    task = build_task(resolved, torch.device("cpu"))
    model = build_model(resolved, task, torch.device("cpu"))
    before = model.vector.clone()
    trainer = CentralTrainer(RunParts.build(resolved, task, model), folder, lambda text: None)
    trainer.advance(1)
    return before, model.vector.clone(), task


@pytest.mark.parametrize("key", ["gradient_clip_norm", "gradient_clip_global_norm"])
@pytest.mark.parametrize("bound", [0.1, 100.0])
def test_central_training_clips_each_gradient_or_the_whole(
    key: str, bound: float, tmp_path: Path
) -> None:
    before, after, task = train(tmp_path, **{f"central__{key}": bound})
    split = task.split("train")
    rng = stream(3, Purpose.CENTRAL_BATCHES, 1)
    order = rng.permutation(split.num_examples)
    examples = split.read_examples(order, np.random.default_rng(0))
    vector = before.clone().requires_grad_()
    largest = 0.0
    for start in range(0, len(order), 32):
        inputs = examples.inputs[start : start + 32].flatten(1)
        weight, bias = vector[:640].view(10, 64), vector[640:]
        loss = functional.cross_entropy(
            functional.linear(inputs, weight, bias), examples.targets[start : start + 32]
        )
        (gradient,) = torch.autograd.grad(loss, vector)
        largest = max(largest, float(gradient.norm()))
        clipped = (gradient,) if "global" in key else (gradient[:640], gradient[640:])
        for part in clipped:
            part *= min(1.0, bound / float(part.norm()))
        vector = (vector - 0.3 * gradient).detach().requires_grad_()
    assert (largest > bound) == (bound < 1)
    torch.testing.assert_close(after, vector.detach(), rtol=1e-4, atol=1e-6)


def test_federated_clients_clip_the_whole_gradient(tmp_path: Path) -> None:
    norms = {}
    for bound in (None, 0.01):
        resolved = make_config(
            "federated",
            federated__local_batch_size=1000,
            federated__local_gradient_clip_global_norm=bound,
        )
        task = build_task(resolved, torch.device("cpu"))
        model = build_model(resolved, task, torch.device("cpu"))
        trainer = FederatedTrainer(
            FederatedParts.build(resolved, task, model), tmp_path, lambda text: None
        )
        norms[bound] = trainer.advance(1)["train/update_norm"]
    # One step a client, of 0.3 times a gradient that is 0.01 long: their mean is no longer.
    assert 0 < norms[0.01] <= 0.3 * 0.01 * 1.0001 < norms[None]


def test_every_local_setting_of_a_row_reaches_its_clients() -> None:
    settings: dict[str, Any] = {
        "local_epochs": 2,
        "local_steps": 5,
        "local_batch_size": 7,
        "local_learning_rate": 0.2,
        "local_batches": "across_epochs",
    }
    for name in ("gradient_clip_norm", "gradient_clip_global_norm"):
        changes = {f"federated__{key}": value for key, value in settings.items()}
        resolved = make_config("federated", **changes, **{f"federated__local_{name}": 0.3})
        assert resolved.config.federated is not None
        local = build_algorithm(resolved, resolved.config.federated).local_training
        wanted: dict[str, Any] = {name: 0.3}
        assert local == LocalTraining(2, 7, 0.2, max_steps=5, batches_across_epochs=True, **wanted)


def test_a_federated_run_clips_the_whole_gradient_of_each_local_step(tmp_path: Path) -> None:
    bound, rate = 1e-3, 0.3
    moves = {}
    for value in (None, bound):
        resolved = make_config(
            "federated", federated__local_gradient_clip_global_norm=value, federated__local_steps=1
        )
        task = build_task(resolved, torch.device("cpu"))
        model = build_model(resolved, task, torch.device("cpu"))
        before = model.vector.clone()
        trainer = FederatedTrainer(
            FederatedParts.build(resolved, task, model), tmp_path, lambda text: None
        )
        scalars = trainer.advance(1)
        moves[value] = float((trainer.central - before).norm())
        assert scalars["train/num_steps"] == scalars["train/cohort_size"]
    # A mean of steps of this norm is no longer than one of them.
    assert 0 < moves[bound] <= rate * bound * 1.001
    assert moves[None] > 10 * moves[bound]


class Words(nn.Module):
    """Takes the pixels' brightness for words, so that its gradients can be sparse."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(20, 10, sparse=sparse)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.embedding((inputs.flatten(1) * 16).long()).mean(dim=1)
        return logits


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw", "adagrad", "yogi"])
@pytest.mark.parametrize("clipping", ["gradient_clip_norm", "gradient_clip_global_norm"])
def test_every_optimizer_takes_sparse_gradients(name: str, clipping: str, tmp_path: Path) -> None:
    changes = {"central__optimizer": {"name": name}, f"central__{clipping}": 0.1}
    resolved = make_config("central", **changes)
    task = build_task(resolved, torch.device("cpu"))
    ends = []
    for sparse in (False, True):
        model = FlatModel(Words(sparse), torch.device("cpu"))
        before = model.vector.clone()
        CentralTrainer(RunParts.build(resolved, task, model), tmp_path, lambda text: None).advance(
            1
        )
        assert not torch.equal(model.vector, before)
        ends.append(model.vector)
    # Yogi goes by the sign of a difference that may be a rounding error.
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-3, atol=1e-4)
