"""Commands as functions: what they give and write, and how they refuse."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

import pfl_bench
from pfl_bench.cli.main import main
from pfl_bench.cli.run_result import TableResult
from pfl_bench.types import UserInputError

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "one"
    row = pfl_bench.load_row("demo/private_federated.yaml", federated__num_rounds=2)
    pfl_bench.run_row(row, folder)
    return folder


def test_rows_and_a_row_are_those_of_the_commands(capsys: Capture) -> None:
    assert main(["list", "rows", "demo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == pfl_bench.list_rows("demo")
    overrides = {"federated__num_rounds": 2, "federated__cohort_size": 5}
    shown = pfl_bench.show("demo/federated.yaml", estimate=False, **overrides)
    assert capsys.readouterr() == ("", "")
    texts = ["federated.num_rounds=2", "federated.cohort_size=5"]
    assert main(["show", "demo/federated.yaml", *texts, "--no-estimate", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == shown
    assert shown["cost"]["clients"] == 5


def test_a_run_from_python_leaves_what_the_command_leaves(run: Path, tmp_path: Path) -> None:
    command = ["run", "demo/private_federated.yaml", "federated.num_rounds=2"]
    assert main([*command, "--out", str(tmp_path / "run")]) == 0
    names = [{path.name for path in folder.iterdir()} for folder in (run, tmp_path / "run")]
    assert names[0] == names[1]


def test_a_result_is_shown_in_a_line_and_as_a_table(run: Path) -> None:
    result = pfl_bench.load_run(run)
    statement = result.statement
    assert statement is not None
    shown = repr(result)
    assert shown.startswith("RunResult(row demo-private-federated, seed ")
    assert f"test/accuracy {result.metrics['test/accuracy']:.4g}, epsilon (simulated) " in shown
    assert len(shown) < 300
    page = result._repr_html_()
    assert page.count("<tr>") == 6
    assert str(run) in page
    # The pictures of a report, with colours that they would take from its page.
    assert page.count("<svg") == 2
    assert "train/loss" in page
    assert set(re.findall(r"var\((--\w+)\)", page)) == set(re.findall(r"(--\w+):", page))


def test_results_of_a_table_are_a_frame_with_verdicts(run: Path) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    results = TableResult([pfl_bench.load_run(run)] * 2)
    (line,) = results.frame().to_dict("records")
    assert line["row"] == "demo-private-federated"
    assert line["verdict"] == "not the row"
    assert line["mean"] == pytest.approx(results[0].metrics["test/accuracy"])
    # One run that is there twice has no spread.
    assert line["seeds"] == 1
    assert math.isnan(line["sd"])
    statement = results[0].statement
    assert statement is not None
    assert line["epsilon (actual)"] == statement.actual.epsilon
    page = results._repr_html_()
    assert page.count("<tr>") == 2
    assert "<li>" in page
    head, line_of_row = repr(results).splitlines()
    assert head.startswith("row ")
    assert line_of_row.startswith("demo-private-federated ")
    assert repr(TableResult()) == "TableResult()"


def test_a_page_and_a_leaderboard_are_written(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = pfl_bench.write_report([run], tmp_path / "page.html", figures=tmp_path / "figures")
    assert "demo-private-federated" in page.read_text(encoding="utf-8")
    assert list((tmp_path / "figures").glob("*.svg"))
    (table,) = pfl_bench.leaderboard(run.parent, tmp_path / "board.html")
    written = json.loads((tmp_path / "board.json").read_text(encoding="utf-8"))
    assert [row["row"] for row in written["tables"][0]["rows"]] == [
        row["row"] for row in table["rows"]
    ]
    for call in (
        lambda: pfl_bench.write_report(run, page),
        lambda: pfl_bench.leaderboard(run, tmp_path / "board.html"),
    ):
        with pytest.raises(UserInputError, match="force=True"):
            call()
    assert pfl_bench.write_report(run, page, force=True) == page
    monkeypatch.setattr("pfl_bench.report.page.write_atomically", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        pfl_bench.write_report(run, tmp_path / "other.html", figures=tmp_path / "more")
    assert not (tmp_path / "more").exists()


def test_a_run_s_own_page_is_made_anew(run: Path) -> None:
    page = run / "report.html"
    page.write_bytes(b"old")
    assert pfl_bench.write_report(run, page) == page
    assert page.read_bytes() != b"old"


def test_what_is_no_run_or_path_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserInputError, match="holds no run folder"):
        pfl_bench.leaderboard(tmp_path)
    with pytest.raises(UserInputError, match="folders: there is none"):
        pfl_bench.leaderboard([])
    with pytest.raises(UserInputError, match="folders"):
        pfl_bench.write_report([5], tmp_path / "page.html")  # type: ignore[list-item]
    with pytest.raises(UserInputError, match="leaderboard"):
        pfl_bench.leaderboard(run, tmp_path / "board.txt")
    assert list(tmp_path.iterdir()) == []


SWEEP = """version: 1
row: demo/federated.yaml
metric: val/accuracy
grid:
  federated.local_learning_rate: [0.001, 0.5]
"""


def test_a_sweep_gives_its_runs_the_best_first(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text(SWEEP, encoding="utf-8")
    found = pfl_bench.sweep(file, tmp_path / "out", federated__num_rounds=2)
    assert capsys.readouterr() == ("", "")
    assert [one["federated.local_learning_rate"] for one in found] == [0.5, 0.001]
    assert found[0]["value"] > found[1]["value"]
    assert found.frame().to_dict("records") == found
    assert (Path(found[0]["folder"]) / "summary.json").is_file()
    assert (tmp_path / "out" / "table.md").is_file()
    missing: dict[str, Any] = {"task__name": "femnist", "task__data": str(tmp_path / "no.h5")}
    with pytest.raises(UserInputError, match=r"no\.h5|model"):
        pfl_bench.sweep(file, tmp_path / "other", **missing)


def test_a_sweep_says_which_run_failed(tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text(SWEEP, encoding="utf-8")
    pfl_bench.sweep(file, tmp_path / "out", federated__num_rounds=1)
    first = min(path.parent for path in (tmp_path / "out").glob("*/config.yaml"))
    (first / "summary.json").unlink()
    (first / "config.yaml").unlink()
    with pytest.raises(UserInputError, match=r"sweep: a run failed\n(.*\n)*.*holds files but no"):
        pfl_bench.sweep(file, tmp_path / "out", federated__num_rounds=1)


def test_a_folder_without_plug_ins_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserInputError, match=str(tmp_path)):
        pfl_bench.check_plugin(tmp_path / "none")
