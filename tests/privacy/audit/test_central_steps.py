"""The audit's own central steps against the optimizers that runs take them with."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pfl_bench.client.optimizers import build_optimizer, set_rate
from pfl_bench.config.training import OptimizerOptions
from pfl_bench.runs.audit import audit_run
from pfl_bench.runs.runner import run
from privacy.audit.checks_central import Sketches, steps_of
from privacy.audit.evidence import gather
from privacy.audit.inputs import CentralOptimizer
from privacy.errors import LedgerError
from privacy.recording.central_record import CentralRecord, Sketcher, central_state, users_digest
from tests.helpers import make_config

OPTIMIZERS: list[dict[str, Any]] = [
    {"name": "sgd"},
    {"name": "sgd", "momentum": 0.9, "weight_decay": 0.05},
    {"name": "adam", "epsilon": 1e-3, "weight_decay": 0.01},
    {"name": "adam", "epsilon": 1e-3, "epsilon_hat": True},
    {"name": "adamw", "epsilon": 1e-3, "weight_decay": 0.1},
    {"name": "adagrad", "epsilon": 1e-3},
    {"name": "yogi", "epsilon": 1e-3, "weight_decay": 0.01, "initial_second_moment": 1e-3},
]


@pytest.mark.parametrize("options", OPTIMIZERS, ids=lambda options: "-".join(map(str, options)))
def test_steps_are_those_of_the_optimizer(options: dict[str, Any]) -> None:
    chosen = OptimizerOptions(**options)
    rng, rounds = np.random.default_rng(5), 60
    rates = 0.1 * (1.0 + np.cos(np.arange(rounds) / 10.0)) / 2.0 + 0.01
    releases = rng.normal(0.0, 0.3, (rounds, 8)).astype(np.float32)
    central = torch.from_numpy(rng.normal(size=8).astype(np.float32))
    optimizer = build_optimizer(chosen, [central], 0.1)
    before = []
    for rate, release in zip(rates, releases, strict=True):
        before.append(central.numpy().astype(np.float64))
        set_rate(optimizer, float(rate))
        central.grad = -torch.from_numpy(release)
        optimizer.step()
    after = [*before[1:], central.numpy().astype(np.float64)]
    own = CentralOptimizer(chosen, lambda number: float(rates[number - 1]))
    step, scale = steps_of(own, np.array(before), releases.astype(np.float64))
    moved = np.array(after) - np.array(before)
    known = np.isfinite(step)
    assert known.mean() > 0.9
    # Parameters near 1 are rounded by 6e-8.
    assert (np.abs(step - moved)[known] <= 1e-5 * scale[known] + 5e-7).all()
    # Not by half the releases, which most of them would not notice.
    late, _ = steps_of(own, np.array(before), np.roll(releases, 1, axis=0).astype(np.float64))
    assert (np.abs(late - moved)[known] > 1e-3 * scale[known]).mean() > 0.9


@pytest.mark.parametrize("options", OPTIMIZERS[2:], ids=lambda options: options["name"])
def test_runs_under_every_optimizer_are_followed_to_their_end(
    options: dict[str, Any], tmp_path: Path
) -> None:
    changes = {"federated__central_optimizer": options, "federated__central_learning_rate": 0.1}
    schedule = {"warmup": 2, "decay": "cosine"}
    config = make_config("private_federated", federated__central_schedule=schedule, **changes)
    run(config, tmp_path / "run")
    checks = {check.name: check for check in audit_run(tmp_path / "run", 1).checks}
    assert checks["central_step"].outcome == checks["central_chain"].outcome == "passed"
    assert checks["central_step"].numbers["rounds"] == 6


def test_a_model_that_was_chosen_is_that_of_its_round(tmp_path: Path) -> None:
    config = make_config("private_federated", evaluation__select_best="val/accuracy")
    summary = run(config, tmp_path / "run")
    checks = {check.name: check for check in audit_run(tmp_path / "run", 1).checks}
    assert checks["central_chain"].outcome == "passed"
    seen = f"the evaluated model, of round {summary['selected']}"
    assert seen in checks["central_chain"].evidence


@pytest.mark.parametrize("length", [1, 3, 8, 255, 257, 300_000])
def test_a_sketch_is_linear_and_sees_every_coordinate(length: int) -> None:
    rng = np.random.default_rng(length)
    one, other = (torch.from_numpy(rng.normal(size=length).astype(np.float32)) for _ in range(2))
    sketcher = Sketcher(length)
    first, second, both = (
        np.hstack(Sketches.of(sketcher.sketch(vector))[1:])[0]
        for vector in (one, other, one + other)
    )
    known = np.isfinite(first)
    assert first[known] + second[known] == pytest.approx(both[known], abs=1e-3)
    assert known.sum() == 2 + min(8, length)
    for place in {0, length // 2, length - 1}:
        moved = one.clone()
        moved[place] += 1.0
        change = np.array(sketcher.sketch(moved)["projections"]) - first[:2]
        assert np.abs(change) == pytest.approx([1.0, 1.0], abs=1e-5)
    assert Sketcher(length).sketch(one) == sketcher.sketch(one)
    assert first[0] != pytest.approx(0.0, abs=1e-12)


def test_what_is_recorded_follows_the_memory_of_the_parameters() -> None:
    central = torch.zeros(20)
    record = CentralRecord(central)
    users = np.array([2, 5])
    first = record.round(torch.ones(20), users, [5, 2])
    central += 1.0
    second = record.round(torch.full((20,), math.inf), users, [5, 5])
    assert first["central"] == central_state(torch.zeros(20))
    assert second["central"] == central_state(torch.ones(20))
    assert first["users_sha256"] == first["trained_sha256"] == users_digest(users)
    assert second["trained_sha256"] != second["users_sha256"]
    assert second["release"]["norm"] is None
    line = {**first, "release_sha256": "0" * 64, "central": {"projections": 3}}
    with pytest.raises(LedgerError, match=r"round 1: 'central\.projections' is 3"):
        gather([(line, "0" * 64)])
