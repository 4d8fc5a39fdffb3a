"""Evaluation by fine-tuning: what each client adapts on, and that nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pfl_bench.client.flat_model import FlatModel
from pfl_bench.client.forward import Forward
from pfl_bench.config.sections import AdaptationOptions
from pfl_bench.evaluation.fine_tuning import FineTuning
from pfl_bench.federated.parts import build_forward, build_model, build_task
from pfl_bench.runs.runner import run
from pfl_bench.types import Examples
from tests.helpers import PRIVACY, central_of, make_config

CPU = torch.device("cpu")
OPTIONS = AdaptationOptions(num_steps=7, batch_size=2, learning_rate=0.5)


def tuner(
    options: AdaptationOptions = OPTIONS, seed: int = 1
) -> tuple[FineTuning, FlatModel, Any, Any]:
    config = make_config("federated")
    task = build_task(config, CPU)
    model = build_model(config, task, CPU)
    tuning = FineTuning(build_forward(config, task, model), model, options, seed)
    return tuning, model, task, task.split("val")


def test_the_order_of_clients_does_not_matter_and_seed_and_split_do() -> None:
    tuning, model, _, split = tuner()
    tuning.begin()
    users = range(split.num_users)
    kept = {u: (tuning.personalise(split, u), model.vector.clone()) for u in users}
    for user in reversed(users):
        rest = tuning.personalise(split, user)
        assert np.array_equal(rest, kept[user][0])
        assert torch.equal(model.vector, kept[user][1])
    other, _, _, _ = tuner(seed=2)
    other.begin()
    assert any(not np.array_equal(other.personalise(split, u), kept[u][0]) for u in users)
    # The same examples under another split's name are another draw.
    split.name = "other"
    assert any(not np.array_equal(tuning.personalise(split, u), kept[u][0]) for u in users)


@pytest.mark.parametrize("fraction", [0.01, 0.5, 0.99])
def test_a_client_adapts_on_its_fraction_and_is_tested_on_the_rest(fraction: float) -> None:
    options = OPTIONS.model_copy(update={"fraction": fraction})
    tuning, model, _, split = tuner(options)
    tuning.begin()
    start = model.vector.clone()
    for user, count in enumerate(np.diff(split.offsets).tolist()):
        rest = tuning.personalise(split, user)
        if count == 1:
            assert rest.tolist() == [0]
            assert torch.equal(model.vector, start)
            continue
        assert len(rest) == count - min(max(1, int(fraction * count)), count - 1)
        assert np.all(np.diff(rest) > 0)
        assert 0 <= rest[0] <= rest[-1] < count
        assert not torch.equal(model.vector, start)


def test_a_whole_part_is_whole_although_the_product_rounds_below_it() -> None:
    """The number 0.57 * 100 is 56.99999999999999."""
    tuning, _, _, split = tuner(OPTIONS.model_copy(update={"fraction": 0.57}))
    split.offsets = np.array([0, 100])
    split.read_range = lambda start, stop: Examples(torch.zeros(stop, 64), torch.zeros(stop).long())
    tuning.begin()
    assert len(tuning.personalise(split, 0)) == 43


def test_each_pass_has_an_order_of_its_own() -> None:
    class Seeing(Forward):
        def loss(self, inputs: Any, targets: Any, draws: Any) -> Any:
            seen.append(int(inputs[0, 0]))
            return super().loss(inputs, targets, draws)

    seen: list[int] = []
    _, model, task, split = tuner()
    split.offsets = np.array([0, 40])
    inputs = torch.arange(40.0).unsqueeze(1).repeat(1, 64)
    split.read_range = lambda start, stop: Examples(inputs, torch.zeros(40).long())
    options = AdaptationOptions(num_steps=40, batch_size=1, learning_rate=1e-9, fraction=0.5)
    tuning = FineTuning(Seeing(model.module, task, CPU), model, options, 1)
    tuning.begin()
    tuning.personalise(split, 0)
    first, second = seen[:20], seen[20:]
    assert sorted(first) == sorted(second) == sorted(set(seen))
    assert sorted(first) != first != second


def test_clients_of_one_size_draw_parts_of_their_own() -> None:
    tuning, _, _, split = tuner()
    split.offsets = np.array([0, 40, 80])
    split.read_range = lambda start, stop: Examples(torch.zeros(40, 64), torch.zeros(40).long())
    tuning.begin()
    first, second = (tuning.personalise(split, user) for user in (0, 1))
    assert not np.array_equal(first, second)


def test_the_tuned_model_is_that_of_plain_sgd_on_the_part() -> None:
    tuning, model, task, split = tuner(
        # One batch holds all of the part, so its order does not matter.
        OPTIONS.model_copy(update={"batch_size": 1000})
    )
    user = int(np.diff(split.offsets).argmax())
    first, stop = (int(end) for end in split.offsets[user : user + 2])
    start = model.vector.clone()
    tuning.begin()
    rest = tuning.personalise(split, user)
    tuned = model.vector.clone()
    part = np.setdiff1d(np.arange(stop - first), rest)
    assert len(part) == (stop - first) // 2
    examples = split.read_range(first, stop)
    model.vector.copy_(start)
    optimizer = torch.optim.SGD(model.parameters, lr=0.5)
    for _ in range(7):
        optimizer.zero_grad()
        task.loss(model.module(examples.inputs[part]), examples.targets[part]).backward()
        optimizer.step()
    torch.testing.assert_close(tuned, model.vector, rtol=1e-4, atol=1e-5)


def test_steps_are_counted_and_run_over_passes() -> None:
    class Counting(Forward):
        sizes: list[int]

        def loss(self, inputs: Any, targets: Any, draws: Any) -> Any:
            self.sizes.append(len(inputs))
            return super().loss(inputs, targets, draws)

    _, model, task, split = tuner()
    forward = Counting(model.module, task, CPU)
    forward.sizes = []
    tuning = FineTuning(forward, model, OPTIONS, 1)
    user = int(np.flatnonzero(np.diff(split.offsets) >= 6)[0])
    part = int(np.diff(split.offsets)[user]) // 2
    tuning.begin()
    with torch.no_grad():  # as evaluation may call it
        tuning.personalise(split, user)
    one_pass = [2] * (part // 2) + [1] * (part % 2)
    assert forward.sizes == (one_pass * 7)[:7]


def test_the_end_puts_everything_back_dropout_and_statistics_too() -> None:
    config = make_config("federated")
    task = build_task(config, CPU)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 10))
    model = FlatModel(module, CPU)
    module.eval()
    before, buffers = model.vector.clone(), model.buffers()
    options = AdaptationOptions(num_steps=3, batch_size=8, learning_rate=0.5, fraction=0.9)
    tuning = FineTuning(build_forward(config, task, model), model, options, 1)
    split = task.split("val")
    user = int(np.diff(split.offsets).argmax())
    with pytest.raises(RuntimeError, match="begin"):
        tuning.personalise(split, user)
    with model.kept():
        tuning.begin()
        tuning.personalise(split, user)
        moved, statistics = model.vector.clone(), model.buffers()
        assert not torch.equal(statistics["1.running_mean"], buffers["1.running_mean"])
        assert not module.training
        tuning.personalise(split, user)
        assert torch.equal(moved, model.vector)
    assert torch.equal(model.vector, before)
    assert all(torch.equal(model.buffers()[name], buffers[name]) for name in buffers)


def test_adapting_while_training_does_not_change_training_and_helps(tmp_path: Path) -> None:
    adaptation = {"num_steps": 20, "batch_size": 5, "learning_rate": 0.3}
    changes: dict[str, Any] = {"task__label_concentration": 0.1}
    plain = make_config("federated", **changes)
    adapted = make_config("federated", evaluation__adaptation=adaptation, **changes)
    accuracy, weights = [], []
    for name, config in (("plain", plain), ("adapted", adapted)):
        accuracy.append(run(config, tmp_path / name)["metrics"]["test/accuracy"])
        weights.append(central_of(tmp_path / name))
    assert torch.equal(weights[0], weights[1])
    # Users of few classes: what a user's own examples teach is worth much.
    assert accuracy[1] > accuracy[0] + 0.05


def test_a_private_run_may_be_evaluated_by_fine_tuning(tmp_path: Path) -> None:
    adaptation = {"num_steps": 2, "batch_size": 5, "learning_rate": 0.1}
    config = make_config("federated", privacy=PRIVACY, evaluation__adaptation=adaptation)
    assert run(config, tmp_path)["privacy"]["status"] == "final"
