"""Transforms, precision, layout and gradient clipping: in the engine, the trainer, evaluation."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pfl_bench.client.engines.sequential import Options, SequentialEngine
from pfl_bench.client.flat_model import FlatModel, clip_each
from pfl_bench.client.forward import Forward
from pfl_bench.client.prefetch import prefetch
from pfl_bench.config.loading import resolve
from pfl_bench.federated.parts import RunParts, build_model, build_task
from pfl_bench.rng import Purpose, stream
from pfl_bench.runs.runner import run
from pfl_bench.trainers.central import CentralTrainer
from pfl_bench.types import ConfigError, LocalTraining, Task
from tests.helpers import make_config, make_tree, seed_of

CPU = torch.device("cpu")
LOCAL = LocalTraining(epochs=2, batch_size=3, learning_rate=0.1)


class Shift:
    """A transform whose effect is easy to see: adds the drawn number, or 100 for evaluation."""

    def draw(self, count: int, rng: np.random.Generator) -> Tensor:
        return torch.from_numpy(rng.integers(0, 5, (count, 1)))

    def __call__(self, inputs: Tensor, draws: Tensor | None) -> Tensor:
        return inputs + (100.0 if draws is None else draws.float())


class ShiftedTask:
    """The digits, each batch shifted."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.facts, self.metrics, self.split_names = task.facts, task.metrics, task.split_names
        self.loss, self.split = task.loss, task.split
        self.transform = Shift()


def digits() -> Task:
    return build_task(make_config("federated"), CPU)


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(64, 10)


def train(task: Any, local: LocalTraining, users: list[int], **options: Any) -> dict[int, Tensor]:
    model = FlatModel(linear(), CPU)
    forward = Forward(model.module, task, CPU, **options)
    engine = SequentialEngine(Options(), model, task.split("train"), forward, local, seed=7)
    results = engine.train(np.array(users), 5, model.vector.clone())
    return {result.user: result.update.clone() for result in results}


def by_hand(task: Any, user: int, local: LocalTraining) -> Tensor:
    """Local SGD in plain PyTorch, with shifts and Keras-like clipping by tensor."""
    module = linear()
    start = nn.utils.parameters_to_vector(module.parameters()).detach().clone()
    optimizer = torch.optim.SGD(module.parameters(), lr=local.learning_rate)
    examples = task.split("train").read_user(user, np.random.default_rng())
    rng = stream(7, Purpose.LOCAL_TRAINING, 5, user)
    for _ in range(local.epochs):
        order = rng.permutation(len(examples))
        shifts = rng.integers(0, 5, (len(examples), 1)) if hasattr(task, "transform") else None
        for first in range(0, len(order), local.batch_size):
            chosen = order[first : first + local.batch_size]
            inputs = examples.inputs[chosen]
            if shifts is not None:
                inputs = inputs + torch.from_numpy(shifts[first : first + local.batch_size])
            optimizer.zero_grad()
            functional.cross_entropy(module(inputs.float()), examples.targets[chosen]).backward()
            if local.gradient_clip_norm is not None:
                for parameter in module.parameters():
                    nn.utils.clip_grad_norm_([parameter], local.gradient_clip_norm)
            optimizer.step()
    return nn.utils.parameters_to_vector(module.parameters()).detach() - start


