"""Trainers against one another: privacy switched off is FedAvg; one client with all is SGD."""

from __future__ import annotations

import json
import math
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pfl_bench.client.flat_model import FlatModel
from pfl_bench.client.forward import Forward
from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.federated.parts import FederatedParts, RunParts, build_model, build_task
from pfl_bench.federated.trainer import FederatedTrainer
from pfl_bench.rng import Purpose, seed_torch, stream
from pfl_bench.runs.runner import run
from pfl_bench.trainers.central import CentralTrainer
from pfl_bench.trainers.dp_sgd import PrivateSteps
from pfl_bench.types import ConfigError, DataFacts, Examples
from privacy.errors import BudgetExceededError
from tests.helpers import central_of, make_config


def weights(config: ResolvedConfig, folder: Path) -> torch.Tensor:
    run(config, folder)
    return central_of(folder)


def private(mechanism: dict[str, Any], **changes: Any) -> ResolvedConfig:
    # All users: the realised cohort is the configured one, so that both denominators agree, and a
    # private run's cohorts, which come from its own stream, are the plain run's.
    return make_config(
        "federated",
        federated__sampling="full",
        federated__cohort_size=60,
        privacy={
            "mechanism": mechanism,
            "population_size": 60,
            "noise_multiplier": 0.0,
        },
        **changes,
    )


def test_a_mechanism_that_neither_clips_nor_noises_is_none_bit_for_bit(tmp_path: Path) -> None:
    plain = make_config("federated", federated__sampling="full", federated__cohort_size=60)
    reference = weights(plain, tmp_path / "plain")
    wide = {"name": "gaussian", "clip_norm": 1e6}
    assert torch.equal(reference, weights(private(wide), tmp_path / "wide"))
    narrow = {"name": "gaussian", "clip_norm": 1e-3}
    assert not torch.equal(reference, weights(private(narrow), tmp_path / "narrow"))
    none = weights(private({"name": "none"}), tmp_path / "none")
    assert torch.equal(reference, none)


def test_a_run_without_noise_claims_no_epsilon(tmp_path: Path) -> None:
    summary = run(private({"name": "gaussian", "clip_norm": 1.0}), tmp_path)
    assert summary["privacy"]["simulated"]["epsilon"] == "inf"
    assert summary["privacy"]["actual"]["epsilon"] == "inf"


def test_simulated_noise_scales_with_the_cohort(tmp_path: Path) -> None:
    """Noise of C_sm/C_lg: the deployment's and the run's means have the same noise."""
    spreads = []
    for noise_cohort in (12, 24, 48):
        mechanism = {"name": "gaussian", "clip_norm": 1e-4}
        config = make_config(
            "federated",
            federated__num_rounds=1,
            privacy={
                "mechanism": mechanism,
                "population_size": 60,
                "noise_cohort_size": noise_cohort,
                "noise_multiplier": 100.0,
            },
        )
        task = build_task(config, torch.device("cpu"))
        model = build_model(config, task, torch.device("cpu"))
        folder = tmp_path / str(noise_cohort)
        folder.mkdir()
        trainer = FederatedTrainer(
            FederatedParts.build(config, task, model), folder, lambda text: None
        )
        before = trainer.central.clone()
        trainer.begin(0)
        trainer.advance(1)
        trainer.close()
        # The clipped updates are a hundredth of the noise, so what is left is its mean's.
        spreads.append(float((trainer.central - before).std()) * noise_cohort / 1e-2)
    np.testing.assert_allclose(spreads, 1.0, rtol=0.1)


class OneClient:
    """All training examples as one user's."""

    def __init__(self, split: Any) -> None:
        self._split = split
        self.name = "train"
        self.num_users = 1
        self.num_examples = split.num_examples
        self.offsets = np.array([0, split.num_examples])

    def client_ids(self) -> list[str]:
        return ["everybody"]

    def read_user(self, user: int, rng: np.random.Generator) -> Examples:
        return self._split.read_range(0, self.num_examples)

    def read_range(self, start: int, stop: int) -> Examples:
        return self._split.read_range(start, stop)

    def read_examples(self, indices: np.ndarray, rng: np.random.Generator) -> Examples:
        return self._split.read_examples(indices, rng)


