"""Every row under configs/ runs one round (or epoch) on small data; views and sweeps are tried."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pfl_bench.cli import main
from pfl_bench.config_file import load_config
from pfl_bench.files import read_json
from pfl_bench.row_files import kind_of, rows_below
from pfl_bench.runner import run
from pfl_bench.sweeps import load_sweep
from pfl_bench.views import load_view
from tests.contracts.small_stores import FLAIR_USERS, write_femnist, write_flair
from tests.helpers import REPOSITORY

CONFIGS = REPOSITORY / "configs"
FILES = sorted(CONFIGS.rglob("*.yaml"))
ROWS = [path for path in FILES if kind_of(path) == "row"]
VIEWS = [path for path in FILES if kind_of(path) == "view"]
SWEEPS = [path for path in FILES if kind_of(path) == "sweep"]
DIGITS_USERS = 300
SMALL_SIDE = 32

Capture = pytest.CaptureFixture[str]


def name_of(path: Path) -> str:
    return path.relative_to(CONFIGS).as_posix()


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Small stores by task, and "weights": random ones in torchvision's form for ResNet-18."""
    from torchvision.models import resnet18

    folder = tmp_path_factory.mktemp("small")
    files = {name: folder / f"{name}.h5" for name in ("femnist", "flair")}
    write_femnist(files["femnist"])
    write_flair(files["flair"])
    torch.manual_seed(0)
    files["weights"] = folder / "random-resnet18.pth"
    torch.save(resnet18(weights=None).state_dict(), files["weights"])
    return files


@pytest.fixture
def out(tmp_path: Path) -> Iterator[Path]:
    """A folder of runs that does not stay: a checkpoint of ResNet-18 has over 100 MB."""
    yield tmp_path / "runs"
    shutil.rmtree(tmp_path)


def shortened(row: Path, small: dict[str, Path]) -> list[str]:
    """Overrides that make a row one round long and fit for a dozen users."""
    tree: dict[str, Any] = load_config(row).tree
    overrides = ["device=cpu", "evaluation.every=1"]
    task, users = tree["task"], DIGITS_USERS
    if task["name"] in small:
        overrides.append(f"task.data={small[task['name']]}")
        users = FLAIR_USERS["train"]
    cohort = users
    if task["name"] == "flair":
        # Four clients of ResNet-18 show what twelve do, in a third of the time.
        cohort = 4
        crop = min(task["crop"], SMALL_SIDE)
        overrides += [f"task.resize={SMALL_SIDE}", f"task.crop={crop}"]
        if tree["model"]["init"] == "imagenet":
            overrides.append(f"model.weights={small['weights']}")
    if tree["central"] is not None:
        return [*overrides, "central.num_epochs=1", "central.batch_size=16"]
    cohort = min(tree["federated"]["cohort_size"], cohort)
    overrides += ["federated.num_rounds=1", f"federated.cohort_size={cohort}"]
    privacy = tree["privacy"]
    if privacy is not None and not privacy["hypothetical_population"]:
        overrides.append(f"privacy.population_size={users}")
        noise_cohort = min(privacy["noise_cohort_size"] or cohort, users)
        overrides.append(f"privacy.noise_cohort_size={noise_cohort}")
        if users != DIGITS_USERS:
            # A dozen users cannot hide a count; one round of so few needs no small epsilon either.
            given = privacy["noise_multiplier"] is not None
            overrides.append("privacy.noise_multiplier=1.0" if given else "privacy.epsilon=100.0")
    return overrides


def test_there_are_rows_views_and_sweeps() -> None:
    assert len(ROWS) >= 50
    assert len(VIEWS) >= 1
    assert len(SWEEPS) >= 8


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_a_row_runs_one_round(row: Path, small: dict[str, Path], out: Path) -> None:
    resolved = load_config(row, shortened(row, small))
    summary = run(resolved, out)
    assert summary["rounds"] == 1
    splits = resolved.config.evaluation.final_splits
    assert {name.partition("/")[0] for name in summary["metrics"]} == set(splits)
    family = "c_ap" if resolved.tree["task"]["name"] == "flair" else "accuracy"
    assert 0 <= summary["metrics"][f"{splits[0]}/{family}"] <= 1
    # What is published must be measured, whatever the data.
    assert all(entry["measured"] is not None for entry in summary["expected"])


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_a_row_names_its_launch_command_and_its_sources(row: Path) -> None:
    first = row.read_text(encoding="utf-8").splitlines()[0]
    assert first == f"# pfl-bench run {row.relative_to(REPOSITORY).as_posix()}"
    config = load_config(row).config
    assert all(expected.source for expected in config.expected)


def test_names_of_rows_are_unique() -> None:
    names = [load_config(row).config.name for row in ROWS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("path", VIEWS, ids=name_of)
def test_a_view_shows_cells_of_rows_that_exist(path: Path) -> None:
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first == f"# pfl-bench table {path.parent.relative_to(REPOSITORY).as_posix()}"
    view = load_view(path)
    for shown, row in view.rows:
        assert row == rows_below(view.folder)[shown.row]
        splits = load_config(row).config.evaluation.final_splits
        assert all(entry.metric.partition("/")[0] in splits for entry in shown.expected)
        assert all(entry.source for entry in shown.expected)


@pytest.mark.parametrize("path", VIEWS, ids=name_of)
def test_a_row_of_a_view_runs_one_round(
    path: Path, small: dict[str, Path], out: Path, capsys: Capture
) -> None:
    shown, row = load_view(path).rows[0]
    arguments = ["table", str(path.parent), "--only", shown.row, "--out", str(out)]
    assert main([*arguments, *shortened(row, small)]) == 0
    table = capsys.readouterr().out
    assert shown.label is not None
    assert shown.label in table
    for entry in shown.expected:
        # Each cell has its line, with a number measured.
        metric = entry.metric.rpartition("ap_200_")[2]
        (line,) = [text for text in table.splitlines() if text.startswith(f"| {metric} ")]
        assert f"{entry.value:.4f} / 0." in line
    summary = read_json(out / shown.row / "seed-0" / "summary.json")
    assert summary is not None
    assert summary["name"] == load_config(row).config.name


@pytest.mark.parametrize("path", SWEEPS, ids=name_of)
def test_a_sweep_is_of_valid_rows_that_test_nothing(path: Path) -> None:
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first == f"# pfl-bench sweep {path.relative_to(REPOSITORY).as_posix()}"
    sweep = load_sweep(path)
    assert kind_of(sweep.row) == "row"
    assert len(sweep.combinations) > 1
    assert len({point.slug for point in sweep.combinations}) == len(sweep.combinations)
    assert all(not p.resolved.config.evaluation.final_splits for p in sweep.combinations)


def test_a_combination_of_a_sweep_runs_one_round(
    small: dict[str, Path], out: Path, capsys: Capture
) -> None:
    path = SWEEPS[-1]
    overrides = shortened(load_sweep(path).row, small)
    assert main(["sweep", str(path), "--only", "1", "--out", str(out), *overrides]) == 0
    (summary,) = [read_json(found) for found in out.glob("*/summary.json")]
    assert summary is not None
    assert summary["metrics"] == {}
    assert summary["selection"]["metric"] == load_sweep(path).metric
    assert "the best is not chosen" in capsys.readouterr().out
