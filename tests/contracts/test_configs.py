"""Every row under configs/ is built and runs one round (or epoch) on small data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pfl_bench.config_file import load_config
from pfl_bench.runner import run
from pfl_bench.store import FieldSpec, StoreWriter
from tests.helpers import REPOSITORY

CONFIGS = REPOSITORY / "configs"
ROWS = sorted(CONFIGS.rglob("*.yaml"))


@pytest.fixture(scope="session")
def small_femnist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 12 writers, every split in each, of noise in FEMNIST's shape."""
    path = tmp_path_factory.mktemp("femnist") / "small.h5"
    rng = np.random.default_rng(0)
    fields = {"inputs": FieldSpec("uint8", (28, 28)), "targets": FieldSpec("uint8")}
    with StoreWriter(
        path,
        task="femnist",
        variant="generated",
        source="noise",
        split_by="example",
        num_classes=62,
        input_shape=(28, 28),
        fields=fields,
    ) as writer:
        for user in range(12):
            for split in ("train", "val", "test"):
                inputs = rng.integers(0, 256, (4, 28, 28), dtype=np.uint8)
                targets = rng.integers(0, 62, 4, dtype=np.uint8)
                writer.append(split, f"writer-{user:02d}", inputs=inputs, targets=targets)
    return path


def shortened(row: Path, store: Path) -> list[str]:
    """Overrides that make a row one round long and fit for twelve writers."""
    tree: dict[str, Any] = load_config(row).tree
    overrides = ["device=cpu", "evaluation.every=1"]
    if tree["task"]["name"] == "femnist":
        overrides.append(f"task.data={store}")
        users = 12
    else:
        users = 300
    if tree["central"] is not None:
        return [*overrides, "central.num_epochs=1", "central.batch_size=16"]
    cohort = min(tree["federated"]["cohort_size"], users)
    overrides += ["federated.num_rounds=1", f"federated.cohort_size={cohort}"]
    privacy = tree["privacy"]
    if privacy is not None and not privacy["hypothetical_population"]:
        overrides.append(f"privacy.population_size={users}")
        noise_cohort = min(privacy["noise_cohort_size"] or cohort, users)
        overrides.append(f"privacy.noise_cohort_size={noise_cohort}")
        if users == 12:
            # Twelve users cannot hide a count; one round of so few needs no small epsilon either.
            overrides += ["privacy.epsilon=100.0"]
    return overrides


def test_there_are_rows() -> None:
    assert len(ROWS) >= 10


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.relative_to(CONFIGS).as_posix())
def test_a_row_runs_one_round(row: Path, small_femnist: Path, tmp_path: Path) -> None:
    resolved = load_config(row, shortened(row, small_femnist))
    summary = run(resolved, tmp_path / "run")
    assert summary["rounds"] == 1
    assert all(name.startswith("test/") for name in summary["metrics"])
    assert 0 <= summary["metrics"]["test/accuracy"] <= 1


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.relative_to(CONFIGS).as_posix())
def test_a_row_names_its_launch_command_and_its_sources(row: Path) -> None:
    first = row.read_text(encoding="utf-8").splitlines()[0]
    assert first == f"# pfl-bench run {row.relative_to(REPOSITORY).as_posix()}"
    config = load_config(row).config
    assert all(expected.source for expected in config.expected)


def test_names_of_rows_are_unique() -> None:
    names = [load_config(row).config.name for row in ROWS]
    assert len(set(names)) == len(names)
