"""Sweeps: the grid, what is refused, and that no run of a sweep looks at test data."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from dp_accounting import dp_event, rdp

import pfl_bench
from pfl_bench.cli import run_many
from pfl_bench.cli.main import main
from pfl_bench.config.sweeps import load_sweep, override_text
from pfl_bench.config.yaml_text import apply_override
from pfl_bench.runs.selection import adaptive_problem
from pfl_bench.types import ConfigError, RunFolderError

Capture = pytest.CaptureFixture[str]
RATE, EPOCHS = "federated.central_learning_rate", "federated.local_epochs"
RANGE = {"low": 0.001, "high": 10.0, "log": True}


@pytest.fixture
def sweep_file(tmp_path: Path, config_file: Callable[..., Path]) -> Callable[..., Path]:
    """Write a sweep of a small row: ``sweep_file("federated", grid={...})``."""

    def write(setting: str = "federated", **changes: Any) -> Path:
        row = config_file(setting, name="base", federated__num_rounds=2)
        tree = {
            "version": 1,
            "row": f"../{row.name}",
            "metric": "val/accuracy",
            "grid": {RATE: [1.0e-6, 1.0], EPOCHS: [1, 2]},
            **changes,
        }
        folder = tmp_path / "sweeps"
        folder.mkdir(exist_ok=True)
        path = folder / "small.yaml"
        path.write_text(yaml.safe_dump(tree), encoding="utf-8")
        return path

    return write


def test_a_random_search_draws_from_lists_and_ranges(sweep_file: Callable[..., Path]) -> None:
    rate: dict[str, Any] = {"low": 0.001, "high": 10.0, "log": True}
    grid = {RATE: rate, EPOCHS: {"low": 1, "high": 3}, "federated.local_batch_size": [5, 10]}

    def points(runs: int, seed: int = 0, *overrides: str) -> list[dict[str, Any]]:
        path = sweep_file(grid=grid, random={"runs": runs, "seed": seed})
        return [one.values for one in load_sweep(path, overrides).combinations]

    drawn = points(200)
    assert drawn[:7] == points(7)
    assert drawn[:7] != points(7, 1)
    rates = [one[RATE] for one in drawn]
    assert all(0.001 <= value <= 10.0 and value == float(f"{value:.4g}") for value in rates)
    # Uniform in the logarithm: a quarter of 200 in each decade, with a deviation of six.
    for low in (0.001, 0.01, 0.1, 1.0):
        assert 30 < sum(low <= value < 10 * low for value in rates) < 70
    epochs = [one[EPOCHS] for one in drawn]
    assert set(epochs) == {1, 2, 3}
    # A third of 200 each, with a deviation of seven.
    assert all(45 < epochs.count(number) < 90 for number in (1, 2, 3))
    assert all(type(value) is int for value in epochs)
    assert {one["federated.local_batch_size"] for one in drawn} == {5, 10}
    assert {one[RATE] for one in points(4, 0, f"{RATE}=0.5")} == {0.5}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"grid": {RATE: {"low": 0.1, "high": 1.0}}}, f"grid.{RATE}: has a range, which only"),
        (
            {"random": {"runs": 5}},
            "5 different points are wanted, and 500 draws found 4",
        ),
        ({"grid": {RATE: {"low": 2.0, "high": 1.0}}, "random": {"runs": 1}}, "must be below high"),
        ({"grid": {RATE: {"low": 0, "high": 1.0, "log": True}}, "random": {"runs": 1}}, "above 0"),
        ({"random": {"runs": 0}}, "random.runs"),
    ],
)
def test_a_random_search_that_cannot_be_is_refused(
    changes: dict[str, Any], words: str, sweep_file: Callable[..., Path]
) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        load_sweep(sweep_file(**changes))


def test_halving_trains_the_best_for_more_rounds(
    sweep_file: Callable[..., Path], tmp_path: Path, capsys: Capture
) -> None:
    grid = {RATE: [1.0e-6, 1.0e-5, 0.5, 1.0]}
    path = sweep_file("private_federated", grid=grid, halving={"rounds": 1, "factor": 2})
    out = tmp_path / "o"
    command = ["sweep", str(path), "federated.num_rounds=6", "--out", str(out)]
    assert main(command) == 0
    printed = capsys.readouterr()
    # Four points for one round, two for two, one for four, and the last for all six.
    lengths = {
        folder.name: json.loads((folder / "summary.json").read_text(encoding="utf-8"))["rounds"]
        for folder in out.iterdir()
        if (folder / "summary.json").exists()
    }
    assert sorted(lengths.values()) == [1, 1, 1, 1, 2, 2, 4, 6]
    whole = [name for name, rounds in lengths.items() if rounds == 6]
    assert whole in (["central_learning_rate=0.5"], ["central_learning_rate=1.0"])
    assert f"federated.num_rounds=6 {RATE}={whole[0].partition('=')[2]}" in printed.out
    assert "Privacy: 8 private runs" in printed.out
    # The same command reads what is finished, and Python gives the last step's results.
    assert main(command) == 0
    assert "run 1 of" not in capsys.readouterr().err
    (found,) = pfl_bench.sweep(path, out, federated__num_rounds=6)
    assert found["folder"] == str(out / whole[0])
    assert main([*command, "--only", "1"]) == 2
    assert "halving compares its runs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"halving": {"rounds": 2}}, "halving.rounds: 2 is not below the row's num_rounds, 2"),
        ({"grid": {"federated.num_rounds": [2, 3]}, "halving": {"rounds": 1}}, "sets it itself"),
        ({"halving": {"rounds": 1, "factor": 1}}, "halving.factor"),
    ],
)
def test_a_halving_that_cannot_be_is_refused(
    changes: dict[str, Any], words: str, sweep_file: Callable[..., Path]
) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        load_sweep(sweep_file(**changes))


def test_the_grid_is_every_combination(sweep_file: Callable[..., Path]) -> None:
    sweep = load_sweep(sweep_file())
    points = [
        (point.resolved.tree["federated"]["central_learning_rate"], point.values[EPOCHS])
        for point in sweep.combinations
    ]
    assert points == [(1e-6, 1), (1e-6, 2), (1.0, 1), (1.0, 2)]
    assert [point.number for point in sweep.combinations] == [1, 2, 3, 4]
    for point in sweep.combinations:
        config = point.resolved.config
        assert (config.evaluation.final_splits, config.expected) == ([], [])
        assert config.evaluation.select_best == "val/accuracy"
        assert config.federated is not None
        assert config.federated.local_epochs == point.values[EPOCHS]
    assert len({point.resolved.config.name for point in sweep.combinations}) == 4


def test_a_folder_is_named_by_its_values_and_stays_when_the_grid_grows(
    sweep_file: Callable[..., Path],
) -> None:
    before = load_sweep(sweep_file())
    after = load_sweep(sweep_file(grid={RATE: [0.5, 1.0e-6, 1.0], EPOCHS: [1, 2]}))
    kept = {point.slug: point.resolved.tree for point in after.combinations}
    for point in before.combinations:
        assert kept[point.slug] == point.resolved.tree
    assert before.combinations[3].slug == "central_learning_rate=1.0,local_epochs=2"


def test_long_and_odd_values_have_folders_of_their_own(sweep_file: Callable[..., Path]) -> None:
    places = [f"{'x/' * 100}{name}" for name in ("a", "b", "a b", "a:b")]
    grid = {"logging.wandb.project": places, "federated.engine": ["auto", "sequential"]}
    slugs = {point.slug for point in load_sweep(sweep_file(grid=grid)).combinations}
    assert len(slugs) == 8
    assert all(len(slug) <= 120 and "/" not in slug for slug in slugs)
    sweep = load_sweep(sweep_file(grid=grid, halving={"rounds": 1}))
    short = {sweep.shortened(point, 1).slug for point in sweep.combinations}
    # Whole: what is cut off here is the digest that tells long names apart.
    assert short == {f"rounds-1,{slug}" for slug in slugs}


@pytest.mark.parametrize(
    "value", [1, 0.1, 1e-6, 1e300, -2.5, True, False, None, "true", "1e-3", "a: b", "x", "", "ä#"]
)
def test_an_override_reads_back_as_the_value(value: Any) -> None:
    tree: dict[str, Any] = {}
    apply_override(tree, override_text("a.b", value))
    assert tree == {"a": {"b": value}}
    assert type(tree["a"]["b"]) is type(value)


@pytest.mark.parametrize(
    ("changes", "overrides", "words"),
    [
        ({"version": 3}, [], "version: 3 is not 1"),
        ({"version": None}, [], "version: required, but missing; write 'version: 1'"),
        ({"task": {"name": "digits"}, "model": {}}, [], "holds a row, no sweep"),
        ({"grd": {}}, [], "did you mean 'grid'"),
        ({"grid": {}}, [], "grid: must be a section of 1 or more keys"),
        ({"grid": {RATE: []}}, [], "must be a list of 1 or more items"),
        ({"grid": {RATE: [0.1, 0.1]}}, [], "a value stands twice"),
        ({"grid": {RATE: [[0.1]]}}, [], "grid.federated.central_learning_rate"),
        ({"grid": {"federated.local_epoch": [1]}}, [], "did you mean 'local_epochs'"),
        ({"grid": {RATE: [-1.0]}}, [], "must be a finite number > 0"),
        ({"row": "../nowhere.yaml"}, [], "is no file"),
        ({"metric": "accuracy"}, [], "metric: must be text of the pattern"),
        ({"metric": "train/loss"}, [], "does not evaluate while it trains"),
        ({"metric": "test/accuracy"}, [], "may not look at test data"),
        ({}, ["evaluation.splits=[val, test]"], "may not look at test data"),
        ({}, ["evaluation.final_splits=[test]"], "a sweep sets evaluation.final_splits itself"),
        ({"grid": {"name": ["a", "b"]}}, [], "a sweep sets name itself"),
    ],
)
def test_a_wrong_sweep_is_exit_2_before_any_run(
    sweep_file: Callable[..., Path],
    tmp_path: Path,
    changes: dict[str, Any],
    overrides: list[str],
    words: str,
    capsys: Capture,
) -> None:
    path = sweep_file(**changes)
    with pytest.raises(ConfigError, match=words.replace("[", r"\[")):
        load_sweep(path, overrides)
    assert main(["sweep", str(path), *overrides, "--out", str(tmp_path / "runs")]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_sweep_runs_sorts_resumes_and_tells_what_to_test(
    sweep_file: Callable[..., Path],
    tmp_path: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "runs"
    arguments = ["sweep", str(sweep_file()), "--out", str(out), "federated.cohort_size=20"]
    assert main([*arguments, "--only", "2"]) == 0
    partial = capsys.readouterr().out
    assert "1 of 4 combinations are in this table" in partial
    assert "pfl-bench run" not in partial
    assert main(arguments) == 0
    printed = capsys.readouterr()
    assert printed.err.count("finished before; not run again") == 1
    lines = printed.out.splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[:6]]
    assert cells[0] == ["run", RATE, EPOCHS, "best val/accuracy", "at round"]
    values = [float(line[3]) for line in cells[2:]]
    assert values == sorted(values, reverse=True)
    # A rate of 1e-6 learns nothing in two rounds.
    assert {line[1] for line in cells[2:4]} == {"1.0"}
    # Sorted by what the runs' own summaries say, and none of them has seen the test split.
    for summary_path in out.glob("*/summary.json"):
        summary = json.loads(summary_path.read_text())
        assert summary["metrics"] == {}
        assert summary["selection"]["metric"] == "val/accuracy"
        assert "test/" not in (summary_path.parent / "metrics.jsonl").read_text()
    assert not any("Privacy" in line for line in lines)

    (command,) = [line.strip() for line in lines if line.strip().startswith("pfl-bench run")]
    assert "federated.cohort_size=20" in command
    assert main(shlex.split(command)[1:]) == 0
    tested = json.loads((out / "best" / "summary.json").read_text())
    assert tested["name"] == "base"
    assert list(tested["metrics"])
    # The same training: the model that is tested is the one that the sweep chose.
    assert tested["selection"]["value"] == pytest.approx(values[0], abs=5e-5)


def test_an_override_of_a_key_of_the_grid_narrows_it(sweep_file: Callable[..., Path]) -> None:
    sweep = load_sweep(sweep_file(), [f"{EPOCHS}=5", "seed=4"])
    assert [tuple(point.values.values()) for point in sweep.combinations] == [(1e-6, 5), (1.0, 5)]
    assert {point.resolved.config.seed for point in sweep.combinations} == {4}
    assert all("seed=4" in point.overrides for point in sweep.combinations)


def test_a_loss_is_better_when_lower(
    sweep_file: Callable[..., Path], tmp_path: Path, capsys: Capture
) -> None:
    path = sweep_file(metric="val/loss", grid={RATE: [1.0e-6, 1.0]})
    assert main(["sweep", str(path), "--out", str(tmp_path / "runs"), "--format", "csv"]) == 0
    printed = capsys.readouterr()
    header, first, second = (line.split(",") for line in printed.out.splitlines())
    assert header[2] == "best val/loss"
    assert float(first[2]) < float(second[2])
    assert first[1] == "1.0"
    # A program that reads the table meets no prose in it.
    assert "pfl-bench run" in printed.err


def test_private_runs_are_counted_in_words(
    sweep_file: Callable[..., Path], tmp_path: Path, capsys: Capture
) -> None:
    path = sweep_file("private_federated", grid={"privacy.mechanism.quantile": [0.2, 0.6]})
    assert main(["sweep", str(path), "--out", str(tmp_path / "runs")]) == 0
    printed = capsys.readouterr().out
    assert "epsilon (simulated)" in printed
    assert "2 private runs on the same training data" in printed
    assert "composition" in printed
    assert main(["sweep", str(path), "--out", str(tmp_path / "runs"), "--only", "3"]) == 2
    assert "--only 3: give a number from 1 to 2" in capsys.readouterr().err


def test_a_combination_that_fails_is_exit_1(
    sweep_file: Callable[..., Path], tmp_path: Path, capsys: Capture
) -> None:
    # 61 of 60 users cannot be drawn: known only when the data are there.
    path = sweep_file(grid={"federated.cohort_size": [12, 61]})
    assert main(["sweep", str(path), "--out", str(tmp_path / "runs")]) == 1
    printed = capsys.readouterr()
    assert "61" in printed.err
    assert "1 of 2 combinations are in this table" in printed.out


def test_runs_that_another_process_has_finished_meanwhile_are_in_the_table(
    sweep_file: Callable[..., Path],
    tmp_path: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    train = run_many._train

    def while_another_trains(run_folder: Path, resolved: Any) -> dict[str, Any]:
        summary = train(run_folder, resolved)
        if run_folder.name.endswith("local_epochs=1"):
            raise RunFolderError(f"{run_folder}: another process is writing this run; wait for it")
        return summary

    monkeypatch.setattr(run_many, "_train", while_another_trains)
    assert main(["sweep", str(sweep_file(grid={EPOCHS: [1, 2]})), "--out", "runs"]) == 0
    said = capsys.readouterr()
    assert "another process is writing this run" in said.err
    assert "failed" not in said.err
    assert "of 2 combinations" not in said.out


def test_optuna_proposes_points_and_goes_on_after_a_stop(
    sweep_file: Callable[..., Path],
    tmp_path: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("optuna", reason="optuna is not installed")
    grid = {RATE: RANGE, EPOCHS: {"low": 1, "high": 2}, "federated.local_batch_size": [5, 10]}
    path = sweep_file(grid=grid, optuna={"trials": 13, "seed": 3})
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    found = pfl_bench.sweep(path, whole)
    assert [one["value"] for one in found] == sorted((one["value"] for one in found), reverse=True)
    assert all(0.001 <= one[RATE] <= 10.0 for one in found)
    assert {one[EPOCHS] for one in found} == {1, 2}
    train, begun = run_many._train, []

    def killed(run_folder: Path, resolved: Any) -> dict[str, Any]:
        begun.append(run_folder)
        if len(begun) == 12:
            raise KeyboardInterrupt
        return train(run_folder, resolved)

    monkeypatch.setattr(run_many, "_train", killed)
    assert main(["sweep", str(path), "--out", str(broken)]) == 130
    monkeypatch.setattr(run_many, "_train", train)
    capsys.readouterr()
    assert main(["sweep", str(path), "--out", str(broken)]) == 0
    printed = capsys.readouterr()
    assert "13 of 13 trials" in printed.err
    # The eleventh and later ones rest on results.
    assert (broken / "table.md").read_text() == (whole / "table.md").read_text()
    best = max(found, key=lambda one: one["value"])
    assert f"is run {best['number']}." in printed.out
    assert f"{RATE}={best[RATE]}" in printed.out
    assert "Privacy" not in printed.out


def test_a_batch_of_optuna_is_told_together_and_a_point_is_trained_once(
    sweep_file: Callable[..., Path], tmp_path: Path
) -> None:
    pytest.importorskip("optuna", reason="optuna is not installed")
    options = {"trials": 5, "batch": 2, "sampler": "random"}
    path = sweep_file(metric="val/loss", grid={EPOCHS: [1, 2]}, optuna=options)
    found = pfl_bench.sweep(path, tmp_path / "o")
    assert [one[EPOCHS] for one in found] == [2, 1]
    assert found[0]["value"] < found[1]["value"]


@pytest.mark.parametrize(
    ("grid", "overrides", "words"),
    [
        ({RATE: [0.5, 1.0], "privacy.mechanism.clip_norm": [0.25, 0.5]}, [], None),
        (
            {"privacy.noise_multiplier": {"low": 1.0, "high": 4.0}, "privacy.epsilon": [None]},
            [],
            "several costs",
        ),
        ({RATE: [0.5, 1.0]}, ["task.split_by=example"], "training users' own examples"),
    ],
)
def test_points_that_results_choose_have_a_price_where_composition_gives_one(
    grid: dict[str, Any],
    overrides: list[str],
    words: str | None,
    sweep_file: Callable[..., Path],
    tmp_path: Path,
) -> None:
    pytest.importorskip("optuna", reason="optuna is not installed")
    path = sweep_file("private_federated", grid=grid, optuna={"trials": 6, "seed": 1})
    row = yaml.safe_load((path.parent / "../private_federated.yaml").read_text())
    mechanism = {"name": "gaussian", "clip_norm": 0.5}
    row["privacy"] |= {"nonce": None, "mechanism": mechanism}
    (path.parent / "../private_federated.yaml").write_text(yaml.safe_dump(row))
    out = tmp_path / "o"
    assert main(["sweep", str(path), *overrides, "--out", str(out)]) == 0
    record = json.loads((out / "composition.json").read_text())
    if words is not None:
        assert record["epsilon"] == {}
        assert all(words in why for why in record["problems"].values())
        return
    statements = [json.loads(path.read_text()) for path in out.glob("*/privacy.json")]
    # Of six trials at most four have different points; results decide how many.
    assert (record["runs"], record["paid"]) == (len(statements), 6)
    for side in ("simulated", "actual"):
        said = statements[0][side]
        event = dp_event.GaussianDpEvent(said["noise_multiplier"])
        sampled = dp_event.PoissonSampledDpEvent(said["sampling_probability"], event)
        accountant = rdp.RdpAccountant()
        accountant.compose(sampled, 6 * statements[0]["rounds"])
        expected = accountant.get_epsilon(said["delta"])
        assert record["epsilon"][side] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("separations", "is_priced"), [([1, 3], False), ([3], True)])
def test_halving_has_a_price_where_the_shorter_runs_of_all_points_cost_the_same(
    separations: list[int], is_priced: bool, sweep_file: Callable[..., Path], tmp_path: Path
) -> None:
    # Of six rounds a user is in two at most in either separation; of the first two in two or one.
    grid = {"federated.separation": separations, RATE: [0.5, 1.0]}
    path = sweep_file("private_federated", grid=grid, halving={"rounds": 2, "factor": 3})
    devices = ["systems={source: {name: generated}}", "federated.sampling=selected"]
    limits = ["federated.max_participations=2", "federated.num_rounds=6"]
    sweep = load_sweep(path, [*devices, *limits, "privacy.noise_cohort_size=null"])
    why = adaptive_problem(sweep, tmp_path / "o")
    assert (why is None) == is_priced
    assert is_priced or "several costs of 2 rounds" in str(why)


@pytest.mark.parametrize(
    ("changes", "arguments", "words"),
    [
        ({"random": {"runs": 2}}, [], "optuna: random chooses among points too"),
        ({"halving": {"rounds": 1}}, [], "optuna: halving chooses among points too"),
        ({"optuna": {"trials": 0}}, [], "optuna.trials"),
        ({"optuna": {"trials": 2, "sampler": "tp"}}, [], "optuna.sampler"),
        ({"grid": {RATE: {"low": -1.0, "high": 1.0}}}, [], "must be a finite number > 0"),
        ({}, ["--only", "1"], "Optuna compares its runs"),
    ],
)
def test_an_optuna_sweep_that_cannot_be_is_refused(
    changes: dict[str, Any],
    arguments: list[str],
    words: str,
    sweep_file: Callable[..., Path],
    tmp_path: Path,
    capsys: Capture,
) -> None:
    path = sweep_file(**{"grid": {RATE: RANGE}, "optuna": {"trials": 2}, **changes})
    assert main(["sweep", str(path), *arguments, "--out", str(tmp_path / "o")]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


def test_optuna_that_is_not_installed_is_named(
    sweep_file: Callable[..., Path],
    tmp_path: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    path = sweep_file(optuna={"trials": 2})
    assert main(["sweep", str(path), "--out", str(tmp_path / "o")]) == 2
    assert "pip install 'pfl-bench[optuna]'" in capsys.readouterr().err
