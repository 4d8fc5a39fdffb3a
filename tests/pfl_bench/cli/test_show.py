"""``pfl-bench show`` and ``run --dry-run`` say what a run does, and write nothing."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pfl_bench.cli.main import main
from pfl_bench.config.loading import load_config
from pfl_bench.config.row_files import locate_row
from pfl_bench.files import read_metrics
from pfl_bench.runs import time_estimate
from pfl_bench.runs.runner import run
from pfl_bench.runs.time_estimate import estimate_time, line
from pfl_bench.trainers import local_only
from tests.helpers import TREES, make_config

Capture = pytest.CaptureFixture[str]
ConfigFile = Callable[..., Path]
FLAIR = "flair/table1/private_imagenet_coarse_corrected"


def shown(capsys: Capture, *arguments: str) -> str:
    assert main(list(arguments)) == 0
    return capsys.readouterr().out


def as_json(capsys: Capture, *arguments: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(shown(capsys, "show", *arguments, "--json"))
    return document


@pytest.mark.parametrize("setting", TREES)
def test_what_is_shown_is_what_the_run_then_claims_and_costs(
    setting: str,
    config_file: ConfigFile,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    monkeypatch.chdir(tmp_path)
    path = config_file(setting)
    told = as_json(capsys, str(path))
    assert sorted(tmp_path.iterdir()) == [path], "nothing is left"
    summary = run(load_config(path), tmp_path / "run")
    spent, cost = summary["systems"], told["cost"]
    assert cost["steps"] == summary["rounds"]
    # Cohorts and batches are drawn.
    assert cost["flops"] == pytest.approx(spent["flops"], rel=0.35)
    for name in ("bytes_down", "bytes_up"):
        assert (cost[name] or 0) == pytest.approx(spent[name], rel=0.35)
    if summary["privacy"] is None:
        assert told["privacy"] is None
    else:
        for side in ("simulated", "actual"):
            assert told["privacy"][side] == summary["privacy"][side]
    assert told["num_users"] == summary["data"]["num_users"]
    assert told["estimate"]["total"] > 0
    assert told["data_not_prepared"] is None


@pytest.mark.parametrize(
    ("row", "noise", "steps"), [("private_federated", 0.6, 2), ("central_dp", 0.65, 4)]
)
def test_a_budget_that_ends_a_run_ends_what_it_costs(
    row: str, noise: float, steps: int, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    # Whatever is timed takes a second; a round takes one, and no more for its examples.
    ticks = SimpleNamespace(perf_counter=itertools.count().__next__)
    monkeypatch.setattr(time_estimate, "time", ticks)
    monkeypatch.setattr(time_estimate, "line", lambda points: (1.0, 0.0))
    settings = [f"privacy.noise_multiplier={noise}", "privacy.epsilon=8.0", "evaluation.every=1"]
    key = "central.num_epochs" if row == "central_dp" else "federated.num_rounds"
    few, many = (as_json(capsys, f"demo/{row}", *settings, f"{key}={n}") for n in (300, 600))
    assert few["cost"] == many["cost"]
    assert few["cost"]["steps"] == steps
    assert few["estimate"]["training"] == many["estimate"]["training"] == steps
    assert few["estimate"]["evaluation"] == many["estimate"]["evaluation"] > 0


@pytest.mark.parametrize("row", ["local", "mocha"])
def test_clients_with_models_of_their_own_are_shown_exactly_what_they_then_cost(
    row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    small = {
        "local": ["local.num_epochs=2", "local.clients_per_round=5"],
        "mocha": ["multitask.num_rounds=3", "multitask.relationship_every=2"],
    }
    overrides = ["task.num_tasks=12", *small[row]]
    row = f"leaf/quick/{row}"
    told = as_json(capsys, row, *overrides)
    summary = run(load_config(locate_row(row), overrides), tmp_path / "run")
    cost, spent = told["cost"], summary["systems"]
    for name in ("flops", "bytes_down", "bytes_up"):
        assert cost[name] == spent[name]
    assert cost["steps"] == 3
    assert cost["clients"] == (4 if "local" in row else 12)
    done = read_metrics(tmp_path / "run" / "metrics.jsonl")
    steps = sum(entry["train/num_steps"] for entry in done if "train/num_steps" in entry)
    assert cost["local_steps"] * (12 if "local" in row else 36) == pytest.approx(steps)
    assert 0 < told["estimate"]["total"] < 20 * summary["seconds"]


def test_models_that_are_not_kept_are_trained_again_for_every_evaluation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    overrides = ["task.num_tasks=12", "local.num_epochs=2", "evaluation.splits=[val, test]"]
    config = load_config(locate_row("leaf/quick/local"), overrides)
    monkeypatch.setattr(local_only, "MAX_KEPT_BYTES", 0)
    estimate = estimate_time(config, 1)
    # Of both splits after the only round, and of one at the end: each trains at one rate of three.
    assert estimate.evaluation > 0.999 * estimate.training


def test_a_row_fits_into_80_columns_and_names_its_published_number(capsys: Capture) -> None:
    text = shown(capsys, "show", "demo/private_federated", "--no-estimate")
    assert max(map(len, text.splitlines()[2:])) <= 80
    for words in ("test/accuracy 0.882", "epsilon (simulated)", "epsilon (actual)", "60 rounds"):
        assert words in text
    assert "time:" not in text
    assert "local_momentum" not in text
    everything = shown(capsys, "show", "demo/private_federated", "--no-estimate", "--all")
    assert "local_momentum: 0.0" in everything


@pytest.mark.parametrize("row", ["private_federated", "central_dp"])
def test_a_delta_that_promises_nothing_is_refused_before_the_run(
    row: str, tmp_path: Path, capsys: Capture
) -> None:
    number = 300 if row == "private_federated" else 1199
    command = ["run", f"demo/{row}.yaml", "--out", str(tmp_path / "run")]
    assert main([*command, f"privacy.delta={0.99 / number}", "--dry-run"]) == 0
    for more in ([], ["--dry-run"]):
        assert main([*command, f"privacy.delta={1.01 / number}", *more]) == 2
        assert f"but must not be above 1/{number}" in capsys.readouterr().err


def test_a_delta_that_promises_nothing_is_said_without_the_data(capsys: Capture) -> None:
    for delta, is_said in (("2.4e-5", False), ("2.5e-5", True)):  # of 41,131 users
        printed = shown(capsys, "show", FLAIR, f"privacy.delta={delta}")
        said = "delta is not below 1/41131, so this promises nothing" in " ".join(printed.split())
        assert said == is_said


def test_an_override_is_shown_and_is_not_the_row(capsys: Capture) -> None:
    arguments = ("show", "demo/central", "central.num_epochs=3", "--no-estimate")
    text = shown(capsys, *arguments)
    assert "num_epochs: 3" in text
    assert "not compared with it: central.num_epochs 30 -> 3" in text
    assert "not compared" not in shown(capsys, *arguments, "expected=[]")


def test_without_data_a_row_says_what_prepares_them_and_both_epsilons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    text = shown(capsys, "show", FLAIR)
    assert "data not prepared" in text
    assert "pfl-bench data prepare flair --source DIR --out flair.h5" in " ".join(text.split())
    # FLAIR's 2.0 is 4.324 of the run itself.
    lines = [line.split()[:3] for line in text.splitlines() if "epsilon (" in line]
    assert lines == [["epsilon", "(simulated)", "2"], ["epsilon", "(actual)", "4.324"]]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("setting", ["federated", "private_federated", "central_dp"])
def test_an_estimate_is_of_the_order_of_the_run(setting: str, tmp_path: Path) -> None:
    config = make_config(setting)
    summary = run(config, tmp_path / "run")
    seconds, estimate = summary["seconds"], estimate_time(config, summary["rounds"])
    # The run also writes files; a busy machine is slower now and then.
    assert estimate.total < 20 * seconds
    assert estimate.total > 0


def test_what_needs_whole_cohorts_is_measured_with_them(tmp_path: Path) -> None:
    krum = {"name": "krum", "num_attackers": 2, "num_selected": 7}
    changes = {"federated__aggregation": krum, "federated__sampling": "fixed_size"}
    estimate = estimate_time(make_config("federated", **changes), 9)
    assert "about 12 clients" in estimate.measured


def test_the_line_through_two_measurements() -> None:
    assert line([(10.0, 2.0), (20.0, 3.0)]) == pytest.approx((1.0, 0.1))
    assert line([(10.0, 3.0), (20.0, 2.0)]) == pytest.approx((0.0, 0.1))
    assert line([(10.0, 1.0), (20.0, 3.0)]) == pytest.approx((0.0, 0.15))
    assert line([(10.0, 1.0), (10.0, 2.0)]) == pytest.approx((0.0, 0.2))


@pytest.mark.parametrize("setting", ["private_federated", "central"])
def test_a_dry_run_writes_nothing_and_says_where_it_would(
    setting: str, config_file: ConfigFile, tmp_path: Path, capsys: Capture
) -> None:
    path, out = config_file(setting), tmp_path / "deep" / "run"
    text = shown(capsys, "run", str(path), "--dry-run", "--out", str(out))
    assert f"would run in {out}: new" in text
    assert ("epsilon (actual)" in text) == (setting == "private_federated")
    assert sorted(tmp_path.iterdir()) == [path]


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_dry_run_looks_at_what_the_folder_holds_and_changes_none_of_it(
    config_file: ConfigFile, tmp_path: Path, capsys: Capture
) -> None:
    path, out = str(config_file("private_federated")), tmp_path / "run"
    command = ["run", path, "--out", str(out)]
    run(load_config(Path(path)), out)
    whole = contents(out)
    assert "finished: it would not be run again" in shown(capsys, *command, "--dry-run")
    assert contents(out) == whole
    (out / "summary.json").unlink()
    unfinished = contents(out)
    assert main([*command, "--dry-run"]) == 2
    assert "add --resume" in capsys.readouterr().err
    assert "would be resumed" in shown(capsys, *command, "--dry-run", "--resume")
    assert main([*command, "seed=9", "--dry-run", "--resume"]) == 2
    assert "seed (3 -> 9)" in capsys.readouterr().err
    assert contents(out) == unfinished
    # It would go on with other noise: other data than it began with.
    environment = json.loads((out / "environment.json").read_text())
    environment["data"]["checksum"] = "sha256:other"
    (out / "environment.json").write_text(json.dumps(environment))
    assert main([*command, "--dry-run", "--resume"]) == 2
    assert "checksum sha256:other" in capsys.readouterr().err
    shutil.rmtree(out)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["federated.cohort_size=90"], "cohort"),
        (["privacy.population_size=61"], "population_size"),
        (["evaluation.splits=[dev]"], "no split 'dev'"),
        (["evaluation.select_best=val/acuracy"], "val/accuracy"),
        (["federated.weighting=examples"], "weighting"),
        (["task.num_users=100000"], "num_users"),
    ],
)
def test_a_dry_run_refuses_what_a_run_refuses(
    overrides: list[str], words: str, config_file: ConfigFile, tmp_path: Path, capsys: Capture
) -> None:
    path = config_file("private_federated")
    assert main(["run", str(path), *overrides, "--dry-run", "--out", str(tmp_path / "r")]) == 2
    assert words in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == [path]


def test_a_run_folder_inside_a_file_is_refused_by_a_dry_run(
    config_file: ConfigFile, tmp_path: Path, capsys: Capture
) -> None:
    path = config_file("federated")
    assert main(["run", str(path), "--dry-run", "--out", str(path / "run")]) == 2
    assert f"{path} is no folder" in capsys.readouterr().err


def test_a_row_s_guarantee_is_explained_before_it_runs(tmp_path: Path, capsys: Capture) -> None:
    text = shown(capsys, "privacy", "explain", "demo/private_federated")
    assert "Epsilon (simulated) is at most 4 " in " ".join(text.split())
    text = shown(capsys, "privacy", "explain", "demo/private_federated", "privacy.epsilon=2")
    assert "Epsilon (simulated) is at most 2 " in " ".join(text.split())
    assert main(["privacy", "explain", str(tmp_path), "privacy.epsilon=2"]) == 2
    assert "whose settings are those that it ran with" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["data", "download", "celeba", "--source", "here", "--out", "x"])
    assert "`pfl-bench data download --help` lists what it takes" in capsys.readouterr().err
    assert main(["privacy", "explain", "demo/federated"]) == 2
    assert "claims no privacy" in capsys.readouterr().err
    assert main(["privacy", "explain", "no/such"]) == 2
    assert "no/such" in capsys.readouterr().err


def test_bundled_names_need_no_suffix_and_serve_as_rows_of_sweeps_and_views(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert shown(capsys, "copy", "demo/federated", "mine.yaml") == "pfl-bench run mine.yaml\n"
    sweep = "version: 1\nrow: demo/federated.yaml\nmetric: val/accuracy\n"
    grid = "grid: {federated.local_learning_rate: [0.1, 0.3]}\n"
    Path("sweep.yaml").write_text(sweep + grid)
    quick = ["federated.num_rounds=1", "task.num_users=60", "federated.cohort_size=9"]
    text = shown(capsys, "sweep", "sweep.yaml", *quick, "--out", "out")
    assert "The best by val/accuracy" in text
    Path("view").mkdir()
    Path("view/view.yaml").write_text(
        "version: 1\nview_of: demo\nrows:\n"
        "- {row: central, expected: [{metric: test/accuracy, value: 1, tolerance: 1, source: a}]}\n"
    )
    arguments = ["table", "view", "central.num_epochs=1", "--out", "runs"]
    main(arguments)
    assert Path("runs/central/seed-0/summary.json").is_file(), capsys.readouterr()
