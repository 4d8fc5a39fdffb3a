"""A run that is not its row is not compared with what is published of the row."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from pfl_bench.cli.main import main
from pfl_bench.cli.run_many import train_in_job
from pfl_bench.config.loading import load_config
from pfl_bench.config.row_differences import is_harmless, row_differences
from pfl_bench.config.row_files import rows_below
from pfl_bench.report.leaderboard import standings
from pfl_bench.report.page import write_report
from pfl_bench.report.records import told_apart
from pfl_bench.report.run_folder import read_run
from pfl_bench.runs.rows import rows_from_summaries
from tests.helpers import REPOSITORY

Capture = pytest.CaptureFixture[str]

ANYTHING = {"metric": "test/accuracy", "value": 0.5, "sd": 0.0, "seeds": 2, "tolerance": 1.0,
            "source": "any number"}  # fmt: skip
RATE = "federated.local_learning_rate"


def verdicts(folder: Path) -> list[tuple[str, str]]:
    summary = json.loads((folder / "summary.json").read_text())
    return [(entry["verdict"], entry["why"]) for entry in summary["expected"]]


@pytest.fixture
def row(config_file: Callable[..., Path]) -> Path:
    """A row of two rounds, with an expected accuracy that every model has."""
    return config_file("federated", federated__num_rounds=2, expected=[ANYTHING])


@pytest.mark.parametrize(
    ("overrides", "differences"),
    [
        ([], []),
        (["privacy.epsilon=5.0"], []),
        (["privacy.epsilon=5", "federated={cohort_size: 12, num_rounds: 6, local_batch_size: 4, "
          "local_learning_rate: 0.3}"], []),
        (["federated.num_rounds=7", "federated.num_rounds=6"], []),
        (["seed=9", "device=auto", "num_threads=2", "name=mine", "federated.workers=2",
          "federated.engine=vectorized", "federated.engine_lanes=4", "federated.data_workers=1",
          "checkpoint.every=1", "logging.wandb.mode=offline", "evaluation.every=1",
          "evaluation.splits=[val, test]", "evaluation.final_splits=[test, val]",
          "evaluation.batch_size=8", "precision=auto"], []),
        (["privacy.noise_multiplier=0.01", "privacy.epsilon=null"],
         ["privacy.epsilon 5.0 -> null", "privacy.noise_multiplier null -> 0.01"]),
        (["privacy=null"], ["privacy {"]),
        (["federated.cohort_size=13", "seed=2"], ["federated.cohort_size 12 -> 13"]),
        (["precision=bfloat16"], ["precision float32 -> bfloat16"]),
        (["task.partition_seed=1"], ["task.partition_seed 0 -> 1"]),
        (["model.name=mlp"], ["model.name softmax -> mlp"]),
        (["privacy.accountant=pld"], ["privacy.accountant rdp -> pld"]),
        (["federated.algorithm={name: fedprox, proximal_weight: 0.1}"],
         ["federated.algorithm.name fedavg -> fedprox",
          "federated.algorithm.proximal_weight null -> 0.1"]),
        (["evaluation.select_best=val/accuracy"],
         ["evaluation.select_best null -> val/accuracy"]),
        # Which rounds the best is chosen from.
        (["evaluation.every=1", "evaluation.select_best=val/accuracy"],
         ["evaluation.every 2 -> 1", "evaluation.select_best null -> val/accuracy"]),
        (["expected=[{metric: test/accuracy, value: 1, tolerance: 1, source: me}]"],
         ["expected [] -> ["]),
    ],
)  # fmt: skip
def test_what_makes_a_run_another_than_its_row(
    config_file: Callable[..., Path], overrides: list[str], differences: list[str]
) -> None:
    resolved = load_config(config_file("private_federated"), overrides)
    assert len(resolved.not_the_row) == len(differences)
    for said, wanted in zip(resolved.not_the_row, differences, strict=True):
        assert said.startswith(wanted)


def test_the_nonce_of_a_private_seed_and_where_files_lie_are_no_difference() -> None:
    assert is_harmless("privacy.nonce")
    row = {"task": {"data": "a.h5"}, "model": {"weights": None}, "systems": {"source": {}}}
    moved = {"task": {"data": "b.h5"}, "model": {"weights": None}, "systems": {"source": {}}}
    assert row_differences(row, moved) == ()
    trained = {**moved, "model": {"weights": "w.pt"}}
    assert row_differences(row, trained) == ("model.weights null -> w.pt",)


def test_a_file_that_needs_its_overrides_is_compared_as_it_is_written(
    config_file: Callable[..., Path],
) -> None:
    path = config_file("federated", federated__num_rounds="to be given")
    resolved = load_config(path, ["federated.num_rounds=3", "seed=2"])
    assert resolved.not_the_row == ("federated.num_rounds to be given -> 3",)


def test_many_differences_are_cut(config_file: Callable[..., Path]) -> None:
    keys = ("num_rounds", "cohort_size", "local_epochs", "local_batch_size", "local_steps",
            "local_learning_rate", "local_momentum")  # fmt: skip
    values = (7, 7, 7, 7, 7, 0.7, 0.7)
    given = [f"federated.{key}={value}" for key, value in zip(keys, values, strict=True)]
    said = load_config(config_file("federated"), given).not_the_row
    assert len(said) == 6
    assert said[-1] == "and 2 more"


def test_the_demo_with_hardly_any_noise_is_not_the_row(tmp_path: Path, capsys: Capture) -> None:
    """Golden: it was "reproduced" with an infinite epsilon."""
    row = REPOSITORY / "configs" / "demo" / "private_federated.yaml"
    changes = ["privacy.noise_multiplier=0.01", "privacy.epsilon=null", "federated.num_rounds=1"]
    assert main(["run", str(row), *changes, "--out", str(tmp_path / "run")]) == 0
    ((verdict, why),) = verdicts(tmp_path / "run")
    assert verdict == "not the row"
    assert why == (
        "federated.num_rounds 60 -> 1; privacy.epsilon 4.0 -> null; "
        "privacy.noise_multiplier null -> 0.01"
    )
    printed = capsys.readouterr().out
    assert "not the row [1]" in printed
    assert why in printed


def test_every_command_keeps_to_it(row: Path, tmp_path: Path, capsys: Capture) -> None:
    """A table with seeds and overrides, a run of the same folder, and a view of the runs."""
    folder, runs = tmp_path / "rows", tmp_path / "runs"
    folder.mkdir()
    row = row.rename(folder / "fl.yaml")
    table = ["table", str(folder), "--out", str(runs)]
    assert main([*table, "--seeds", "2"]) == 0
    assert "reproduced" in capsys.readouterr().out
    changed = tmp_path / "changed"
    other = ["table", str(folder), f"{RATE}=0.2", "--out", str(changed)]
    assert main(other) == 0
    difference = f"{RATE} 0.3 -> 0.2"
    assert difference in capsys.readouterr().out
    view = {
        "version": 1,
        "view_of": ".",
        "rows": [{"row": "fl", "expected": [{**ANYTHING, "source": "the view's"}]}],
    }
    (folder / "view.yaml").write_text(yaml.safe_dump(view), encoding="utf-8")
    assert main(other) == 0
    assert difference in capsys.readouterr().out
    assert main(table) == 0
    assert "1 of 1" in capsys.readouterr().out


def test_a_job_keeps_to_it(row: Path, tmp_path: Path) -> None:
    resolved = load_config(row, [f"{RATE}=0.2"])
    out = tmp_path / "run"
    given = (resolved.tree, resolved.source, resolved.overrides, resolved.not_the_row)
    assert train_in_job(out, *given) is None
    assert verdicts(out)[0][0] == "not the row"


def test_a_resumed_run_is_what_its_configuration_is(row: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    arguments = ["run", str(row), f"{RATE}=0.2", "--out", str(out)]
    assert main(arguments) == 0
    (out / "summary.json").unlink()
    shutil.rmtree(out / "checkpoints")
    assert main([*arguments, "--resume"]) == 0
    assert verdicts(out) == [("not the row", f"{RATE} 0.3 -> 0.2")]


def test_a_finished_run_is_compared_anew(row: Path, tmp_path: Path, capsys: Capture) -> None:
    """By an earlier release it was compared whatever it was; and rows are mended."""
    out = tmp_path / "run"
    arguments = ["run", str(row), f"{RATE}=0.2", "--out", str(out)]
    assert main(arguments) == 0
    path = out / "summary.json"
    summary = json.loads(path.read_text())
    summary["expected"][0] |= {"verdict": "reproduced", "why": ""}
    path.write_text(json.dumps(summary))
    capsys.readouterr()
    assert main(arguments) == 0
    assert "not the row" in capsys.readouterr().out
    assert verdicts(out)[0][0] == "not the row"

    tree = yaml.safe_load(row.read_text())
    tree["federated"]["local_learning_rate"] = 0.2
    tree["expected"][0]["value"] = 9.0
    row.write_text(yaml.safe_dump(tree))
    assert main(["run", str(row), "--out", str(out)]) == 1
    assert verdicts(out) == [("differs", "")]


@pytest.mark.parametrize(
    "damage",
    [
        {},
        {"expected": 3},
        {"metrics": None},
        {"diverged": "yes"},
    ],
)
def test_a_damaged_summary_is_refused(
    row: Path, tmp_path: Path, capsys: Capture, damage: dict[str, Any]
) -> None:
    out = tmp_path / "run"
    assert main(["run", str(row), "--out", str(out)]) == 0
    path = out / "summary.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **damage} if damage else {}))
    capsys.readouterr()
    assert main(["run", str(row), "--out", str(out)]) == 2
    assert str(path) in capsys.readouterr().err


def test_a_copied_row_is_its_own_but_a_run_s_record_of_no_row_is_not(
    row: Path, tmp_path: Path
) -> None:
    tree = yaml.safe_load(row.read_text())
    tree["federated"]["local_learning_rate"] = 0.2
    mine = tmp_path / "mine.yaml"
    mine.write_text(yaml.safe_dump(tree))
    assert load_config(mine).not_the_row == ()
    assert main(["run", str(row), f"{RATE}=0.2", "--out", str(tmp_path / "run")]) == 0
    record = tmp_path / "run" / "config.yaml"
    assert load_config(record).not_the_row == (f"{RATE} 0.3 -> 0.2",)
    assert main(["run", str(row), "--out", str(tmp_path / "whole")]) == 0
    assert load_config(tmp_path / "whole" / "config.yaml").not_the_row == ()


def test_two_rows_of_one_name_are_refused(
    config_file: Callable[..., Path], tmp_path: Path, capsys: Capture
) -> None:
    """They were averaged as two seeds of one row."""
    folder = tmp_path / "rows"
    (folder / "deeper").mkdir(parents=True)
    first = config_file("federated", federated__num_rounds=1).rename(folder / "a.yaml")
    second = config_file("central").rename(folder / "deeper" / "b.yaml")
    table = ["table", str(folder), "--out", str(tmp_path / "runs")]
    assert main(table) == 2
    said = capsys.readouterr().err
    assert str(first) in said
    assert str(second) in said
    assert "'small'" in said
    assert not (tmp_path / "runs").exists()
    view: dict[str, Any] = {"version": 1, "view_of": "."}
    view["rows"] = [{"row": name, "expected": [ANYTHING]} for name in ("a", "deeper/b")]
    (folder / "view.yaml").write_text(yaml.safe_dump(view), encoding="utf-8")
    assert main(table) == 2
    assert str(second) in capsys.readouterr().err
    assert main([*table, "--only", "a", "--seeds", "2"]) == 0


def test_records_of_runs_are_no_rows(row: Path, tmp_path: Path) -> None:
    """Runs may lie below the folder of their rows."""
    assert main(["run", str(row), "--out", str(tmp_path / "runs" / "one")]) == 0
    assert list(rows_below(tmp_path)) == ["federated"]


DEMO = REPOSITORY / "configs" / "demo" / "federated.yaml"


@pytest.mark.parametrize("name", [None, "mine"])
def test_an_edited_copy_of_a_bundled_row_is_not_the_row(tmp_path: Path, name: str | None) -> None:
    """By its name, or by the source of its number; what changes no result is no edit."""
    tree = yaml.safe_load(DEMO.read_text(encoding="utf-8"))
    tree |= {"name": name or tree["name"], "seed": 3, "num_threads": 2, "checkpoint": {"every": 7}}
    copy = tmp_path / "copy.yaml"
    copy.write_text(yaml.safe_dump(tree), encoding="utf-8")
    assert load_config(copy).not_the_row == ()
    rate = tree["federated"]["local_learning_rate"]
    edited = load_config(copy, [f"{RATE}=0.0123"]).not_the_row
    assert edited == (f"{RATE} {rate} -> 0.0123",)
    tree["federated"]["local_learning_rate"] = 0.0123
    copy.write_text(yaml.safe_dump(tree), encoding="utf-8")
    assert load_config(copy).not_the_row == edited
    assert load_config(copy, [f"{RATE}={rate}"]).not_the_row[-1] == f"{RATE} 0.0123 -> {rate}"
    changes = ["federated.num_rounds=1", "federated.cohort_size=2"]
    assert main(["run", str(copy), *changes, "--out", str(tmp_path / "run")]) == 0
    assert {verdict for verdict, _ in verdicts(tmp_path / "run")} == {"not the row"}


def test_an_edited_number_of_a_paper_is_not_the_row(tmp_path: Path) -> None:
    tree = yaml.safe_load(DEMO.read_text(encoding="utf-8"))
    tree["expected"][0]["value"] = 0.1234
    copy = tmp_path / "copy.yaml"
    copy.write_text(yaml.safe_dump(tree), encoding="utf-8")
    (said,) = load_config(copy).not_the_row
    assert said.startswith("expected [")
    tree["name"] = "mine"
    for entry in tree["expected"]:
        entry["source"] = "my own"
    copy.write_text(yaml.safe_dump(tree), encoding="utf-8")
    assert load_config(copy).not_the_row == ()


def test_runs_of_one_name_and_other_settings_are_no_seeds_of_one_row(
    row: Path, tmp_path: Path
) -> None:
    """They were averaged."""
    other = ["federated.num_rounds=1", "seed=1"]
    for name, changes in {"a": [], "b": other}.items():
        assert main(["run", str(row), *changes, "--out", str(tmp_path / name)]) == 0
    summaries = [json.loads((tmp_path / name / "summary.json").read_text()) for name in "ab"]
    assert [len(line.measured) for line in rows_from_summaries(summaries)] == [1, 1]
    named = [run.name for run in told_apart([read_run(tmp_path / name) for name in "ab"])]
    assert named == ["small", "small (2: federated.num_rounds 2 -> 1)"]
    page = write_report([tmp_path / name for name in "ab"], tmp_path / "both.html")
    assert named[1].replace(">", "&gt;") in page.read_text(encoding="utf-8")


def test_an_edited_configuration_has_no_outcome(row: Path, tmp_path: Path, capsys: Capture) -> None:
    """A run at another rate won as the row, once its config.yaml said the row's rate."""
    out = tmp_path / "run"
    assert main(["run", str(row), f"{RATE}=0.2", "--out", str(out)]) == 0
    record = out / "config.yaml"
    tree = yaml.safe_load(record.read_text(encoding="utf-8"))
    tree["federated"]["local_learning_rate"] = 0.3
    record.write_text(yaml.safe_dump(tree), encoding="utf-8")
    capsys.readouterr()
    assert main(["run", str(row), "--out", str(out)]) == 0
    assert "edited" in capsys.readouterr().out
    assert verdicts(out)[0][0] == "edited"
    ((table,), seen) = standings([read_run(out)]), read_run(out)
    assert [line.rank for line in table.rows] == [None]
    assert seen.summary.expected[0].verdict == "edited"
    tree["federated"]["local_learning_rate"] = 0.2
    record.write_text(yaml.safe_dump(tree), encoding="utf-8")
    mended = read_run(out).summary
    assert mended is not None
    assert not mended.edited


