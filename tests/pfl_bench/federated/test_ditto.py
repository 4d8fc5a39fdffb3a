"""Ditto: the central model is FedAvg's, clients' own are the paper's, and both are measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.federated.parts import build_model, build_task
from pfl_bench.federated.personal import KeptModels, PersonalTraining
from pfl_bench.files import read_metrics
from pfl_bench.metrics import lower_is_better
from pfl_bench.rng import Purpose, stream
from pfl_bench.runs.checkpoint import load_latest
from pfl_bench.runs.runner import run
from pfl_bench.types import ConfigError
from privacy.errors import PlanError
from tests.equivalence.test_processes import InTurn
from tests.helpers import central_of, make_config, parts_of

CPU = torch.device("cpu")
P = 650
WEIGHT = 0.3
FEW: dict[str, Any] = {
    "task": {"name": "digits", "num_users": 6, "split_by": "example"},
    "federated__num_rounds": 4,
    "federated__cohort_size": 3,
    "federated__sampling": "fixed_size",
    "federated__local_batch_size": 50,
    "federated__local_learning_rate": 0.05,
    "federated__local_momentum": 0.9,
    "federated__local_weight_decay": 0.01,
}
OWN = {"epochs": 3, "learning_rate": 0.1}


def ditto(weight: float = WEIGHT, **changes: Any) -> ResolvedConfig:
    algorithm = {"name": "ditto", "proximal_weight": weight, **OWN}
    return make_config("federated", **{**FEW, "federated__algorithm": algorithm, **changes})


def saved(folder: Path) -> dict[str, Any]:
    state = load_latest(folder / "checkpoints")
    assert state is not None
    trainer: dict[str, Any] = state["trainer"]
    return trainer


def own_models(folder: Path) -> dict[int, Tensor]:
    models: dict[int, Tensor] = saved(folder)["clients"]["algorithm"]["_own"]
    return models


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ditto")
    config = ditto(checkpoint={"every": 1, "keep": 10}, evaluation__every=1)
    return folder, run(config, folder)


def by_torch(folder: Path) -> dict[int, Tensor]:
    """Algorithm 1's own models as losses and torch.optim.SGD, beside the run's central models."""
    config = ditto()
    task = build_task(config, CPU)
    split, module = task.split("train"), build_model(config, task, CPU).module
    weights = list(module.parameters())
    x = nn.utils.parameters_to_vector(weights).detach().clone()
    own: dict[int, Tensor] = {}
    for index in range(1, 5):
        for user in stream(3, Purpose.SAMPLING, index).choice(6, size=3, replace=False).tolist():
            nn.utils.vector_to_parameters(own.get(user, x).clone(), weights)
            optimizer = torch.optim.SGD(weights, 0.1, 0.9, weight_decay=0.01)
            examples = split.read_user(user, np.random.default_rng())
            rng = stream(3, Purpose.LOCAL_TRAINING, index, user)
            for _ in range(3):
                order = rng.permutation(len(examples))
                for start in range(0, len(order), 50):
                    batch = order[start : start + 50]
                    away = nn.utils.parameters_to_vector(weights) - x
                    loss = task.loss(module(examples.inputs[batch]), examples.targets[batch])
                    loss = loss + WEIGHT / 2 * away.square().sum()
                    optimizer.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
            own[user] = nn.utils.parameters_to_vector(weights).detach().clone()
        x = torch.load(folder / "checkpoints" / f"step-{index:08d}.pt")["trainer"]["central"]
    return own


def test_own_models_are_those_of_the_paper_s_algorithm(
    finished: tuple[Path, dict[str, Any]],
) -> None:
    ours, theirs = own_models(finished[0]), by_torch(finished[0])
    assert ours.keys() == theirs.keys()
    assert 3 < len(ours) < 7
    for user, model in ours.items():
        torch.testing.assert_close(model, theirs[user], rtol=0, atol=2e-6)


def test_the_central_model_is_fedavg_s_bit_for_bit(
    finished: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    run(ditto(federated__algorithm={"name": "fedavg"}), tmp_path / "run")
    assert torch.equal(central_of(finished[0]), central_of(tmp_path / "run"))
    ours, fedavg = (
        read_metrics(folder / "metrics.jsonl")[1] for folder in (finished[0], tmp_path / "run")
    )
    assert ours["val/accuracy"] == fedavg["val/accuracy"]
    assert ours["systems/bytes_up"] == fedavg["systems/bytes_up"]
    # An epoch of the central model, three of the own one.
    assert ours["systems/steps"] == 4 * fedavg["systems/steps"]


@torch.no_grad()
def test_each_is_tested_on_its_client_s_examples(finished: tuple[Path, dict[str, Any]]) -> None:
    folder, summary = finished
    config = ditto()
    task = build_task(config, CPU)
    model, own, central = build_model(config, task, CPU), own_models(folder), central_of(folder)
    split = task.split("test")
    users = {name: user for user, name in enumerate(task.split("train").client_ids())}
    right, accuracies = 0, []
    for place, name in enumerate(split.client_ids()):
        examples = split.read_range(int(split.offsets[place]), int(split.offsets[place + 1]))
        model.vector.copy_(own.get(users[name], central))
        hits = model.module(examples.inputs).argmax(1) == examples.targets
        right += int(hits.sum())
        accuracies.append(float(hits.float().mean()))
    metrics = summary["metrics"]
    assert metrics["test/personal_accuracy"] == pytest.approx(right / split.num_examples)
    by_client = metrics["test/personal_accuracy_by_client"]
    assert by_client == pytest.approx(np.mean(accuracies), abs=1e-6)
    assert metrics["test/personal_num_clients_without_examples"] == 0
    assert metrics["test/personal_accuracy"] != metrics["test/accuracy"]


def test_evaluation_leaves_the_central_model_in_memory() -> None:
    parts = parts_of(ditto())
    kept, model = KeptModels(parts, lambda text: None), parts.model
    central = model.vector.clone()
    parts.algorithm.keep(0, central + 1)
    with model.kept():
        kept.begin()
        kept.personalise(parts.split, 0)
        assert torch.equal(model.vector, central + 1)
        # This client has no model of its own.
        kept.personalise(parts.split, 1)
        assert torch.equal(model.vector, central)
        kept.personalise(parts.split, 0)
    assert torch.equal(model.vector, central)


def test_an_own_model_that_is_not_finite_is_not_kept() -> None:
    algorithm = {"name": "ditto", "proximal_weight": WEIGHT, **OWN, "learning_rate": 1e38}
    parts = parts_of(ditto(federated__algorithm=algorithm))
    training = PersonalTraining(parts)
    (result,) = training.train(np.array([0]), 1, parts.model.vector.clone())
    assert not result.update.isfinite().all()
    assert parts.algorithm.own_model(0) is None


def test_a_killed_run_goes_on_with_its_clients_models(
    finished: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    whole, summary = finished
    cut, config = tmp_path / "cut", ditto(evaluation__every=1)
    run(config, cut)
    (cut / "summary.json").unlink()
    (cut / "checkpoints" / "step-00000004.pt").unlink()
    again = run(config, cut, resume=True)
    assert again["metrics"] == summary["metrics"]
    ours, theirs = own_models(cut), own_models(whole)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[user], theirs[user]) for user in ours)


def test_the_weight_is_between_training_alone_and_the_central_model(tmp_path: Path) -> None:
    """With a large weight (and a rate that it leaves stable) own models stay at the central one."""
    distances = []
    for weight in (0.0, 1.0, 9.0):
        run(ditto(weight, federated__local_momentum=0.0), tmp_path / str(weight))
        x = central_of(tmp_path / str(weight))
        models = own_models(tmp_path / str(weight)).values()
        distances.append(np.mean([float((model - x).norm()) for model in models]))
    assert distances[0] > 1.2 * distances[1] > 1.2 * distances[2]


def test_a_private_run_refuses_models_that_clients_keep(tmp_path: Path) -> None:
    privacy = {"mechanism": {"name": "gaussian", "clip_norm": 0.5}, "population_size": 6}
    private = {"privacy": {**privacy, "noise_multiplier": 1.0, "delta": 0.1, "nonce": "tests"}}
    with pytest.raises(PlanError, match=r"'ditto': remembers clients.*; fedavg for ditto"):
        run(ditto(**private), tmp_path / "refused")


def test_personal_metrics_can_be_expected_and_have_their_direction(tmp_path: Path) -> None:
    assert lower_is_better("test/personal_loss")
    assert lower_is_better("test/personal_client_loss_p90")
    assert not lower_is_better("test/personal_accuracy")
    expected = {"metric": "test/personal_acuracy", "value": 1.0, "tolerance": 0.1}
    with pytest.raises(ConfigError, match="did you mean 'test/personal_accuracy'"):
        run(ditto(expected=[{**expected, "source": "nobody"}]), tmp_path / "run")


def test_what_it_does_not_serve_is_refused(tmp_path: Path) -> None:
    by_user = {"name": "digits", "num_users": 60}
    with pytest.raises(ConfigError, match="'ditto': clients are tested with models of their own"):
        run(ditto(task=by_user), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"set federated\.workers: 1"):
        run(ditto(), tmp_path / "run", group=InTurn(2))
    with pytest.raises(ConfigError, match=r"federated\.algorithm\.proximal_weight"):
        ditto(-1.0)
