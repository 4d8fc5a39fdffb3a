"""The sections of CONTRIBUTING.md, executed from its text in a copy of the packages."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import warm
from tests.helpers import REPOSITORY, central_of

_BLOCK = re.compile(r"^```(\w+)(?: (\S+))?( \(one line\))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
pytestmark = pytest.mark.slow
# Rows save every fourth round: the killed run has a checkpoint, and a round beyond it.
_KILLED = 6
# Tests, a run that dies, the same run resumed, the same run uninterrupted, audit and report.
_DRIVER = """
import json, os, sys
from pathlib import Path
import pytest
from pfl_bench.cli.main import main
from pfl_bench.config.loading import load_config
from pfl_bench.runs.runner import run
from tests.forking import fork

killed, row, audited, tests = sys.argv[1:]
for arguments in json.loads(tests):
    assert pytest.main(["-q", "-p", "no:cacheprovider", *arguments]) == 0, "its tests"
child = fork()
if not child:
    from pfl_bench.federated.trainer import FederatedTrainer

    advance = FederatedTrainer.advance
    FederatedTrainer.advance = lambda self, index: (
        os._exit(9) if index == int(killed) else advance(self, index)
    )
    main(["run", row, "--out", "runs/ours"])
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9, "the run was not killed"
assert main(["run", row, "--out", "runs/ours", "--resume"]) == 0, "resumed"
run(load_config(Path(row)), Path("runs/whole"))
if audited == "yes":
    assert main(["audit", "runs/ours"]) == 0, "audited"
assert main(["report", "runs/ours", "runs/whole", "--out", "both.html"]) == 0, "reported"
"""
# Runs of a row that differ in whom they select, without a page of either.
_SELECTIONS = """
import sys
from pathlib import Path
from pfl_bench.config.loading import load_config
from pfl_bench.runs.runner import run

row, *names = sys.argv[1:]
for name in names:
    changes = [f"federated.selection={{name: {name}}}", "privacy.nonce=turns"]
    run(load_config(Path(row), changes), Path("runs", name))