def test_a_typed_summary_has_no_outcome(row: Path, tmp_path: Path) -> None:
    assert main(["run", str(row), "--out", str(tmp_path / "run")]) == 0
    path = tmp_path / "run" / "summary.json"
    summary = json.loads(path.read_text())
    assert read_run(path.parent).summary.expected[0].verdict == "reproduced"
    for change in ({"settings_sha256": None}, {"settings_sha256": "3"}, {"seed": 5}):
        path.write_text(json.dumps({**summary, **change}))
        assert read_run(path.parent).summary.expected[0].verdict == "edited"


def test_a_resumed_run_keeps_the_settings_of_its_checkpoints(
    row: Path, tmp_path: Path, capsys: Capture
) -> None:
    """An edited config.yaml, resumed under the same edit, went on from the other's checkpoint."""
    out = tmp_path / "run"
    assert main(["run", str(row), "--out", str(out)]) == 0
    (out / "summary.json").unlink()
    record = out / "config.yaml"
    tree = yaml.safe_load(record.read_text(encoding="utf-8"))
    for key, value, said in (
        ("local_learning_rate", 0.2, f"{RATE} (0.3 -> 0.2)"),
        ("num_rounds", 3, "federated.num_rounds (2 -> 3)"),
    ):
        changed = json.loads(json.dumps(tree))
        changed["federated"][key] = value
        record.write_text(yaml.safe_dump(changed), encoding="utf-8")
        command = ["run", str(row), f"federated.{key}={value}", "--out", str(out), "--resume"]
        assert main(command) == 2
        assert said in capsys.readouterr().err
        assert not (out / "summary.json").exists()
    tree["checkpoint"]["every"] = 17
    record.write_text(yaml.safe_dump(tree), encoding="utf-8")
    assert main(["run", str(row), "checkpoint.every=17", "--out", str(out), "--resume"]) == 0
