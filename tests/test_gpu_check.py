"""The check of a machine's GPU, as far as it runs without one."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pfl_bench.api import load_row
from tests.helpers import REPOSITORY


@pytest.fixture(scope="module")
def check() -> Iterator[SimpleNamespace]:
    scripts = str(REPOSITORY / "scripts")
    sys.path.insert(0, scripts)
    try:
        names = {"driver": "gpu_check", "steps": "benchmarks.gpu_steps"}
        yield SimpleNamespace(**{key: importlib.import_module(m) for key, m in names.items()})
    finally:
        sys.path.remove(scripts)


def test_an_environment_that_is_given_finds_the_checkout_and_its_own_packages(
    tmp_path: Path,
) -> None:
    """An environment on a machine with a GPU has neither the checkout nor its ``.venv``."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nprintf %s "$PYTHONPATH"\n')
    python.chmod(0o755)
    for given, wanted in (("", str(REPOSITORY)), ("/tmp/site", f"{REPOSITORY}:/tmp/site")):
        environment = {**os.environ, "PYTHON": str(python), "PYTHONPATH": given}
        done = subprocess.run(
            ["bash", REPOSITORY / "scripts/gpu_check.sh", "--list"],
            env=environment, cwd=tmp_path, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout == wanted


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_a_failure_goes_on_and_steps_that_need_a_gpu_are_skipped(
    check: SimpleNamespace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, steps = tmp_path / "found.json", check.steps.STEPS
    # Imports alone take longer.
    broken = check.steps.Step("too slow", 0.05, False, steps["decoding"].run)
    monkeypatch.setitem(steps, "decoding", broken)
    names = ["decoding", "tests", "environment"]
    only = [argument for name in names for argument in ("--only", name)]
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--jobs", "2", "--out", str(out), *only])
    assert check.driver.main() == 1
    found = json.loads(out.read_text())
    assert {name: step["status"] for name, step in found["steps"].items()} == {
        "decoding": "failed",
        "tests": "skipped",
        "environment": "passed",
    }
    assert found["steps"]["decoding"]["why"].startswith("not done after")
    assert found["steps"]["tests"]["why"] == "no GPU"
    versions = found["steps"]["environment"]["found"]["versions"]
    assert versions["torch"] == torch.__version__.partition("+")[0]
    assert "skipped" in capsys.readouterr().out


def test_a_spent_budget_skips_what_is_left(check: SimpleNamespace) -> None:
    began = time.monotonic()
    outcome = check.driver._outcome("environment", check.steps.STEPS["environment"], "cpu", 0.0)
    assert outcome == {"status": "skipped", "why": "the budget of time is spent"}
    assert time.monotonic() - began < 1


@pytest.mark.parametrize("name", ["decoding", "profile-softmax", "repeat-cnn", "repeat-lstm"])
def test_a_step_measures(
    name: str, check: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Few data of the same shapes.
    load, make = check.steps.FEMNIST["cnn"], partial(check.steps.FORTY, mean_examples=15)
    small = partial(check.steps.STEPS["repeat-cnn"].run.func, load, make)
    monkeypatch.setitem(
        check.steps.STEPS, "repeat-cnn", replace(check.steps.STEPS["repeat-cnn"], run=small)
    )
    monkeypatch.setattr(check.steps.shakespeare, "MOST_WINDOWS", 15)
    found = check.steps.run_step(name, "cpu", tmp_path)
    if name == "decoding":
        assert found["cpu"]["pictures_a_second"] > 1
    elif name.startswith("repeat-"):
        assert found["parameters"] > 0
    else:
        assert found["clients"] > 0
        assert found["launches"] == 0
        assert len(found["most"]) == len(found["host"]) == 12


def test_a_precision_that_a_row_refuses_is_said_and_ends_nothing(
    check: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check.steps, "DEMO", ("central_dp",))
    found = check.steps.run_step("demo-bfloat16", "cpu", tmp_path)
    assert "set precision to float32" in found["central_dp"]["refused"]


def test_cells_are_run_while_time_is_left_and_kept(
    check: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, cells, named = check.steps, check.steps.niid_cells, []
    runs = tmp_path / "runs"
    monkeypatch.delenv(cells.DATA, raising=False)
    assert steps.run_step("niid-bench", "cpu", tmp_path)["cells"] == {}

    def demo(name: str, **settings: Any) -> Any:
        named.append((name, settings))
        return load_row("demo/federated.yaml", device="cpu", federated__num_rounds=1)

    monkeypatch.setattr("pfl_bench.api.load_row", demo)
    monkeypatch.setenv(cells.DATA, "mnist.h5")
    monkeypatch.setenv(cells.RUNS, str(runs))
    monkeypatch.setattr(cells, "ROWS", cells.ROWS[:2])
    found = steps.run_step("niid-bench", "cpu", tmp_path)["cells"]
    assert list(found) == ["labels2-fedavg", "labels2-scaffold"]
    assert all(0 < cell["metrics"]["test/accuracy"] < 1 for cell in found.values())
    settings = {"device": "cpu", "task__data": "mnist.h5"}
    assert named[0] == ("niid_bench/mnist-labels2-fedavg.yaml", settings)
    before = (runs / "labels2-fedavg" / "summary.json").stat().st_mtime_ns
    assert steps.run_step("niid-bench", "cpu", tmp_path)["cells"] == found
    assert (runs / "labels2-fedavg" / "summary.json").stat().st_mtime_ns == before
    # What is left to the step when it begins is too little.
    monkeypatch.setenv(cells.LIMIT, "59")
    assert steps.run_step("niid-bench", "cpu", tmp_path)["cells"] == {}


def test_a_gpu_that_is_not_there_is_said(check: SimpleNamespace) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(SystemExit, match="PyTorch finds no GPU here"):
        check.steps.pick_device("cuda")


def test_each_step_is_of_one_half(check: SimpleNamespace) -> None:
    first, second = check.steps.HALVES.values()
    assert sorted([*first, *second]) == sorted(check.steps.STEPS)
    assert {"repeat", "tests"} <= set(first)
    assert {"bench-softmax", "profile-cnn"} <= set(second)


def test_tests_that_fail_are_named(
    check: SimpleNamespace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text(
        "import pytest\n"
        "pytestmark = pytest.mark.cuda\n"
        "def test_good(): pass\n"
        "def test_absent(): pytest.skip('no')\n"
        "def test_bad(): assert 1 == 2\n",
        encoding="utf-8",
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = cuda: x\n", encoding="utf-8")
    monkeypatch.setattr(check.steps, "ROOT", tmp_path)
    with pytest.raises(SystemExit, match=r'\["tests.test_it::test_bad"\]'):
        check.steps.run_step("tests", "cpu", tmp_path)
    said = capfd.readouterr().out
    # Said as it goes: a step may be ended before its last test.
    assert "PASSED tests/test_it.py::test_good" in said
    assert "assert 1 == 2" in said
    (tmp_path / "tests" / "test_it.py").write_text(
        "import pytest\n@pytest.mark.cuda\ndef test_good(): pass\n", encoding="utf-8"
    )
    found = check.steps.run_step("tests", "cpu", tmp_path)
    assert found["passed"] == ["tests.test_it::test_good"]