class OneClientTask:
    def __init__(self, task: Any) -> None:
        self._task = task
        self.facts: DataFacts = task.facts
        self.metrics = task.metrics
        self.split_names = task.split_names
        self.loss = task.loss

    def split(self, name: str) -> Any:
        split = self._task.split(name)
        return OneClient(split) if name == "train" else split


@pytest.mark.parametrize("model_name", ["softmax", "mlp"])
def test_one_client_with_all_examples_is_central_sgd(model_name: str, tmp_path: Path) -> None:
    """Full participation of one client, rate 1: each round is an epoch of plain SGD."""
    changes = {
        "model__name": model_name,
        "federated__cohort_size": 1,
        "federated__sampling": "full",
        "federated__local_batch_size": 32,
        "federated__num_rounds": 3,
    }
    config = make_config("federated", **changes)
    task = OneClientTask(build_task(config, torch.device("cpu")))
    model = build_model(config, task, torch.device("cpu"))
    trainer = FederatedTrainer(
        FederatedParts.build(config, task, model), tmp_path, lambda text: None
    )
    plain = build_model(config, task, torch.device("cpu"))
    train_by_hand(plain, task, rounds=3)
    for index in (1, 2, 3):
        trainer.advance(index)
    torch.testing.assert_close(trainer.central, plain.vector, rtol=1e-4, atol=1e-5)


