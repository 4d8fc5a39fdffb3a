"""The examples of docs/python.md, executed in its order."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import pfl_bench
from tests.helpers import REPOSITORY

PAGE = REPOSITORY / "docs" / "python.md"


def test_the_examples_run_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 6
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert {path.name for path in Path("runs").iterdir()} == {"mine", "coins", "loop", "watched"}
    shown = capfd.readouterr()
    assert "realised" not in shown.err
    assert "0 3" not in shown.out
    assert "3 3" in shown.out


def test_the_page_names_what_is_exported() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name in set(pfl_bench.__all__) - {"RunResult", "TableResult"}:
        assert f"`{name}(" in text, name
