"""Families of metrics that a row names beside its task's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pfl_bench.cli.main import main
from pfl_bench.config.row_differences import is_harmless
from tests import warm
from tests.helpers import REPOSITORY

MARGIN = """
import torch
from pydantic import BaseModel, ConfigDict

LOWER_IS_BETTER = frozenset()
HEADLINES = ("NAME",)

class Options(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

class Margin:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def update(self, outputs, targets):
        two = torch.topk(torch.softmax(outputs, 1), 2).values
        margin = two[:, 0] - two[:, 1]
        self.total, self.count = self.total + float(margin.double().sum()), self.count + len(margin)
        return {"NAME": margin}

    def merge(self, other):
        self.total, self.count = self.total + other.total, self.count + other.count

    def compute(self):
        return {"NAME": self.total / self.count}

def build(options, facts):
    return Margin()
"""


def run(row: Path, out: Path, *more: str) -> dict[str, Any]:
    """Run a row with the plug-ins beside it, in a process of its own."""
    command = ["-m", "pfl_bench", "run", str(row), "--plugins", str(row.parent)]
    done = warm.python(*command, "--out", str(out), *more, cwd=REPOSITORY)
    if done.returncode:
        return {"error": done.stderr}
    found: dict[str, Any] = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    return found


def plugins_of(folder: Path, **metrics: str) -> None:
    (folder / "metrics").mkdir()
    for name, value in metrics.items():
        text = MARGIN.replace("NAME", value)
        (folder / "metrics" / f"{name}.py").write_text(text, encoding="utf-8")


def test_a_plugin_s_metric_is_measured_beside_the_task_s_and_chooses_the_model(
    config_file: Callable[..., Path], tmp_path: Path
) -> None:
    plugins_of(tmp_path, margin="margin")
    row = config_file("federated", evaluation__metrics=["margin"], federated__num_rounds=4)
    chosen = ["evaluation.every=2", "evaluation.select_best=val/margin"]
    summary = run(row, tmp_path / "one", *chosen)
    assert 0 < summary["metrics"]["test/margin"] < 1
    assert {"test/client_margin_p50", "test/accuracy"} <= set(summary["metrics"])
    assert summary["metric_directions"]["headlines"] == ["accuracy", "margin"]
    assert "val/margin" in json.dumps(summary["best"])
    # Each of two processes measures a part.
    parts = run(row, tmp_path / "two", *chosen, "federated.workers=2")
    assert parts["metrics"] == pytest.approx(summary["metrics"])
    # What a run measures beside its row's metrics makes it no other row.
    assert is_harmless("evaluation.metrics")


def test_two_families_that_measure_one_thing_are_refused(
    config_file: Callable[..., Path], tmp_path: Path
) -> None:
    plugins_of(tmp_path, other="accuracy")
    row = config_file("federated", evaluation__metrics=["other"])
    error = run(row, tmp_path / "run")["error"]
    assert "evaluation.metrics: 'other' and 'classification' both measure 'accuracy'" in error
    assert "Traceback" not in error
    assert not (tmp_path / "run" / "summary.json").exists()


TASK = """
from tasks.digits import task as digits

Options = digits.Options

def build(options):
    task = digits.build(options)
    task.metrics = ("classification", "other")
    return task
"""


def test_two_families_of_a_task_that_measure_one_thing_are_refused(
    config_file: Callable[..., Path], tmp_path: Path
) -> None:
    plugins_of(tmp_path, other="accuracy")
    home = tmp_path / "tasks" / "own"
    home.mkdir(parents=True)
    (home / "task.py").write_text(TASK, encoding="utf-8")
    (home / "models.py").write_text("from tasks.digits.models import *", encoding="utf-8")
    row = config_file("federated", task={"name": "own", "num_users": 60})
    error = run(row, tmp_path / "run")["error"]
    assert "the task's metrics: 'other' and 'classification' both measure 'accuracy'" in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("clasification", "did you mean 'classification'?"),
        ("multilabel", "evaluation.metrics: 'multilabel' cannot measure this task: "),
    ],
)
def test_a_family_that_is_not_there_or_does_not_fit_is_refused(
    named: str,
    words: str,
    config_file: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    row = config_file("federated", evaluation__metrics=[named])
    assert main(["run", str(row), "--out", str(tmp_path / "run")]) == 2
    assert words in capsys.readouterr().err


def test_a_metric_for_which_there_is_no_memory_is_not_said_to_be_unfit(
    config_file: Callable[..., Path], tmp_path: Path
) -> None:
    plugins_of(tmp_path, huge="huge")
    file = tmp_path / "metrics" / "huge.py"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("two = ", "torch.empty(2**58)\n        two = "), encoding="utf-8")
    row = config_file("federated", evaluation__metrics=["huge"])
    error = run(row, tmp_path / "run")["error"]
    assert "memory ran out (one tensor needs" in error
    assert "cannot measure" not in error
