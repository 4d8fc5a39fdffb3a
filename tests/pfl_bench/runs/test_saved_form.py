"""What no run saves into its checkpoints is named by the audit's check of the folder.

Sound checkpoints of every mechanism, scheme and setting are in test_folder_contents.py.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pfl_bench.runs.audit import audit_run
from pfl_bench.runs.checkpoint import newest
from pfl_bench.runs.runner import run
from tests.helpers import change_checkpoint, make_config
from tests.pfl_bench.runs.test_recompute_devices import DEVICES, SELECTED

RAW = torch.ones(7)
BANDED = {"name": "banded_matrix_factorization", "clip_norm": 0.5, "bands": 3}
CHANGES: dict[str, dict[str, Any]] = {
    "private_federated": {
        "privacy__epsilon": None,
        "privacy__noise_multiplier": 1.0,
        "privacy__noise_cohort_size": None,
        "privacy__mechanism": BANDED,
        "privacy__audit": {"kind": "one_shot", "count": 10},
        "federated__sampling": "cyclic_poisson",
        "federated__separation": 3,
        "federated__central_optimizer": {"name": "sgd", "momentum": 0.5},
        "federated__compression": {"name": "top_k", "fraction": 0.5, "error_feedback": False},
        "evaluation__select_best": "val/accuracy",
        "evaluation__budgets": [{"metric": "val/accuracy", "value": 0.01}],
        "checkpoint__every": 2,
    },
    "central_dp": {"central__optimizer": {"name": "adamw"}},
}
# Where something stands that no run saves.
ADDED = {
    "private_federated": (
        "best.raw",
        "costs.pending",
        "costs.totals.raw",
        "costs.reached.0.raw",
        "divergence.raw",
        "trainer.mechanism.raw",
        "trainer.private.history.raw",
        "trainer.private.canaries.scores.raw",
        "trainer.optimizer.param_groups.0.raw",
        "trainer.optimizer.state.0.raw",
        "trainer.clients.debug",
        "trainer.clients.participants.raw",
        "trainer.clients.algorithm.raw",
        "trainer.clients.transform of compression.raw",
    ),
    "central_dp": (
        "trainer.buffers.raw",
        "trainer.optimizer.state.1.raw",
        "trainer.optimizer.state.9",
    ),
}
# What a run saves, of another kind or shape.
OTHER = {
    "private_federated": (
        "best.vector",
        "best.value",
        "trainer.private.history.counts",
        "trainer.optimizer.state.0.momentum_buffer",
        "trainer.optimizer.param_groups.0.foreach",
        "trainer.mechanism.coefficients.2",
        "trainer.mechanism.noise.0",
        "divergence.start",
        "seconds",
    ),
    "central_dp": ("trainer.noise_generator", "trainer.optimizer.state.0.exp_avg", "trainer.seed"),
}


def above(state: Any, place: str) -> tuple[Any, Any]:
    """The object that has a member, and the member's key."""
    *path, last = [int(part) if part.isdigit() else part for part in place.split(".")]
    for key in path:
        state = state[key]
    return state, last


def put(state: dict[str, Any], places: tuple[str, ...]) -> None:
    for place in places:
        part, key = above(state, place)
        part[key] = RAW


def named(place: str) -> str:
    """A place as messages have it; elements of lists stand in brackets."""
    for name in ("reached", "param_groups", "coefficients", "noise"):
        head, found, tail = place.partition(f".{name}.")
        if found:
            number, dot, rest = tail.partition(".")
            return f"{head}.{name}[{number}]{dot}{rest}"
    return place


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {}
    for setting, changes in CHANGES.items():
        folders[setting] = tmp_path_factory.mktemp(setting) / "run"
        run(make_config(setting, **changes), folders[setting])
    return folders


