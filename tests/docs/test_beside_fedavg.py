"""The page that a newcomer follows with a stopwatch, followed literally from an empty folder."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import yaml

import pfl_bench
from tests.docs.following import documentation, follow, own_plugins
from tests.helpers import REPOSITORY

PAGE = REPOSITORY / "docs" / "beside_fedavg.md"


@pytest.mark.slow
def test_ones_own_private_row_stands_beside_fedavg_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without the installation: scripts/check_wheel.sh does these steps with the wheel.
    _, steps = PAGE.read_text(encoding="utf-8").split("## FedAvg's row")
    monkeypatch.chdir(tmp_path)
    with own_plugins(monkeypatch):
        follow(steps)
    rows = {}
    for name in ("fedavg", "nesterov"):
        folder = tmp_path / "runs" / "comparison" / name / "seed-0"
        rows[name] = json.loads((folder / "summary.json").read_text())
    private = [row["privacy"]["simulated"]["epsilon"] for row in rows.values()]
    assert private[0] == private[1] == pytest.approx(4.0, abs=1e-3)
    assert rows["nesterov"]["metrics"]["test/accuracy"] > 0.7
    report = (tmp_path / "runs" / "comparison" / "report.html").read_text(encoding="utf-8")
    assert "demo-private-federated" in report
    assert "mine-nesterov" in report
    folder = tmp_path / "runs" / "comparison" / "nesterov" / "seed-0"
    audited = json.loads((folder / "audit.json").read_text())
    assert audited["verdict"] == "passed"
    (step,) = [check for check in audited["checks"] if check["name"] == "central_step"]
    assert step["outcome"] == "passed", "the page says so"


def test_the_page_s_row_is_fedavg_s_but_for_the_algorithm() -> None:
    blocks = documentation("tutorials").blocks(PAGE.read_text(encoding="utf-8"))
    (mine,) = [yaml.safe_load(block.text) for block in blocks if block.language == "yaml"]
    theirs = yaml.safe_load((REPOSITORY / "configs/demo/private_federated.yaml").read_text())
    for tree in (mine, theirs):
        for section, keys in {
            "": ("name", "expected", "checkpoint"),
            "federated": ("algorithm", "central_learning_rate", "weighting", "central_optimizer"),
            "privacy": ("accountant",),
        }.items():
            for key in keys:
                (tree[section] if section else tree).pop(key, None)
    assert mine == theirs


def test_the_page_installs_the_wheel_of_this_version() -> None:
    blocks = documentation("tutorials").blocks(PAGE.read_text(encoding="utf-8"))
    (install,) = [block.text for block in blocks if block.language == "sh"]
    words = shlex.split(install.splitlines()[-1], comments=True)
    assert words == ["pip", "install", f"pfl_bench-{pfl_bench.__version__}-py3-none-any.whl"]