def test_each_batch_is_transformed_with_the_client_s_own_draws() -> None:
    task = ShiftedTask(digits())
    for user, update in train(task, LOCAL, [0, 3, 11]).items():
        torch.testing.assert_close(update, by_hand(task, user, LOCAL), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bound", [0.05, 0.5, 1e6])
def test_gradients_are_clipped_tensor_by_tensor(bound: float) -> None:
    local = LocalTraining(epochs=2, batch_size=3, learning_rate=0.1, gradient_clip_norm=bound)
    for user, update in train(digits(), local, [0, 3]).items():
        torch.testing.assert_close(update, by_hand(digits(), user, local), rtol=1e-4, atol=1e-6)


def test_clipping_bounds_each_tensor_alone() -> None:
    large, small = torch.full((4,), 3.0), torch.full((9,), 0.1)
    first, second = clip_each((large, small), 1.0)
    assert float(first.norm()) == pytest.approx(1.0)
    assert torch.equal(second, small)
    assert float(large.norm()) == 6.0
    # The last one's elements are finite, but its norm is not.
    for value in ([math.nan, 1.0], [math.inf, 1.0], [3e38, 3e38]):
        broken, second = clip_each((torch.tensor(value), small), 1.0)
        assert broken.isnan().all()
        assert torch.equal(second, small)
    zero, _ = clip_each((torch.zeros(3), small), 1.0)
    assert not zero.any()


def test_evaluation_uses_the_transform_without_draws() -> None:
    task = ShiftedTask(digits())
    inputs = torch.zeros(2, 64)
    module = linear()
    outputs = Forward(module, task, CPU).outputs(inputs)
    torch.testing.assert_close(outputs, module(inputs + 100.0))


def test_mixed_precision_is_close_and_keeps_float32_outside() -> None:
    full = train(digits(), LOCAL, [3])[3]
    mixed = train(digits(), LOCAL, [3], precision="bfloat16")[3]
    assert mixed.dtype == torch.float32
    assert not torch.equal(full, mixed)
    assert float((full - mixed).norm()) < 0.05 * float(full.norm())


def test_channels_last_is_a_matter_of_layout_alone() -> None:
    seen: list[Tensor] = []

    class Look(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(x)
            return x

    images = torch.arange(2 * 3 * 4 * 4.0).view(2, 3, 4, 4)
    out = Forward(Look(), digits(), CPU, channels_last=True).outputs(images)
    assert torch.equal(out, images)
    assert seen[0].is_contiguous(memory_format=torch.channels_last)
    rows = torch.zeros(2, 5)
    Forward(Look(), digits(), CPU, channels_last=True).outputs(rows)
    assert seen[1] is rows


@pytest.mark.parametrize("setting", ["central", "central_dp"])
@pytest.mark.parametrize("workers", [1, 3])
def test_central_batches_read_ahead_change_nothing(
    setting: str, workers: int, tmp_path: Path
) -> None:
    def vector(name: str, data_workers: int) -> Tensor:
        config = make_config(setting, central__data_workers=data_workers)
        task = ShiftedTask(build_task(config, CPU))
        model = build_model(config, task, CPU)
        folder = tmp_path / name
        folder.mkdir()
        trainer = CentralTrainer(RunParts.build(config, task, model), folder, lambda text: None)
        for epoch in (1, 2):
            trainer.advance(epoch)
        return model.vector.clone()

    assert torch.equal(vector("line", 0), vector("ahead", workers))


def test_central_gradient_clipping_bounds_the_step(tmp_path: Path) -> None:
    config = make_config(
        "central", central__gradient_clip_norm=1e-3, central__num_epochs=1, central__batch_size=1000
    )
    task = build_task(config, CPU)
    model = build_model(config, task, CPU)
    before = [p.detach().clone() for p in model.parameters]
    trainer = CentralTrainer(RunParts.build(config, task, model), tmp_path, lambda text: None)
    trainer.advance(1)
    for old, new in zip(before, model.slices, strict=True):
        steps = -(-trainer._split.num_examples // 1000)
        assert 0 < float((new - old).norm()) <= steps * 0.3 * 1e-3 * (1 + 1e-4)


@pytest.mark.parametrize(
    "changes", [{"precision": "bfloat16"}, {"central__gradient_clip_norm": 1.0}]
)
def test_example_level_dp_refuses_what_it_would_not_bound(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="float32"):
        resolve(make_tree("central_dp", **changes), Path("test.yaml"), ())


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_reading_ahead_keeps_the_order_and_is_bounded(workers: int) -> None:
    started: list[int] = []

    def jobs() -> Any:
        for number in range(40):
            started.append(number)
            yield lambda number=number: number

    for count, result in enumerate(prefetch(jobs(), workers)):
        assert result == count
        assert len(started) <= count + 2 * workers + 2


def test_an_error_while_reading_ahead_reaches_the_caller() -> None:
    def fails() -> int:
        raise OSError("the disk is gone")

    results = prefetch([lambda: 1, fails, lambda: 3], 2)
    assert next(results) == 1
    with pytest.raises(OSError, match="disk is gone"):
        next(results)


def test_a_run_goes_on_with_the_model_that_it_began_with_alone(tmp_path: Path) -> None:
    """The initial model's digest, frozen weights included, is part of the run."""
    first, second = (FlatModel(linear(), CPU).initial_digest for _ in range(2))
    assert first == second
    module = linear()
    module.register_buffer("statistics", torch.zeros(1))
    assert FlatModel(module, CPU).initial_digest != first
    frozen = linear()
    frozen.bias.requires_grad_(False)
    with torch.no_grad():
        frozen.bias[0] += 1
    assert FlatModel(frozen, CPU).initial_digest != first


def test_the_selection_is_in_the_summary_and_the_statement(tmp_path: Path) -> None:
    config = make_config("private_federated", evaluation__select_best="val/loss")
    summary = run(config, tmp_path / "run")
    selection = summary["selection"]
    assert selection["metric"] == "val/loss"
    assert selection["index"] == summary["selected"]
    notes = " ".join(summary["privacy"]["notes"])
    assert "best val/loss" in notes
    assert "outside" in notes
    plain = run(make_config("private_federated"), tmp_path / "plain")
    assert plain["selection"] is None
    assert not any("best" in note for note in plain["privacy"]["notes"])


def convolutions() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False),
        nn.ReLU(),
        nn.Conv2d(8, 4, 1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )


def test_kernels_with_channels_last_train_to_the_same_model() -> None:
    """The layout changes the order within ``vector`` and nothing that the model computes."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(6, 3, 4, 4, generator=generator)
    results = []
    for channels_last in (False, True):
        model = FlatModel(convolutions(), CPU, channels_last)
        outputs = Forward(model.module, digits(), CPU, channels_last=channels_last).outputs(images)
        gradients = torch.autograd.grad(outputs.square().mean(), model.parameters)
        torch._foreach_add_(model.slices, gradients, alpha=-0.1)
        results.append(model)
    plain, last = results
    assert last.module[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert not torch.equal(plain.vector, last.vector)
    for one, other in zip(plain.parameters, last.parameters, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    assert plain.initial_digest == last.initial_digest
    torch.testing.assert_close(plain.vector.norm(), last.vector.norm())
    # Views into one vector, in either layout: what is written to it, the model computes with.
    last.vector.zero_()
    assert not any(p.any() for p in last.parameters)
    last.vector.copy_(torch.arange(float(last.num_parameters)))
    numbers = torch.cat([p.detach().reshape(-1) for p in last.parameters])
    assert torch.equal(numbers.sort().values, last.vector)


def test_batches_run_across_epochs_as_they_do_in_tensorflow() -> None:
    """ceil(epochs * n / batch) steps, the last one smaller; each epoch in an order of its own."""
    task = ShiftedTask(digits())
    local = LocalTraining(epochs=3, batch_size=4, learning_rate=0.1, batches_across_epochs=True)
    split = task.split("train")
    for user, update in train(task, local, [0, 3, 11]).items():
        examples = split.read_user(user, np.random.default_rng())
        rng = stream(7, Purpose.LOCAL_TRAINING, 5, user)
        passes = [
            (rng.permutation(len(examples)), rng.integers(0, 5, (len(examples), 1)))
            for _ in range(3)
        ]
        order = np.concatenate([order for order, _ in passes])
        inputs = examples.inputs[order] + torch.from_numpy(np.concatenate([d for _, d in passes]))
        module = linear()
        start = nn.utils.parameters_to_vector(module.parameters()).detach().clone()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        steps = 0
        for first in range(0, len(order), 4):
            optimizer.zero_grad()
            outputs = module(inputs[first : first + 4].float())
            functional.cross_entropy(outputs, examples.targets[order[first : first + 4]]).backward()
            optimizer.step()
            steps += 1
        by_hand = nn.utils.parameters_to_vector(module.parameters()).detach() - start
        torch.testing.assert_close(update, by_hand, rtol=1e-4, atol=1e-5)
        assert steps == -(-3 * len(examples) // 4)


def test_draws_of_a_private_step_do_not_depend_on_the_memory(tmp_path: Path) -> None:
    """One draw a step, split with its pieces: the same augmentation for any physical batch."""
    seen: dict[int, list[Tensor]] = {}

    class Recorded(Shift):
        def draw(self, count: int, rng: np.random.Generator) -> Tensor:
            draws = super().draw(count, rng)
            seen[size].append(draws)
            return draws

    for size in (3, 64):
        seen[size] = []
        config = make_config("central_dp", central__physical_batch_size=size)
        task = ShiftedTask(build_task(config, CPU))
        task.transform = Recorded()
        model = build_model(config, task, CPU)
        folder = tmp_path / str(size)
        folder.mkdir()
        trainer = CentralTrainer(RunParts.build(config, task, model), folder, lambda text: None)
        # Batches are private, and so differ between the two; hold them fixed to compare the draws.
        trainer._batch_seed = 1
        trainer.advance(1)
    assert len(seen[3]) == len(seen[64])
    assert all(torch.equal(a, b) for a, b in zip(seen[3], seen[64], strict=True))


def test_whatever_changes_a_release_changes_the_private_seed() -> None:
    """Runs that share noise and release other things would give the difference away."""
    config = make_config("central_dp")
    other = make_config("central_dp", central__physical_batch_size=7)
    seeds = {
        seed_of(config),
        seed_of(other),
        seed_of(config, data="other"),
        seed_of(config, model="other"),
        seed_of(config, device="mps"),
        seed_of(config, engine="vectorized"),
        seed_of(make_config("central_dp", precision="float32", channels_last=True)),
    }
    assert len(seeds) == 7
    moved = copy.deepcopy(config.tree)
    moved["task"]["data"] = "elsewhere/data.h5"
    moved["model"]["weights"] = "elsewhere/weights.pth"
    assert seed_of(replace(config, tree=moved)) in seeds
    assert "elsewhere/data.h5" in str(moved)
    ahead = make_config("central_dp", central__data_workers=3)
    assert seed_of(ahead) in seeds


def test_artificial_users_are_named_in_the_statement(tmp_path: Path) -> None:
    summary = run(make_config("private_federated"), tmp_path / "run")
    assert any("artificial" in note for note in summary["privacy"]["notes"])


def test_a_metric_that_is_not_measured_is_refused_before_training(tmp_path: Path) -> None:
    config = make_config("private_federated", evaluation__select_best="val/acuracy")
    with pytest.raises(ConfigError, match="did you mean 'val/accuracy'"):
        run(config, tmp_path / "run")
    assert not (tmp_path / "run" / "ledger.jsonl").exists()
