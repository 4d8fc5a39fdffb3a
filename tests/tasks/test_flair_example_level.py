"""Example-level DP on FLAIR's models: what Opacus can go through is trained, else refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pfl_bench.config.loading import resolve
from pfl_bench.runs.runner import run
from pfl_bench.types import ConfigError
from tests.tasks.flair_store import write_store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_store(tmp_path_factory.mktemp("flair") / "small.h5", 32)


def train(store: Path, folder: Path, **model: Any) -> dict[str, Any]:
    tree = {
        "version": 1,
        "name": "central-dp",
        "device": "cpu",
        "task": {"name": "flair", "data": str(store), "crop": 28},
        "model": model,
        "central": {
            "num_epochs": 1,
            "batch_size": 8,
            "learning_rate": 0.1,
            "physical_batch_size": 3,
            "data_workers": 1,
        },
        "privacy": {"mechanism": {"name": "gaussian", "clip_norm": 1.0}, "epsilon": 50.0},
    }
    return run(resolve(tree, Path("row.yaml"), ()), folder)


@pytest.mark.parametrize(
    ("model", "num_parameters"),
    [
        # 512 features and a bias for each of three labels.
        ({"name": "resnet18", "train": "head"}, 3 * 513),
        # Three convolutions, three GroupNorms, the head.
        (
            {"name": "small_cnn"},
            27 * 16 + 16 + 144 * 32 + 32 + 288 * 64 + 64 + 2 * (16 + 32 + 64) + 3 * 65,
        ),
    ],
    ids=["head", "small_cnn"],
)
def test_the_statement_counts_what_is_trained(
    store: Path, tmp_path: Path, model: dict[str, Any], num_parameters: int
) -> None:
    summary = train(store, tmp_path / "run", **model)
    assert summary["privacy"]["num_parameters"] == summary["num_parameters"] == num_parameters
    assert summary["privacy"]["unit"] == "example"


def test_networks_with_in_place_operations_are_refused_with_a_way_out(
    store: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"single examples.*model\.train=head"):
        train(store, tmp_path / "run", name="resnet18", train="all")
