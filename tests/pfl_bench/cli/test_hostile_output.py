"""No name of a file, row or metric acts on the terminal that run, table and sweep print to."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from pfl_bench.cli import speech
from pfl_bench.cli.main import main

CLEAR = "\x1b[2J"
Capture = pytest.CaptureFixture[str]


def printed(capsys: Capture) -> str:
    text = "".join(capsys.readouterr())
    assert "\x1b" not in text
    assert r"\x1b[2J" in text
    return text


@pytest.mark.parametrize("command", ["run", "dry", "table", "sweep"])
def test_a_folder_s_name_is_written_out(
    command: str, config_file: Callable[..., Path], tmp_path: Path, capsys: Capture
) -> None:
    row = config_file("federated", name="base", federated__num_rounds=2)
    out = tmp_path / f"a{CLEAR}\nb"
    rows, sweep = tmp_path / f"rows{CLEAR}", tmp_path / f"s{CLEAR}.yaml"
    rows.mkdir()
    (rows / "base.yaml").write_text(row.read_text())
    grid = {"federated.local_epochs": [1, 2]}
    tree = {"version": 1, "row": row.name, "metric": "val/accuracy", "grid": grid}
    sweep.write_text(yaml.safe_dump(tree))
    words = {
        "run": ["run", str(row)],
        "dry": ["run", str(row), "--dry-run"],
        "table": ["table", str(rows)],
        "sweep": ["sweep", str(sweep)],
    }[command]
    for _ in range(2):
        assert main([*words, "--out", str(out)]) == 0
        printed(capsys)


def test_a_finished_run_s_metrics_and_a_row_s_name_are_written_out(
    config_file: Callable[..., Path], tmp_path: Path, capsys: Capture
) -> None:
    row, out = config_file("federated", federated__num_rounds=1), tmp_path / "out"
    assert main(["run", str(row), "--out", str(out)]) == 0
    capsys.readouterr()
    summary = json.loads((out / "summary.json").read_text())
    summary["metrics"][f"test/x{CLEAR}"] = "nan"
    (out / "summary.json").write_text(json.dumps(summary))
    assert main(["run", str(row), "--out", str(out)]) == 0
    assert "nan" in printed(capsys)
    row.write_text(yaml.safe_dump(yaml.safe_load(row.read_text()) | {"name": CLEAR}))
    assert main(["run", str(row), "--out", str(tmp_path / "other")]) == 2
    printed(capsys)


def test_show_and_data_write_names_out(
    config_file: Callable[..., Path], tmp_path: Path, capsys: Capture
) -> None:
    row = config_file("federated")
    strange = row.rename(tmp_path / f"row{CLEAR}.yaml")
    assert main(["show", str(strange)]) == 0
    printed(capsys)
    assert main(["data", "generate", "amazon_review", "--out", str(tmp_path / f"raw{CLEAR}")]) == 0
    printed(capsys)


# What they print comes from this package or argparse alone.
OWN_WORDS = ("speech.py", "completion.py", "main.py")


def test_commands_print_by_functions_that_write_names_out() -> None:
    found = []
    for path in sorted(Path(speech.__file__).parent.glob("*.py")):
        names = [
            node.func
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        ]
        if path.name not in OWN_WORDS:
            found += [f"{path.name}:{name.lineno}" for name in names if name.id == "print"]
    assert not found, f"print by say, write, print_text or print_table of cli/speech.py: {found}"
