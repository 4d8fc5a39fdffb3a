"""Minibatch SGD and Reptile against steps that are taken by hand, and what they refuse."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pfl_bench.client.engines.sequential import Options, SequentialEngine
from pfl_bench.client.forward import Forward
from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.federated.parts import FederatedParts, build_model, build_task
from pfl_bench.federated.trainer import FederatedTrainer
from pfl_bench.rng import Purpose, stream
from pfl_bench.runs.checkpoint import load_latest
from pfl_bench.runs.runner import run
from pfl_bench.types import ConfigError, LocalTraining
from tests.helpers import PRIVACY, make_config

CPU = torch.device("cpu")
ALL_USERS: dict[str, Any] = {"federated__sampling": "full", "federated__cohort_size": 60}


def minibatch(fraction: float, **changes: Any) -> ResolvedConfig:
    algorithm = {"name": "minibatch_sgd", "fraction": fraction}
    return make_config("federated", federated__algorithm=algorithm, **changes)


def one_round(config: ResolvedConfig, folder: Path) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """Weights before and after the first round, and the task."""
    task = build_task(config, CPU)
    model = build_model(config, task, CPU)
    before = model.vector.clone()
    trainer = FederatedTrainer(FederatedParts.build(config, task, model), folder, lambda text: None)
    trainer.advance(1)
    return before, trainer.central, task


def gradient(config: ResolvedConfig, task: Any, start: int, stop: int) -> torch.Tensor:
    """Of the mean loss of a range of training examples, at the initial model."""
    model = build_model(config, task, CPU)
    examples = task.split("train").read_range(start, stop)
    task.loss(model.module(examples.inputs), examples.targets).backward()
    return torch.cat([p.grad.reshape(-1) for p in model.parameters if p.grad is not None])


def test_with_all_examples_a_round_is_one_step_along_the_mean_gradient(tmp_path: Path) -> None:
    config = minibatch(1.0, **ALL_USERS)
    before, after, task = one_round(config, tmp_path)
    offsets = task.split("train").offsets
    bounds = list(pairwise(offsets.tolist()))
    mean = torch.stack([gradient(config, task, a, b) for a, b in bounds]).mean(0)
    torch.testing.assert_close(after, before - 0.3 * mean, rtol=1e-5, atol=1e-6)


def test_weighted_by_examples_it_is_gradient_descent_on_the_pooled_examples(
    tmp_path: Path,
) -> None:
    config = minibatch(1.0, federated__weighting="examples", **ALL_USERS)
    before, after, task = one_round(config, tmp_path)
    pooled = gradient(config, task, 0, task.split("train").num_examples)
    torch.testing.assert_close(after, before - 0.3 * pooled, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("fraction", [0.01, 0.3, 0.5, 1.0])
def test_the_step_is_on_a_random_part_drawn_anew_in_each_round(fraction: float) -> None:
    config = make_config("federated")
    task = build_task(config, CPU)
    model = build_model(config, task, CPU)
    split = task.split("train")
    # Epochs, steps and batch size must not matter.
    local = LocalTraining(3, 2, 0.3, max_steps=7, batch_fraction=fraction)
    engine = SequentialEngine(
        Options(), model, split, Forward(model.module, task, CPU), local, seed=5
    )
    user = int(np.diff(split.offsets).argmax())
    first, stop = (int(end) for end in split.offsets[user : user + 2])
    central = model.vector.clone()
    used = max(1, int(fraction * (stop - first)))
    parts = []
    for index in (1, 2):
        (result,) = engine.train(np.array([user]), index, central)
        assert (result.num_steps, result.num_examples, result.num_processed) == (1, used, used)
        order = stream(5, Purpose.LOCAL_TRAINING, index, user).permutation(stop - first)
        parts.append(set(order[:used].tolist()))
        model.vector.copy_(central)
        examples = split.read_examples(first + order[:used], np.random.default_rng())
        loss = task.loss(model.module(examples.inputs), examples.targets)
        by_hand = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, model.parameters)])
        torch.testing.assert_close(result.update, -0.3 * by_hand, rtol=1e-5, atol=1e-6)
    assert (parts[0] == parts[1]) == (fraction == 1.0)


def test_a_private_run_may_use_either(tmp_path: Path) -> None:
    for algorithm in ({"name": "minibatch_sgd", "fraction": 0.5}, {"name": "reptile"}):
        config = make_config(
            "federated", federated__algorithm=algorithm, privacy=PRIVACY, federated__num_rounds=2
        )
        summary = run(config, tmp_path / str(algorithm["name"]))
        assert summary["privacy"]["simulated"]["epsilon"] > 0


@pytest.mark.parametrize("changes", [{"federated__local_epochs": 2}, {"federated__local_steps": 3}])
def test_minibatch_sgd_refuses_several_steps(changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="one step a client"):
        run(minibatch(0.5, **changes), tmp_path / "run")


@pytest.mark.parametrize("fraction", [0.0, -1.0, 1.5])
def test_a_fraction_outside_0_to_1_is_refused(fraction: float) -> None:
    with pytest.raises(ConfigError, match=r"federated\.algorithm\.fraction"):
        minibatch(fraction)


def reptile(**changes: Any) -> ResolvedConfig:
    return make_config(
        "federated",
        federated__algorithm={"name": "reptile"},
        federated__local_epochs=100,
        federated__local_steps=5,
        federated__central_learning_rate=2.0,
        federated__central_schedule={"decay": "linear"},
        **changes,
    )


def test_reptile_moves_by_the_meta_rate_towards_the_mean_of_the_clients(tmp_path: Path) -> None:
    """Rounds by hand: 5 steps from the centre, then 2, 4/3, 2/3 and 0 of the mean difference."""
    config = reptile(federated__num_rounds=3, **ALL_USERS)
    run(config, tmp_path / "run")
    state = load_latest(tmp_path / "run" / "checkpoints")
    assert state is not None
    task = build_task(config, CPU)
    split = task.split("train")
    model = build_model(config, task, CPU)
    central = model.vector.clone()
    for index, rate in ((1, 4 / 3), (2, 2 / 3), (3, 0.0)):
        differences = []
        for user in range(split.num_users):
            model.vector.copy_(central)
            examples = split.read_user(user, np.random.default_rng())
            rng = stream(3, Purpose.LOCAL_TRAINING, index, user)
            steps = 0
            while steps < 5:
                for chosen in np.split(
                    order := rng.permutation(len(examples)), range(4, len(order), 4)
                ):
                    if steps < 5:
                        loss = task.loss(
                            model.module(examples.inputs[chosen]), examples.targets[chosen]
                        )
                        gradients = torch.autograd.grad(loss, model.parameters)
                        torch._foreach_add_(model.slices, gradients, alpha=-0.3)
                        steps += 1
            differences.append(model.vector - central)
        central = central + rate * torch.stack(differences).mean(0)
    torch.testing.assert_close(state["trainer"]["central"], central, rtol=1e-4, atol=1e-5)


def test_reptile_refuses_weights_by_examples(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="count alike"):
        run(reptile(federated__weighting="examples"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
