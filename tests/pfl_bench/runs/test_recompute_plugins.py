"""Rounds computed again where code of the run's own has a part in them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pfl_bench.client import optimizers
from pfl_bench.config.loading import load_config
from pfl_bench.data.in_memory import InMemorySplit
from pfl_bench.federated.algorithms import fedavg
from pfl_bench.federated.algorithms.fedavg import FedAvg
from pfl_bench.federated.private_seed import value_of
from pfl_bench.rng import Purpose, stream
from pfl_bench.runs.auditing.opened import open_run
from pfl_bench.runs.auditing.recompute import recompute_run
from pfl_bench.runs.runner import run
from pfl_bench.types import Examples, LocalTraining
from tests.helpers import make_config

Patch = pytest.MonkeyPatch
NONCE = "mine"
MECHANISMS: dict[str, dict[str, Any]] = {
    "gaussian": {"name": "gaussian", "clip_norm": 0.5},
    "adaptive_gaussian": {"name": "adaptive_gaussian", "clip_norm": 0.5, "quantile": 0.5},
    "laplace": {"name": "laplace", "clip_norm": 2.0},
}


def problems_of(folder: Path, **changes: Any) -> list[str]:
    """What differs where a run, by code that is changed, is computed again by the same code."""
    settings: dict[str, Any] = {
        "federated__num_rounds": 3,
        "federated__engine": "sequential",
        "federated__workers": 1,
        "privacy__epsilon": None,
        "privacy__noise_multiplier": 0.9,
        "privacy__accountant": "pld",
        "evaluation__every": 1000,
        "evaluation__splits": [],
        "evaluation__final_splits": [],
    }
    run(make_config("private_federated", **{**settings, **changes}), folder)
    opened = open_run(folder, load_config(folder / "config.yaml"))
    done = recompute_run(opened, int(opened.recorded("private_seed", "value"), 16), "all")
    assert done.rounds
    return done.problems


def test_an_algorithm_that_takes_noise_back_is_found(tmp_path: Path, monkeypatch: Patch) -> None:
    """All runs of a nonce share their noise, so that whoever knows it can draw it again."""

    def gradient(self: FedAvg, mean_update: Tensor, out: Tensor) -> None:
        noise = stream(value_of(3, NONCE, {}), Purpose.NOISE, 1).standard_normal(len(out))
        torch.neg(mean_update, out=out)
        share = 0.5 * float(mean_update.norm()) / len(out) ** 0.5
        out.add_(torch.from_numpy(share * noise))

    monkeypatch.setattr(FedAvg, "central_gradient", gradient)
    problems = problems_of(tmp_path / "run", privacy__nonce=NONCE)
    assert any("round 1: central gradient" in problem for problem in problems), problems


@pytest.mark.parametrize("mechanism", MECHANISMS.values(), ids=MECHANISMS.keys())
def test_an_algorithm_that_makes_its_own_of_the_release_passes(
    mechanism: dict[str, Any], tmp_path: Path, monkeypatch: Patch
) -> None:
    def gradient(self: FedAvg, mean_update: Tensor, out: Tensor) -> None:
        torch.neg(mean_update.sign() * mean_update.abs().sqrt(), out=out)

    monkeypatch.setattr(FedAvg, "central_gradient", gradient)
    assert problems_of(tmp_path / "run", privacy__mechanism=mechanism) == []


def test_a_user_with_examples_of_others_is_found(tmp_path: Path, monkeypatch: Patch) -> None:
    read_user = InMemorySplit.read_user

    def with_a_friend(self: InMemorySplit, user: int, rng: np.random.Generator) -> Examples:
        own, other = (read_user(self, who, rng) for who in (user, (user + 1) % self.num_users))
        inputs = torch.cat([own.inputs, other.inputs])
        return Examples(inputs, torch.cat([own.targets, other.targets]))

    monkeypatch.setattr(InMemorySplit, "read_user", with_a_friend)
    problems = problems_of(tmp_path / "run")
    assert any("where the data have" in problem for problem in problems), problems


class Halving(FedAvg):
    """FedAvg with a local rate of its own for each round, whatever the row says."""


def halved(round_index: int) -> float:
    return 0.5**round_index


@pytest.mark.parametrize("schedule", [halved, None])
@pytest.mark.parametrize("decay", ["constant", "cosine"])
def test_a_local_schedule_of_an_algorithms_own_passes(
    schedule: Any, decay: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    def build(options: object, local_training: LocalTraining) -> FedAvg:
        return Halving(replace(local_training, schedule=schedule))

    monkeypatch.setattr(fedavg, "build", build)
    changed = {"federated__local_schedule": {"decay": decay}}
    assert problems_of(tmp_path / "run", **changed) == []


@pytest.mark.parametrize("schedule", [halved, None])
def test_a_bundled_algorithm_with_another_schedule_is_found(
    schedule: Any, tmp_path: Path, monkeypatch: Patch
) -> None:
    def build(options: object, local_training: LocalTraining) -> FedAvg:
        return FedAvg(replace(local_training, schedule=schedule))

    monkeypatch.setattr(fedavg, "build", build)
    assert problems_of(tmp_path / "run", federated__local_schedule={"decay": "cosine"})


@pytest.mark.parametrize("algorithm", [FedAvg, Halving])
def test_a_local_rate_that_leaves_the_rows_schedule_is_found(
    algorithm: type[FedAvg], tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(fedavg, "build", lambda options, local_training: algorithm(local_training))
    monkeypatch.setattr(optimizers, "rate_factor", lambda schedule, index, total: 1.0)
    changed = {"federated__local_schedule": {"decay": "cosine"}}
    assert problems_of(tmp_path / "run", **changed)
