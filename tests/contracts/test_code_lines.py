"""The budgets of code: what CONTRIBUTING.md allows each capability, and a module."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType

import pytest

from pfl_bench.config.loading import load_config
from pfl_bench.federated.trainer import FederatedTrainer
from pfl_bench.runs.runner import run
from scripts import code_lines
from tests.helpers import REPOSITORY

LONGEST_MODULE = 350
MOST_FILES_A_ROUND = 50

requires_git = pytest.mark.skipif(
    not (REPOSITORY / ".git").exists(), reason="not a git checkout: which files are ours is unknown"
)


@requires_git
def test_each_capability_is_within_its_budget() -> None:
    budgets = code_lines.budgets_of(code_lines.PAGE.read_text(encoding="utf-8"))
    counts = code_lines.count()
    assert sorted(budgets) == sorted(counts)
    beyond = {
        name: f"{counts[name]} lines of code, {budget} allowed"
        for name, budget in budgets.items()
        if counts[name] > budget
    }
    assert not beyond, "make it smaller, or decide: python scripts/code_lines.py --write"


@requires_git
def test_no_module_is_long() -> None:
    command = ["git", "ls-files", "--", *(f"{name}/*.py" for name in code_lines.PACKAGES)]
    listed = subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True)
    paths = [REPOSITORY / path for path in listed.stdout.splitlines()]
    lines = {path: path.read_text(encoding="utf-8").count("\n") for path in paths if path.exists()}
    assert lines
    assert not {path: n for path, n in lines.items() if n > LONGEST_MODULE}


def test_docstrings_comments_and_blank_lines_are_not_code() -> None:
    docstrings = '"""Module.\n\nText.\n"""\n\n# Comment.\nvalue = (\n    1,\n)\n\n\n'
    source = docstrings + 'def f():\n    """Doc."""\n    return """a\nb"""\n'
    # The assignment's three lines, the definition's head, and the two of what it returns.
    assert code_lines.code_lines(source) == 6


@pytest.mark.parametrize(
    ("path", "begins"),
    [
        ("privacy/audit/check.py", "audit"),
        ("privacy/errors.py", "accountants"),
        ("pfl_bench/cli/main.py", "command line"),
        ("tasks/common/fedscale/store.py", "tasks: FedScale"),
        ("tasks/mnist/task.py", "tasks: all others"),
    ],
)
def test_the_longest_prefix_has_a_file(path: str, begins: str) -> None:
    assert code_lines.capability_of(path).startswith(begins)


def test_a_private_round_is_read_in_few_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = tuple(str(REPOSITORY / name) + os.sep for name in code_lines.PACKAGES)
    executed: set[str] = set()
    advance = FederatedTrainer.advance

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(ours):
            executed.add(frame.f_code.co_filename)

    def noted(trainer: FederatedTrainer, index: int) -> dict[str, float]:
        # The first round builds what later ones use again.
        if index != 2:
            return advance(trainer, index)
        sys.setprofile(note)
        threading.setprofile(note)
        try:
            return advance(trainer, index)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    monkeypatch.setattr(FederatedTrainer, "advance", noted)
    row = REPOSITORY / "configs" / "demo" / "private_federated.yaml"
    changes = ["num_rounds=2", "workers=1", "engine=sequential"]
    run(load_config(row, [f"federated.{change}" for change in changes]), tmp_path / "run")
    assert str(REPOSITORY / "privacy" / "clipping.py") in executed
    assert len(executed) <= MOST_FILES_A_ROUND, "\n".join(sorted(executed))
