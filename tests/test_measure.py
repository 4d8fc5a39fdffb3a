"""The queue of measurements runs a commit's rows, resumes, audits, and writes records and page."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests import warm
from tests.docs.following import script
from tests.helpers import REPOSITORY

MEASURE = script("measure")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A clone of this repository's last commit."""
    if not (REPOSITORY / ".git").exists():
        pytest.skip("needs the repository, not only its files")
    place = tmp_path / "checkout"
    subprocess.run(["git", "clone", "-q", "--local", REPOSITORY, place], check=True)
    return place


@pytest.fixture
def warm_commands(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Commands are processes of their own, but have their libraries imported."""
    warm.ensure_running()
    with warm.command() as python:
        monkeypatch.setattr(sys, "executable", python)
        yield
        monkeypatch.undo()


def queue(folder: Path, **changes: object) -> Path:
    entry = {"rows": ["demo/private_federated.yaml"], "seeds": 1, "into": "new.json", **changes}
    path = folder / "queue.yaml"
    path.write_text(yaml.safe_dump({"queue": [entry]}), encoding="utf-8")
    return path


@pytest.mark.slow
def test_finished_runs_are_audited_and_recorded_once(
    checkout: Path,
    warm_commands: None,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    # The page is written three times: here of two sections.
    for path in (checkout / "docs/results").iterdir():
        if path.suffix in (".json", ".yaml") and path.stem not in ("page", "demo"):
            path.unlink()
    section = {"title": "New", "command": "pfl-bench run it", "records": ["new.json"]}
    changes = {"federated.num_rounds=2", "privacy.epsilon=null", "privacy.noise_multiplier=1.0"}
    changes |= {"federated.cohort_size=6"}
    why = {"demo-private-federated test/accuracy": "It has two rounds of few users."}
    path = checkout / "docs/results/new.yaml"
    path.write_text(yaml.safe_dump({**section, "why": why}), encoding="utf-8")
    file = queue(tmp_path, overrides=sorted(changes))
    # Not the lowest priority: on two cores the other tests would have all that there is.
    call = [str(file), "--runs", str(tmp_path / "runs"), "--nice", "0"]
    assert MEASURE.main(call, checkout) == 0, capfd.readouterr().err
    records = checkout / "docs/results/new.json"
    (record,) = json.loads(records.read_text())
    commit = subprocess.check_output(["git", "-C", checkout, "rev-parse", "HEAD"], text=True)
    assert record["commits"] == [commit.strip()]
    assert record["seeds"] == [0]
    assert record["privacy"]["audits"] == {"passed": 1}
    assert "## New" in (checkout / "docs/results.md").read_text()
    before = records.read_bytes()
    capfd.readouterr()
    assert MEASURE.main(call, checkout) == 0
    assert records.read_bytes() == before
    # Stopped after its last checkpoint: it goes on, for another checkout, and comes to the same.
    shutil.move(checkout, tmp_path / "moved")
    checkout = tmp_path / "moved"
    (run,) = (tmp_path / "runs").rglob("seed-0/summary.json")
    metrics = json.loads(run.read_text())["metrics"]
    run.unlink()
    assert MEASURE.main(call, checkout) == 0, capfd.readouterr().err
    assert json.loads(run.read_text())["metrics"] == metrics


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": ["demo/nothing.yaml"]}, "configs/ has no demo/nothing.yaml"),
        ({"seeds": 0}, "seeds"),
        ({"jobs": 2}, "jobs"),
    ],
)
def test_a_wrong_queue_starts_nothing(
    changes: dict[str, object], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = queue(tmp_path, **changes)
    assert MEASURE.main([str(file), "--runs", str(tmp_path / "runs")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_runs_inside_the_checkout_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert MEASURE.main([str(queue(tmp_path)), "--runs", str(REPOSITORY / "runs")]) == 2
    assert "inside the checkout" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="no autogroups")
def test_a_session_of_its_own_gives_way_to_others_and_no_other_does() -> None:
    code = "import measure, pathlib; measure.give_way(7); "
    code += "print(pathlib.Path('/proc/self/autogroup').read_text())"
    for own in (True, False):
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=REPOSITORY / "scripts",
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            start_new_session=own,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip().endswith("nice 7") == own
