"""The walkthrough of CONTRIBUTING.md, executed as it stands in a copy of the packages."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.helpers import REPOSITORY

BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_add_a_task_walkthrough_works(tmp_path: Path) -> None:
    ignore = shutil.ignore_patterns("__pycache__")
    for room in ("pfl_bench", "privacy", "tasks", "configs"):
        shutil.copytree(REPOSITORY / room, tmp_path / room, ignore=ignore)
    text = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    blocks = BLOCK.findall(text)
    files = [(name, content) for _, name, content in blocks if name]
    commands = [content.strip() for language, name, content in blocks if language == "bash"]
    assert [name for name, _ in files] == [
        "tasks/coins/task.py",
        "tasks/coins/models.py",
        "configs/coins/private.yaml",
    ]
    for name, content in files:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content, encoding="utf-8")
    (command,) = commands
    program, *arguments = command.split()
    assert program == "pfl-bench"
    done = subprocess.run(
        [sys.executable, "-m", "pfl_bench", *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "runs/coins-private/seed-0/summary.json").read_text())
    assert summary["task"] == "coins"
    assert summary["metrics"]["test/accuracy"] > 0.7
    assert summary["privacy"]["simulated"]["epsilon"] <= 8.0