"""


@dataclass(frozen=True)
class Section:
    """A section of the document.

    Attributes:
        files: Content of each file that it writes, by path.
        lines: A line for each file of an earlier section that it changes, by path.
        commands: The arguments of its commands.
    """

    files: dict[str, str]
    lines: dict[str, str]
    commands: list[list[str]]

    def write(self, folder: Path) -> None:
        """Write the files; none replaces a file of the project."""
        for name, content in self.files.items():
            assert not (REPOSITORY / name).exists(), name
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content, encoding="utf-8")
        for name, line in self.lines.items():
            before = (folder / name).read_text(encoding="utf-8")
            start = line[: line.index("=")]
            after = re.sub(f"^{re.escape(start)}=.*\n", line, before, flags=re.MULTILINE)
            assert after != before
            (folder / name).write_text(after, encoding="utf-8")


def read_section(title: str) -> Section:
    """Read a section by its heading."""
    text = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (body,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    blocks = _BLOCK.findall(body)
    return Section(
        files={name: content for _, name, line, content in blocks if name and not line},
        lines={name: content for _, name, line, content in blocks if line},
        commands=[
            command.split()
            for language, name, _, content in blocks
            if language == "bash" and not name
            for command in content.splitlines()
        ],
    )


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of the packages, the rows and what their tests share."""
    ignore = shutil.ignore_patterns("__pycache__")
    for package in ("pfl_bench", "privacy", "tasks", "configs/demo", "tests/contracts"):
        shutil.copytree(REPOSITORY / package, tmp_path / package, ignore=ignore)
    for name in ("__init__", "conftest", "helpers", "forking", "warm"):
        shutil.copy(REPOSITORY / "tests" / f"{name}.py", tmp_path / "tests")
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    return tmp_path


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, whose packages go before the installed ones."""
    environment = {**os.environ, "PFL_BENCH_CACHE": "off", "OMP_NUM_THREADS": "1"}
    return warm.python(*arguments, cwd=folder, env=environment)


def execute(folder: Path, section: Section) -> dict[str, Any]:
    """Run a section's commands; the run is also killed and resumed.

    Returns:
        The summary of the run that was resumed.
    """
    *tests, (program, run, row) = section.commands
    assert (program, run) == ("pfl-bench", "run")
    assert all(program == "pytest" for program, *_ in tests)
    is_private = "privacy:" in (folder / row).read_text(encoding="utf-8")
    audited = "yes" if is_private else "no"
    arguments = json.dumps([command[1:] for command in tests])
    done = python(folder, "-c", _DRIVER, str(_KILLED), row, audited, arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    ours, whole = folder / "runs/ours", folder / "runs/whole"
    summary: dict[str, Any] = json.loads((ours / "summary.json").read_text())
    assert summary["metrics"] == json.loads((whole / "summary.json").read_text())["metrics"]
    assert torch.equal(central_of(ours), central_of(whole))
    assert "resumed after round 4" in (ours / "run.log").read_text()
    if is_private:
        assert (ours / "ledger.jsonl").read_bytes() == (whole / "ledger.jsonl").read_bytes()
        assert json.loads((ours / "audit.json").read_text())["verdict"] == "passed"
    assert summary["name"] in (folder / "both.html").read_text(encoding="utf-8")
    return summary


def test_the_add_a_task_section_works(copied: Path) -> None:
    section = read_section("Add a task")
    assert [*section.files] == [
        "tasks/coins/task.py",
        "tasks/coins/models.py",
        "configs/coins/private.yaml",
    ]
    section.write(copied)
    summary = execute(copied, section)
    assert summary["task"] == "coins"
    assert summary["metrics"]["test/accuracy"] > 0.7
    assert summary["privacy"]["simulated"]["epsilon"] <= 8.0


def test_the_add_an_algorithm_section_works(copied: Path) -> None:
    section = read_section("Add an algorithm")
    section.write(copied)
    summary = execute(copied, section)
    assert summary["metrics"]["test/accuracy"] > 0.3
    assert summary["privacy"]["simulated"]["epsilon"] <= 8.0


def test_the_add_a_mechanism_section_works(copied: Path) -> None:
    section = read_section("Add a mechanism")
    section.write(copied)
    summary = execute(copied, section)
    assert summary["privacy"]["mechanism"] == "split_gaussian"
    assert summary["privacy"]["simulated"]["epsilon"] <= 8.0


@pytest.mark.parametrize(
    ("right", "wrong", "caught_by"),
    [
        ("math.sqrt(self._num_servers)", "self._num_servers", "scale_that_is_accounted"),
        ("super().__init__(clip_norm, noise)", "super().__init__(1e9, noise)", "neighbouring_sums"),
    ],
    ids=["too_little_noise", "no_clip"],
)
def test_the_mechanisms_tests_fail_when_it_is_broken(
    copied: Path, right: str, wrong: str, caught_by: str
) -> None:
    section = read_section("Add a mechanism")
    section.write(copied)
    path, tests = copied / "privacy/mechanisms/split_gaussian.py", [*section.files][1]
    assert path.read_text(encoding="utf-8").count(right) == 1
    path.write_text(path.read_text(encoding="utf-8").replace(right, wrong), encoding="utf-8")
    done = python(copied, "-m", "pytest", "-q", "-p", "no:cacheprovider", tests)
    assert done.returncode == 1, done.stdout + done.stderr
    failed = re.findall(r"^FAILED \S+::(\w+)", done.stdout, re.MULTILINE)
    assert len(failed) == 1
    assert caught_by in failed[0]


def test_the_add_a_metric_section_works(copied: Path) -> None:
    read_section("Add a task").write(copied)
    section = read_section("Add a metric")
    section.write(copied)
    summary = execute(copied, section)
    assert 0.0 < summary["metrics"]["test/brier_loss"] < 0.5
    assert summary["metrics"]["test/accuracy"] > 0.7
    assert "test/client_brier_loss_p90" in summary["metrics"]


def test_the_add_a_selector_section_works(copied: Path) -> None:
    section = read_section("Add a selector")
    section.write(copied)
    summary = execute(copied, section)
    assert summary["privacy"]["adjacency"] == "zero-out"
    # A selection that does not count takes the same users more often.
    # The nonce pins both: else each change of the code draws other users.
    names = ("fewest_rounds", "available")
    done = python(copied, "-c", _SELECTIONS, section.commands[-1][2], *names)
    assert done.returncode == 0, done.stderr
    found = {name: returning(copied / "runs" / name) for name in names}
    assert found["fewest_rounds"] < found["available"]


def returning(folder: Path) -> int:
    """The earlier rounds of each round's users, added up over a run's ledger."""
    lines = (folder / "ledger.jsonl").read_text().splitlines()
    return sum(int(json.loads(line)["returning"]) for line in lines)
