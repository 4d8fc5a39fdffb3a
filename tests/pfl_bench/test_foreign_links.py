"""A stranger's run folder has nothing written outside of it, and names no server."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import yaml

from pfl_bench.cli.main import main
from pfl_bench.config.row_files import bundled_configs
from pfl_bench.files import write_atomically
from pfl_bench.runs.shadows import shadow_plans

ROW = bundled_configs() / "demo" / "private_federated.yaml"
SETTINGS = ["federated.num_rounds=2", "checkpoint.every=1"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("theirs") / "run"
    assert main(["run", str(ROW), *SETTINGS, "--out", str(out)]) == 0
    return out


@pytest.fixture
def theirs(whole: Path, tmp_path: Path) -> Path:
    """A run that stopped after its first round."""
    out = tmp_path / "theirs"
    shutil.copytree(whole, out)
    for name in ("summary.json", "checkpoints/step-00000002.pt"):
        (out / name).unlink()
    return out


def test_what_has_the_name_of_a_part_is_not_written_through(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("mine")
    inside = tmp_path / "theirs"
    inside.mkdir()
    for make in (os.symlink, os.link):
        make(outside, inside / f".audit.json.{os.getpid()}.partial")
        write_atomically(inside / "audit.json", "new")
        assert outside.read_text() == "mine"
        assert not (inside / "audit.json").is_symlink()
        assert [path.name for path in inside.iterdir()] == ["audit.json"]


@pytest.mark.parametrize(
    "name", ["run.log", "ledger.jsonl", "metrics.jsonl", "checkpoints", "tensorboard"]
)
def test_a_run_goes_on_through_no_link(
    name: str, theirs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outside = tmp_path / "outside"
    if (theirs / name).exists():
        (theirs / name).rename(outside)
    else:
        outside.mkdir()
    (theirs / name).symlink_to(outside)
    before = sorted((path, path.stat().st_mtime_ns) for path in [outside, *outside.rglob("*")])
    assert main(["run", str(theirs / "config.yaml"), "--resume", "--out", str(theirs)]) == 2
    assert f"{theirs / name}: is a symbolic link" in capsys.readouterr().err
    after = sorted((path, path.stat().st_mtime_ns) for path in [outside, *outside.rglob("*")])
    assert after == before


def test_a_run_does_not_wait_for_a_pipe(theirs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (theirs / "run.log").unlink()
    os.mkfifo(theirs / "run.log")
    assert main(["run", str(theirs / "config.yaml"), "--resume", "--out", str(theirs)]) == 2
    assert "run.log: is a pipe or device" in capsys.readouterr().err


def test_an_audit_does_not_wait_for_a_pipe(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = tmp_path / "theirs"
    shutil.copytree(whole, theirs)
    (theirs / "run.log").unlink()
    os.mkfifo(theirs / "run.log")
    assert main(["audit", str(theirs), "--recompute", "none"]) == 1
    assert "run.log: it is no regular file" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("name", ["attack", "attack/shadows", "attack/shadows/shadow-0000"])
def test_an_attack_writes_through_no_link(
    name: str, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs, outside = tmp_path / "theirs", tmp_path / "outside"
    shutil.copytree(whole, theirs)
    outside.mkdir()
    (theirs / name).parent.mkdir(parents=True, exist_ok=True)
    (theirs / name).symlink_to(outside)
    assert main(["attack", str(theirs), "--kind", "loss", "--shadows", "4"]) == 2
    assert f"{theirs / name}: is a symbolic link" in capsys.readouterr().err
    assert not list(outside.iterdir())


def test_shadow_runs_of_a_run_folder_tell_nobody_that_it_names(whole: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    shutil.copytree(whole, theirs)
    tree = yaml.safe_load((theirs / "config.yaml").read_text())
    tree["logging"]["wandb"] = {"mode": "online", "entity": "them"}
    tree["logging"]["mlflow"] = {"enabled": True, "uri": "http://127.0.0.1:9"}
    (theirs / "config.yaml").write_text(yaml.safe_dump(tree))
    _, plans = shadow_plans(theirs / "config.yaml", [], 4, tmp_path / "out")
    logging = plans[0][1].tree["logging"]
    assert logging["wandb"]["mode"] == "disabled"
    assert not logging["mlflow"]["enabled"]
    # What the user asks for is asked for.
    given = ["logging.tensorboard.enabled=true"]
    _, plans = shadow_plans(theirs / "config.yaml", given, 4, tmp_path / "out")
    assert plans[0][1].tree["logging"]["tensorboard"]["enabled"]