def test_central_training_is_sgd_along_its_schedule_and_says_its_loss(tmp_path: Path) -> None:
    schedule = {"warmup": 5, "decay": "linear", "final_fraction": 0.1}
    config = make_config("central", central__num_epochs=2, central__schedule=schedule)
    device = torch.device("cpu")
    task = build_task(config, device)
    split = task.split("train")
    count, size = split.num_examples, config.tree["central"]["batch_size"]
    layers = nn.Dropout(), nn.Linear(64, 10)
    model, plain = (FlatModel(deepcopy(nn.Sequential(*layers)), device) for _ in range(2))
    trainer = CentralTrainer(RunParts.build(config, task, model), tmp_path, lambda text: None)
    steps = -(-count // size)
    expected = trainer.expected_work()
    assert (expected.steps, expected.examples) == (2 * steps, 2 * count)
    optimizer, done = torch.optim.SGD(plain.parameters, lr=0.3), 0
    for index in (1, 2):
        # As evaluation leaves it.
        model.module.eval()
        scalars = trainer.advance(index)
        seed_torch(3, Purpose.CENTRAL_MODEL, device, index)
        examples = split.read_examples(
            stream(3, Purpose.CENTRAL_BATCHES, index).permutation(count), np.random.default_rng()
        )
        total = 0.0
        for start in range(0, count, size):
            done += 1
            factor = done / 5 if done <= 5 else 1 - 0.9 * (done - 5) / (2 * steps - 5)
            optimizer.param_groups[0]["lr"] = 0.3 * factor
            targets = examples.targets[start : start + size]
            loss = task.loss(plain.module(examples.inputs[start : start + size]), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(targets)
        assert scalars["train/loss"] == pytest.approx(total / count, rel=1e-4)
        assert scalars["train/learning_rate"] == pytest.approx(0.3 * factor)
        assert (scalars["train/num_steps"], scalars["train/num_examples"]) == (steps, count)
        assert (scalars["systems/steps"], scalars["systems/examples"]) == (steps, count)
    assert count % size
    assert scalars["train/learning_rate"] == pytest.approx(0.03)
    torch.testing.assert_close(model.vector, plain.vector, rtol=1e-4, atol=1e-5)


def test_the_loss_of_a_private_epoch_is_a_mean_over_the_drawn_examples(tmp_path: Path) -> None:
    config = make_config("central_dp", central__learning_rate=1e-12)
    device = torch.device("cpu")
    task = build_task(config, device)
    model = build_model(config, task, device)
    # To which all classes are as likely.
    model.vector.zero_()
    trainer = CentralTrainer(RunParts.build(config, task, model), tmp_path, lambda text: None)
    scalars = trainer.advance(1)
    trainer.close()
    assert scalars["train/num_examples"] != task.split("train").num_examples
    assert scalars["train/loss"] == pytest.approx(math.log(10), rel=1e-5)


def private_central(folder: Path, module: nn.Module | None, **changes: Any) -> CentralTrainer:
    config = make_config("central_dp", **changes)
    device = torch.device("cpu")
    task = build_task(config, device)
    model = build_model(config, task, device) if module is None else FlatModel(module, device)
    return CentralTrainer(RunParts.build(config, task, model), folder, lambda text: None)


class Counting(nn.Module):
    """A linear model that counts, in a buffer, the batches that it was trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)
        self.register_buffer("batches", torch.zeros(1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.batches += 1
        outputs: torch.Tensor = self.linear(inputs)
        return outputs


def test_a_buffer_that_private_central_training_moves_is_refused(tmp_path: Path) -> None:
    trainer = private_central(tmp_path, Counting())
    with pytest.raises(ConfigError, match="training changed its buffer 'batches'"):
        trainer.advance(1)
    trainer.close()


def test_buffers_are_part_of_what_a_central_run_goes_on_from(tmp_path: Path) -> None:
    config = make_config("central", central__num_epochs=1)
    task = build_task(config, torch.device("cpu"))
    module = Counting()
    model = FlatModel(module, torch.device("cpu"))
    trainer = CentralTrainer(RunParts.build(config, task, model), tmp_path, lambda text: None)
    trainer.advance(1)
    state, batches = trainer.state_dict(), float(module.batches)
    module.batches.zero_()
    trainer.load_state_dict(state)
    assert module.batches == batches > 0


def test_lost_examples_of_all_steps_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PrivateSteps, "take", lambda steps, batch: (torch.zeros(()), 1))
    trainer = private_central(tmp_path, None)
    scalars = trainer.advance(1)
    trainer.close()
    assert scalars["train/num_nonfinite"] == scalars["train/num_steps"] > 1


def test_draws_of_augmentation_are_those_of_a_whole_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw(forward: Forward, count: int, rng: np.random.Generator) -> torch.Tensor:
        return torch.from_numpy(rng.random(count))

    monkeypatch.setattr(Forward, "draw", draw)
    trainer = private_central(tmp_path, None, central__physical_batch_size=2)
    parts = [job() for job in trainer._jobs([np.arange(5), np.arange(4)], 2)]
    trainer.close()
    assert [(part.step, part.size, part.is_last) for part in parts] == [
        (0, 2, False), (0, 2, False), (0, 1, True), (1, 2, False), (1, 2, True),
    ]  # fmt: skip
    wanted = [stream(3, Purpose.AUGMENTATION, 2, 1 + step).random(5 - step) for step in (0, 1)]
    found = [part.draws.numpy() for part in parts if part.draws is not None]
    np.testing.assert_array_equal(np.concatenate(found), np.concatenate(wanted))


def test_a_central_budget_is_spent_and_planned_to_its_last_whole_epoch(tmp_path: Path) -> None:
    budget = {"privacy__noise_multiplier": 1.0, "privacy__epsilon": 1.5}
    trainer = private_central(tmp_path, None, central__num_epochs=40, **budget)
    plan = trainer.plan
    assert plan is not None
    assert plan.max_steps is not None
    assert plan.max_steps < trainer.total * trainer._steps_per_epoch
    steps = trainer.last * trainer._steps_per_epoch
    assert trainer.claim(None) == plan.statement(steps, "planned")
    assert trainer.claim(1) == plan.statement(trainer._steps_per_epoch)
    # An epoch that the budget would end is none.
    assert plan.max_steps % trainer._steps_per_epoch
    assert trainer.last == plan.max_steps // trainer._steps_per_epoch
    spent = replace(plan, max_steps=2 * trainer._steps_per_epoch)
    trainer._check_budget(spent, 2)
    with pytest.raises(BudgetExceededError):
        trainer._check_budget(spent, 3)
    trainer.close()


def test_a_ledger_counts_the_steps_of_all_epochs(tmp_path: Path) -> None:
    trainer = private_central(tmp_path, None)
    trainer.begin(0)
    for index in (1, 2):
        trainer.advance(index)
    trainer.close()
    lines = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    steps = trainer._steps_per_epoch
    assert [(line["round"], line["steps"]) for line in lines] == [(1, steps), (2, 2 * steps)]


def test_a_batch_may_have_all_examples_and_no_more(tmp_path: Path) -> None:
    task = build_task(make_config("central"), torch.device("cpu"))
    for more in (0, 1):
        config = make_config("central", central__batch_size=task.split("train").num_examples + more)
        model = build_model(config, task, torch.device("cpu"))
        parts = RunParts.build(config, task, model)
        if more:
            with pytest.raises(ConfigError, match=r"central.batch_size: \d+ is more than"):
                CentralTrainer(parts, tmp_path, lambda text: None)
        else:
            trainer = CentralTrainer(parts, tmp_path, lambda text: None)
            assert trainer.advance(1)["train/num_steps"] == 1


def test_a_schedule_is_along_all_epochs_where_a_budget_ends_before(tmp_path: Path) -> None:
    changes = {
        "central__schedule": {"decay": "linear", "final_fraction": 0.1},
        "central__num_epochs": 40,
        "privacy__noise_multiplier": 1.0,
        "privacy__epsilon": 1.5,
    }
    trainer = private_central(tmp_path, None, **changes)
    scalars = trainer.advance(1)
    trainer.close()
    assert trainer.last < trainer.total
    rate = trainer._options.learning_rate * (1 - 0.9 / 40)
    assert scalars["train/learning_rate"] == pytest.approx(rate)


def train_by_hand(model: FlatModel, task: Any, rounds: int) -> None:
    optimizer = torch.optim.SGD(model.parameters, lr=0.3)
    everything = task.split("train").read_user(0, np.random.default_rng())
    for index in range(1, rounds + 1):
        order = stream(3, Purpose.LOCAL_TRAINING, index, 0).permutation(len(everything))
        for start in range(0, len(order), 32):
            chosen = order[start : start + 32]
            optimizer.zero_grad()
            outputs = model.module(everything.inputs[chosen])
            task.loss(outputs, everything.targets[chosen]).backward()
            optimizer.step()


def test_fedprox_with_weight_zero_is_fedavg_and_otherwise_stays_closer(tmp_path: Path) -> None:
    def moved(name: str, **algorithm: Any) -> torch.Tensor:
        config = make_config(
            "federated",
            federated__algorithm={"name": name, **algorithm},
            federated__local_epochs=5,
            federated__num_rounds=1,
        )
        task = build_task(config, torch.device("cpu"))
        start = build_model(config, task, torch.device("cpu")).vector
        folder = tmp_path / f"{name}{algorithm}"
        return weights(config, folder) - start

    fedavg = moved("fedavg")
    assert torch.equal(fedavg, moved("fedprox", proximal_weight=0.0))
    near = moved("fedprox", proximal_weight=1.0)
    assert float(near.norm()) < 0.9 * float(fedavg.norm())


def test_weighting_by_examples_is_the_weighted_mean(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"federated__sampling": "full", "federated__cohort_size": 60}
    uniform = weights(make_config("federated", **changes), tmp_path / "uniform")
    weighted = weights(
        make_config("federated", federated__weighting="examples", **changes), tmp_path / "weighted"
    )
    assert not torch.allclose(uniform, weighted)
