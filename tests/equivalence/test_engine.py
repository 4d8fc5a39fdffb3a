"""The engine against plain PyTorch, and against itself in another order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pfl_bench.client.engines.sequential import Options, SequentialEngine
from pfl_bench.client.flat_model import FlatModel
from pfl_bench.client.forward import Forward
from pfl_bench.client.model_checks import batchnorm_layers
from pfl_bench.federated.parts import build_task
from pfl_bench.rng import Purpose, stream
from pfl_bench.types import LocalTraining
from tests.helpers import make_config

LOCAL = LocalTraining(epochs=2, batch_size=3, learning_rate=0.1)


def make_module(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 10))


def make_engine(
    local: LocalTraining = LOCAL, dropout: float = 0.0, **options: Any
) -> tuple[SequentialEngine, FlatModel, Any]:
    task = build_task(make_config("federated"), torch.device("cpu"))
    model = FlatModel(make_module(dropout), torch.device("cpu"))
    split = task.split("train")
    forward = Forward(model.module, task, model.device)
    engine = SequentialEngine(Options(**options), model, split, forward, local, seed=7)
    return engine, model, split


def updates(engine: SequentialEngine, model: FlatModel, users: list[int]) -> dict[int, Tensor]:
    central = model.vector.clone()
    results = engine.train(np.array(users), 5, central)
    return {result.user: result.update.clone() for result in results}


def by_hand(split: Any, user: int, local: LocalTraining) -> Tensor:
    """What one client does, with torch.optim and nothing of ours but the stream's name."""
    module = make_module()
    start = nn.utils.parameters_to_vector(module.parameters()).detach().clone()
    optimizer = torch.optim.SGD(module.parameters(), lr=local.learning_rate)
    examples = split.read_user(user, np.random.default_rng())
    rng = stream(7, Purpose.LOCAL_TRAINING, 5, user)
    steps = 0
    for _ in range(local.epochs):
        order = rng.permutation(len(examples))
        for first in range(0, len(order), local.batch_size):
            if steps == local.max_steps:
                break
            chosen = order[first : first + local.batch_size]
            optimizer.zero_grad()
            outputs = module(examples.inputs[chosen])
            loss = functional.cross_entropy(outputs, examples.targets[chosen])
            if local.proximal_weight:
                now = nn.utils.parameters_to_vector(module.parameters())
                loss = loss + local.proximal_weight / 2 * (now - start).square().sum()
            loss.backward()
            optimizer.step()
            steps += 1
    return nn.utils.parameters_to_vector(module.parameters()).detach() - start


@pytest.mark.parametrize(
    "local",
    [
        LOCAL,
        LocalTraining(epochs=1, batch_size=100, learning_rate=0.3),
        LocalTraining(epochs=5, batch_size=2, learning_rate=0.1, max_steps=3),
        LocalTraining(epochs=3, batch_size=2, learning_rate=0.1, proximal_weight=0.7),
    ],
    ids=["epochs", "one_batch", "step_limit", "proximal"],
)
def test_a_client_does_what_plain_pytorch_does(local: LocalTraining) -> None:
    engine, model, split = make_engine(local)
    sizes = np.diff(split.offsets)
    users = [int(sizes.argmax()), int(sizes.argmin()), 11]
    for user, update in updates(engine, model, sorted(set(users))).items():
        torch.testing.assert_close(update, by_hand(split, user, local), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_neither_the_order_of_clients_nor_the_workers_matter(dropout: float, workers: int) -> None:
    users = list(range(20))
    engine, model, _ = make_engine(dropout=dropout)
    forward = updates(engine, model, users)
    engine, model, _ = make_engine(dropout=dropout, data_workers=workers)
    backward = updates(engine, model, users[::-1])
    assert forward.keys() == backward.keys()
    for user in users:
        assert torch.equal(forward[user], backward[user])


def test_a_client_draws_anew_each_round() -> None:
    engine, model, _ = make_engine(dropout=0.5)
    central = model.vector.clone()
    first, second = (
        next(iter(engine.train(np.array([3]), index, central))).update.clone() for index in (1, 2)
    )
    assert not torch.equal(first, second)


def test_the_result_counts_what_was_done() -> None:
    engine, model, split = make_engine()
    user = int(np.diff(split.offsets).argmax())
    (result,) = engine.train(np.array([user]), 1, model.vector.clone())
    size = int(np.diff(split.offsets)[user])
    assert result.num_examples == size
    assert result.num_steps == 2 * -(-size // 3)
    assert 0 < float(result.loss) < 10


def test_training_leaves_the_central_parameters_alone() -> None:
    engine, model, _ = make_engine()
    central = model.vector.clone()
    before = central.clone()
    list(engine.train(np.arange(5), 1, central))
    assert torch.equal(central, before)


def test_parameters_are_views_into_the_vector() -> None:
    module = make_module()
    before = nn.utils.parameters_to_vector(module.parameters()).detach().clone()
    model = FlatModel(module, torch.device("cpu"))
    assert torch.equal(model.vector, before)
    model.vector.zero_()
    assert all(not p.any() for p in module.parameters())


def test_a_model_without_float32_parameters_is_refused() -> None:
    with pytest.raises(ValueError, match="no trainable parameters"):
        FlatModel(nn.ReLU(), torch.device("cpu"))
    with pytest.raises(ValueError, match="float32"):
        FlatModel(nn.Linear(2, 2).double(), torch.device("cpu"))


def test_batchnorm_with_running_statistics_is_found() -> None:
    module = nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1), nn.GroupNorm(1, 1))
    assert batchnorm_layers(module) == ("1",)
    assert batchnorm_layers(nn.BatchNorm2d(1, track_running_stats=False)) == ()
