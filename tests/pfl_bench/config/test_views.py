"""Views: what they refuse, what they run, and the grid that they print."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from pfl_bench.cli.main import main
from pfl_bench.config.row_files import kind_of, rows_below
from pfl_bench.config.views import load_view
from pfl_bench.report.grid import make_grid
from pfl_bench.runs.rows import RowResult, rows_from_summaries
from pfl_bench.types import ConfigError

Capture = pytest.CaptureFixture[str]


def cell(metric: str, value: float, tolerance: float = 1.0) -> dict[str, Any]:
    return {
        "metric": metric, "value": value, "sd": 0.0, "seeds": 2, "tolerance": tolerance,
        "source": f"P, {metric}",
    }  # fmt: skip


def figure(kind: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "title": f"Of {kind}", "metrics": ["test/accuracy"], **more}


@pytest.fixture
def folders(tmp_path: Path, config_file: Callable[..., Path]) -> Path:
    """A folder "rows" with two rows, and a folder "other" with a view of them."""
    rows = tmp_path / "all" / "rows"
    rows.mkdir(parents=True)
    config_file("federated", name="fl").rename(rows / "fl.yaml")
    config_file("private_federated", name="pfl", federated__num_rounds=4).rename(rows / "pfl.yaml")
    view = {
        "version": 1,
        "view_of": "../rows",
        "rows": [
            {
                "row": "fl",
                "label": "F",
                "expected": [cell("test/accuracy", 0.9), cell("test/loss", 99.0, 0.1)],
            },
            {"row": "pfl", "expected": [cell("test/accuracy", 0.8), cell("test/loss", 1.0, 9.0)]},
        ],
    }
    other = tmp_path / "all" / "other"
    other.mkdir()
    (other / "view.yaml").write_text(yaml.safe_dump(view), encoding="utf-8")
    return tmp_path / "all"


def change(folders: Path, edit: Callable[[dict[str, Any]], None]) -> Path:
    path = folders / "other" / "view.yaml"
    tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    edit(tree)
    path.write_text(yaml.safe_dump(tree), encoding="utf-8")
    return path


def test_views_and_sweeps_are_no_rows(folders: Path) -> None:
    (folders / "sweeps").mkdir()
    (folders / "sweeps" / "fl.yaml").write_text("version: 1\n", encoding="utf-8")
    assert list(rows_below(folders)) == ["rows/fl", "rows/pfl"]
    assert kind_of(folders / "other" / "view.yaml") == "view"
    assert kind_of(folders / "sweeps" / "fl.yaml") == "sweep"
    assert rows_below(folders / "sweeps") == {}


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda t: t.update(version=2), "version: 2 is not 1"),
        (lambda t: t.update(view_off="x"), "did you mean 'view_of'"),
        (lambda t: t.pop("rows"), "rows: required, but missing"),
        (lambda t: t.update(rows=[]), "rows: must be a list of 1 or more items"),
        (lambda t: t.update(view_of="../nowhere"), "is no folder of rows"),
        (lambda t: t.update(view_of="."), "is no folder of rows"),
        (lambda t: t["rows"][0].update(row="fll"), "did you mean 'fl'"),
        (lambda t: t["rows"][1].update(row="fl"), "the row 'fl' stands twice"),
        (lambda t: t["rows"][1].update(label="F"), "the label 'F' stands twice"),
        (lambda t: t["rows"][0].update(expcted=[]), "did you mean 'expected'"),
        (lambda t: t["rows"][0]["expected"][0].pop("source"), "rows.0.expected.0.source: required"),
        (lambda t: t["rows"][1].pop("expected"), "rows: 'pfl' shows nothing"),
        (lambda t: t.update(figures=[{"kind": "pie"}]), "figures.0.kind: must be one of 'curves'"),
        (
            lambda t: t.update(figures=[figure("boxes", metrics=["test/accuracy", "test/loss"])]),
            "figures.0: metrics: a figure of boxes is of one metric",
        ),
        (lambda t: t.update(figures=[figure("budgets")]), "figures.0: target: give the value"),
        (lambda t: t.update(figures=[figure("boxes", rows=["fll"])]), "did you mean 'fl'"),
        (
            lambda t: t.update(figures=[figure("boxes", rows=["fl", "fl"])]),
            "figures.0.rows: 'fl' stands twice",
        ),
        (
            lambda t: t["rows"][0]["expected"].append(cell("test/loss", 1.0)),
            "rows.0.expected: 'test/loss' stands twice",
        ),
    ],
)
def test_a_wrong_view_is_refused(
    folders: Path, edit: Callable[[dict[str, Any]], None], words: str, capsys: Capture
) -> None:
    path = change(folders, edit)
    with pytest.raises(ConfigError, match=words) as refused:
        load_view(path)
    assert str(path) in str(refused.value)
    assert main(["table", str(path.parent), "--out", str(folders / "runs")]) == 2
    assert words in capsys.readouterr().err
    assert not (folders / "runs").exists()


def test_a_metric_of_a_split_that_is_not_evaluated_stops_before_the_first_run(
    folders: Path, capsys: Capture
) -> None:
    change(folders, lambda t: t["rows"][1]["expected"].append(cell("val/accuracy", 0.5)))
    assert main(["table", str(folders / "other"), "--out", str(folders / "runs")]) == 2
    assert "'val/accuracy' is not of a split in the row's" in capsys.readouterr().err
    assert not (folders / "runs").exists()


def test_a_cell_that_no_metric_fills_stops_before_the_first_run(
    folders: Path, capsys: Capture
) -> None:
    change(folders, lambda t: t["rows"][1]["expected"].append(cell("test/acuracy", 0.5)))
    assert main(["table", str(folders / "other"), "--out", str(folders / "runs")]) == 2
    told = capsys.readouterr().err
    assert "view.yaml: row 'pfl': expected." in told
    assert "'test/acuracy' is not measured; did you mean 'test/accuracy'?" in told
    assert not (folders / "runs").exists()


def test_a_view_uses_the_runs_of_its_rows(folders: Path, capsys: Capture) -> None:
    runs = folders / "runs"
    assert main(["table", str(folders / "rows"), "--out", str(runs), "--only", "fl"]) == 0
    written = (runs / "fl" / "seed-3" / "summary.json").stat().st_mtime_ns
    capsys.readouterr()
    # One cell is out of tolerance: exit code 1.
    assert main(["table", str(folders / "other"), "--out", str(runs)]) == 1
    first = capsys.readouterr()
    assert "fl/seed-3: finished before; not run again" in first.err
    assert (runs / "fl" / "seed-3" / "summary.json").stat().st_mtime_ns == written
    lines = first.out.splitlines()
    assert lines[0].split() == ["|", "test/*", "|", "F", "|", "pfl", "|"]
    assert lines[2].startswith("| accuracy ")
    assert "99.00 / " in lines[3]
    assert " * |" in lines[3]
    assert "| 1 of 2 |" in " ".join(lines[4].split())
    assert lines[5].startswith("| epsilon (simulated) ")
    assert (runs / "view-other" / "table.md").read_text(encoding="utf-8") == first.out
    page = (runs / "view-other" / "report.html").read_text(encoding="utf-8")
    assert '<td data-label="F" class="number"><span class="differs">99.00 / ' in page
    assert "<th>test/*</th>" in page
    # The runs themselves keep what their own rows expect of them: nothing.
    assert json.loads((runs / "fl" / "seed-3" / "summary.json").read_text())["expected"] == []

    assert main(["table", str(folders / "other"), "--out", str(runs), "--format", "csv"]) == 1
    csv = capsys.readouterr().out.splitlines()
    assert len(csv) == 1 + 4
    assert csv[1].startswith("fl,federated,")
    alone = ["table", str(folders / "other"), "--out", str(runs), "--only", "F"]
    assert main([*alone, "--format", "latex"]) == 1
    assert r"test/* & F \\" in capsys.readouterr().out
    assert main([*alone[:-1], "pf"]) == 2
    assert "did you mean 'pfl'" in capsys.readouterr().err


def test_a_finished_run_whose_metric_is_nan_differs(folders: Path, capsys: Capture) -> None:
    """NaN is text in summary.json: it is compared as the number that it is."""
    runs = folders / "runs"
    only = ["table", str(folders / "other"), "--out", str(runs), "--only", "pfl"]
    assert main(only) == 0
    path = runs / "pfl" / "seed-3" / "summary.json"
    summary = json.loads(path.read_text())
    summary["metrics"]["test/accuracy"] = "nan"
    path.write_text(json.dumps(summary))
    capsys.readouterr()
    assert main(only) == 1
    assert "0.8000 / nan *" in capsys.readouterr().out


def result(name: str, metric: str, published: float, *measured: float, **more: Any) -> RowResult:
    entry = {
        "metric": metric,
        "published": published,
        "tolerance": more.get("tolerance", 0.01),
        "source": more.get("source"),
    }
    privacy = more.get("privacy")
    (row,) = rows_from_summaries(
        [
            {
                "name": name,
                "setting": "federated",
                "variant": "v",
                "seed": seed,
                "metrics": {metric: value},
                "expected": [entry],
                "privacy": privacy,
            }
            for seed, value in enumerate(measured)
        ]
    )
    return row


def test_grid_golden() -> None:
    """Written by hand: two rows, one of two seeds, one of them private with a cell missing."""
    privacy = {
        "simulated": {"epsilon": 2.0, "delta": 1e-6},
        "actual": {"epsilon": 4.321, "delta": 1e-6},
    }
    rows = [
        result("a-long-name", "test/ap_cat", 0.5, 0.5, 0.51, source="Paper, table 2, A, cat"),
        result(
            "a-long-name",
            "test/ap_dog",
            0.7,
            0.6999,
            0.7001,
            tolerance=0.2,
            source="Paper, table 2, A, dog",
        ),
        result("b", "test/ap_cat", 0.4, 0.6001, 0.5999, privacy=privacy),
    ]
    grid = make_grid(rows, {"b": "B|1", "a-long-name": "A"})
    assert grid.to_markdown().splitlines() == [
        r"| test/ap_*           |                       B\|1 |                          A |",
        "| ------------------- | -------------------------: | -------------------------: |",
        "| cat                 | 0.4000 / 0.6000 ± 0.0001 * | 0.5000 / 0.5050 ± 0.0071 ? |",
        "| dog                 |                            |   0.7000 / 0.7000 ± 0.0001 |",
        "| agree               |                     0 of 1 |                     1 of 2 |",
        "| epsilon (simulated) |                          2 |                          - |",
        "| epsilon (actual)    |                       4.33 |                          - |",
        "",
        "Cells: published / measured; * differs by more than the margin, ? is undecided.",
        "B|1: row b; data v; 2 seeds; delta (simulated) 1e-06; delta (actual) 1e-06; margin 0.01",
        "A: row a-long-name; data v; 2 seeds; source: Paper, table 2, A; margins 0.01 to 0.2",
    ]
    latex = grid.to_latex()
    assert r"\begin{tabular}{lrr}" in latex
    assert r"cat & 0.4000 / 0.6000 $\pm$ 0.0001 * & 0.5000 / 0.5050 $\pm$ 0.0071 ? \\" in latex
    assert r"test/ap\_* & B|1 & A \\" in latex


def test_figures_of_a_folder_s_own_rows(folders: Path, capsys: Capture) -> None:
    """A view beside its rows, without cells: a table of what was measured, and real figures."""
    budget = {"metric": "val/accuracy", "value": 0.99}
    for name in ("fl", "pfl"):
        path = folders / "rows" / f"{name}.yaml"
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
        tree["evaluation"]["budgets"] = [budget]
        path.write_text(yaml.safe_dump(tree), encoding="utf-8")
    view = {
        "version": 1,
        "view_of": ".",
        "rows": [{"row": "fl", "label": "FL"}, {"row": "pfl"}],
        "figures": [
            figure("curves", metrics=["train/loss", "val/accuracy"]),
            figure("boxes"),
            figure("budgets", metrics=["val/accuracy"], target=0.99, rows=["fl"]),
        ],
    }
    text = yaml.safe_dump(view)
    (folders / "rows" / "view.yaml").write_text(text, encoding="utf-8")
    runs = folders / "runs"
    assert main(["table", str(folders / "rows"), "--out", str(runs)]) == 0
    printed = capsys.readouterr()
    assert [line.split()[1] for line in printed.out.splitlines()[2:4]] == ["fl", "pfl"]
    assert "Of budgets: FL: val/accuracy 0.99 was not reached in 6 rounds" in printed.err
    page = (runs / "view-rows" / "report.html").read_text(encoding="utf-8")
    for drawn in view["figures"]:
        assert f"<h2>{drawn['title']}</h2>" in page
    assert "Nothing could be drawn." not in page
    assert "FL: p10 " in page

    # A row that cannot run is named: in the figures, and by the exit code.
    (folders / "rows" / "pfl.yaml").write_text(
        (folders / "rows" / "pfl.yaml").read_text().replace("num_users: 60", "num_users: 61")
    )
    other = folders / "others"
    assert main(["table", str(folders / "rows"), "--out", str(other)]) == 1
    assert "Of boxes: pfl: no run of this row is there" in capsys.readouterr().err