def changed(finished: Path, folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """The newest checkpoint, changed, of a copy of a finished run in a new folder."""
    path = newest(Path(shutil.copytree(finished, folder)) / "checkpoints")
    assert path is not None
    change_checkpoint(path, change)
    return path


def foreign(folder: Path) -> tuple[str, ...]:
    done = audit_run(folder, 1)
    (check,) = [check for check in done.checks if check.name == "folder"]
    assert (check.outcome == "failed") == bool(done.inputs.foreign)
    return done.inputs.foreign


@pytest.mark.parametrize("setting", CHANGES)
def test_what_no_run_saves_is_named(
    setting: str, finished: dict[str, Path], tmp_path: Path
) -> None:
    assert foreign(finished[setting]) == ()
    for places in (ADDED[setting], OTHER[setting]):
        folder = tmp_path / places[0]
        changed(finished[setting], folder, lambda state, places=places: put(state, places))
        found = {text.split(": ")[1].partition(" is ")[0] for text in foreign(folder)}
        assert {named(place) for place in places} == found


def test_more_vectors_of_noise_than_rounds_have_are_named(
    finished: dict[str, Path], tmp_path: Path
) -> None:
    def add(state: dict[str, Any]) -> None:
        state["trainer"]["mechanism"]["noise"].append(state["trainer"]["central"].clone())

    changed(finished["private_federated"], tmp_path / "copy", add)
    (text,) = foreign(tmp_path / "copy")
    assert "is not 2 finite float32 vectors" in text


def test_one_round_may_leave_more_buffers_than_rounds(tmp_path: Path) -> None:
    mechanism = {"name": "buffered_toeplitz", "clip_norm": 0.5, "buffers": 4}
    changes = {"privacy__mechanism": mechanism, "federated__num_rounds": 1}
    run(make_config("private_federated", **CHANGES["private_federated"] | changes), tmp_path / "r")
    assert foreign(tmp_path / "r") == ()


def test_a_tensor_that_is_a_part_of_what_the_file_has_is_named(
    finished: dict[str, Path], tmp_path: Path
) -> None:
    def grow(state: dict[str, Any]) -> None:
        central = state["trainer"]["central"]
        state["trainer"]["central"] = torch.cat([central, RAW])[: len(central)]

    path = changed(finished["central_dp"], tmp_path / "copy", grow)
    (text,) = foreign(tmp_path / "copy")
    assert text == f"{path.name}: trainer.central is a part of a larger tensor"


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("costs.totals.bytes_down", "costs.totals is {'flops': "),
        ("divergence.start", "divergence.start is "),
    ],
)
def test_costs_and_losses_are_those_recorded_elsewhere(
    place: str, said: str, finished: dict[str, Path], tmp_path: Path
) -> None:
    def change(state: dict[str, Any]) -> None:
        part, key = above(state, place)
        part[key] += 0.125

    path = changed(finished["private_federated"], tmp_path / "copy", change)
    (text,) = foreign(tmp_path / "copy")
    assert text.startswith(f"{path.name}: {said}")
    assert text.endswith(" is on record")


def test_a_divergence_that_only_a_checkpoint_has_is_named(
    finished: dict[str, Path], tmp_path: Path
) -> None:
    def diverge(state: dict[str, Any]) -> None:
        found = {"metric": "train/loss", "round": 1, "unit": "epoch", "value": 7.5}
        state["divergence"]["found"] = {**found, "start": state["divergence"]["start"]}

    path = changed(finished["central_dp"], tmp_path / "copy", diverge)
    (text,) = foreign(tmp_path / "copy")
    assert text.startswith(f"{path.name}: divergence.found is {{'metric': 'train/loss'")
    assert text.endswith(", but None is on record")


def test_what_a_selection_among_devices_saves_is_closed(tmp_path: Path) -> None:
    changes = {
        **SELECTED,
        **DEVICES,
        "federated__selection": {"name": "uniform"},
        "privacy__epsilon": None,
        "privacy__noise_multiplier": 1.0,
        "privacy__mechanism": {"name": "gaussian", "clip_norm": 0.5},
    }
    run(make_config("private_federated", **changes), tmp_path / "run")
    path = newest(tmp_path / "run" / "checkpoints")
    assert path is not None
    places = tuple(
        f"trainer.clients.participants.{part}.raw"
        for part in ("clock", "clock.totals", "limits", "selection")
    )
    change_checkpoint(path, lambda state: put(state, places))
    found = {text.split(": ")[1] for text in foreign(tmp_path / "run")}
    assert found == {*places}
