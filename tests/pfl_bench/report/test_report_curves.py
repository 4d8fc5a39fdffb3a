"""What is drawn of many rows, of constants and of runaway epsilons; figures for papers; sizes."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from pfl_bench.cli.main import main
from pfl_bench.report import figures
from pfl_bench.report.curves import thin
from pfl_bench.report.page import write_report
from pfl_bench.report.panels import MAX_CURVES, learning_panels
from pfl_bench.report.run_folder import RunRecord, read_run
from pfl_bench.report.series import CLOCK, Curve, curve_of, numbers
from pfl_bench.simulation.device_sources import generated
from pfl_bench.simulation.devices.trace_file import DEVICES, write_trace_file
from tests.pfl_bench.report.test_report import Page, write_run


def record(folder: Path, name: str, seed: int, columns: dict[str, list[float]]) -> RunRecord:
    """A run that is under way, with these scalars of its rounds."""
    folder.mkdir(parents=True)
    (length,) = {len(values) for values in columns.values()}
    config = {"name": name, "seed": seed, "federated": {"num_rounds": 9}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    lines = [
        {"round": step} | {key: "inf" if v == math.inf else v for key, v in row}
        for step, row in enumerate(
            ([(key, values[i]) for key, values in columns.items()] for i in range(length)), start=1
        )
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return read_run(folder)


def test_more_than_eight_rows_are_small_multiples_with_one_axis(tmp_path: Path) -> None:
    rows = {
        f"r{i}": [record(tmp_path / str(i), f"r{i}", 0, {"val/accuracy": [0.1 * i, 0.2, 0.3]})]
        for i in range(20)
    }
    panels = learning_panels(rows)["round"].panels
    charts = [panel.chart for panel in panels if panel.chart is not None]
    assert [len(chart.lines) for chart in charts] == [MAX_CURVES, MAX_CURVES, 4]
    assert len({chart.limits for chart in charts}) == 1
    assert charts[0].limits is not None
    assert panels[2].title == "val/accuracy, rows 17 to 20 of 20"


def test_what_never_changes_is_a_number(tmp_path: Path) -> None:
    still = {"val/accuracy": [0.1, 0.2], "privacy/clip_norm": [0.5, 0.5]}
    run = record(tmp_path / "a", "a", 0, still)
    (part,) = learning_panels({"a": [run]}).values()
    assert [panel.title for panel in part.panels] == ["val/accuracy"]
    assert part.constants is not None
    assert part.constants.rows == (("clip norm", "a", "0.5000"),)
    # One row that changes keeps the curve of all.
    moving = {"val/accuracy": [0.1, 0.2], "privacy/clip_norm": [0.5, 0.6]}
    other = record(tmp_path / "b", "b", 0, moving)
    (part,) = learning_panels({"a": [run], "b": [other]}).values()
    assert part.constants is None
    assert len(part.panels) == 2


def test_a_runaway_epsilon_leaves_the_others_their_axis(tmp_path: Path) -> None:
    key = "privacy/epsilon_simulated"
    rows = {
        name: [record(tmp_path / name, name, 0, {key: values})]
        for name, values in (
            ("good", [1.0, 2.0]),
            ("huge", [3e5, 1e6]),
            ("none", [7.0, math.inf]),
        )
    }
    (part,) = learning_panels(rows).values()
    panel = next(panel for panel in part.panels if panel.title.startswith("epsilon"))
    assert "none infinite at times" in panel.title
    assert "huge up to 1e+06" in panel.title
    assert panel.chart is not None
    # The largest epsilon that says something is 7.
    assert panel.chart.limits == (0.0, pytest.approx(7.0, rel=0.2))
    ticks = re.findall(r">\s*([\d.]+)\s*</text>", panel.svg)
    assert max(map(float, ticks)) < 10


def test_seeds_are_a_mean_and_their_range_over_any_axis(tmp_path: Path) -> None:
    runs = [
        record(
            tmp_path / str(seed),
            "a",
            seed,
            {"val/loss": [2.0 + seed, 1.0, math.inf], CLOCK: [3600.0, 7200.0 * (1 + seed), 9e9]},
        )
        for seed in range(2)
    ]
    curve = curve_of(runs, "val/loss", CLOCK, 1 / 3600)
    assert curve is not None
    assert (curve.x, curve.y) == ([1.0, 3.0], [2.5, 1.0])
    assert (curve.low, curve.high) == ([2.0, 1.0], [3.0, 1.0])


def test_unfinished_seeds_do_not_cut_the_finished_ones(tmp_path: Path) -> None:
    done = read_run(write_run(tmp_path / "a", "row", "federated", rounds=60))
    begun = write_run(tmp_path / "b", "row", "federated", seed=1, rounds=5, finished=False)
    runs = [done, read_run(begun)]
    curve = curve_of(runs, "val/accuracy")
    assert curve is not None
    assert (curve.x[-1], curve.num_runs) == (60, 1)
    # The table beside the picture has the same curve's last value.
    cells, _ = figures._row_numbers("row", runs, "val/accuracy")
    assert cells[0] == f"{curve.y[-1]:.4f}"


def test_many_points_keep_their_extremes() -> None:
    values = [math.sin(place / 7) for place in range(5000)]
    values[2222] = 9.0
    thinned = thin(Curve(list(map(float, range(5000))), values, values, values, 1))
    x = thinned.x
    assert len(x) <= 202
    assert (x[0], x[-1], max(thinned.y)) == (0.0, 4999.0, 9.0)
    assert x == sorted(x)


def test_long_runs_of_several_lengths_share_rounds(tmp_path: Path) -> None:
    columns = {f"train/{i}": [math.sin(k * (i + 1)) for k in range(900)] for i in range(12)}
    short = {key: values[:-37] for key, values in columns.items()}
    runs = [
        record(tmp_path / str(seed), "a", seed, columns if seed else short) for seed in range(20)
    ]
    text = numbers({"a": runs})
    assert len(text) < 400_000
    document = json.loads(text)
    steps = [set(run["step"]) for run in document["rows"]["a"]["runs"]]
    assert all(len(mine & steps[1]) >= 16 for mine in steps)
    assert {900, 863} <= steps[0] | steps[1]
    assert "</" not in text


def test_a_page_of_many_long_runs_is_small(tmp_path: Path) -> None:
    folders = [
        write_run(tmp_path / f"{row}-{seed}", f"row-{row}", "private_federated", seed, rounds=400)
        for row in range(10)
        for seed in range(3)
    ]
    page = write_report(folders, tmp_path / "report.html")
    # 40 such rows take 1.38 MB: each adds some 23 kB to what every page has.
    assert page.stat().st_size < 750_000
    assert "MIT License" in page.read_text(encoding="utf-8")


def test_files_of_seeds_that_differ_in_the_seed_alone_are_shown_once(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / str(s), "row", "federated", s, rounds=5) for s in range(3)]
    text = Page(write_report(folders, tmp_path / "r.html").read_text(encoding="utf-8")).text
    assert text.count("num_users: 300") == 1
    assert text.count("Configuration as of seed 0; the files are in ") == 2


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", "row", "central", rounds=20)


def report(run_dir: Path, *more: Any) -> int:
    page = run_dir.parent / "page.html"
    return main(["report", str(run_dir), "--out", str(page), "--force", *map(str, more)])


def test_figures_are_written_for_papers(run_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "figures"
    assert report(run_dir, "--figures", folder) == 0
    names = sorted(path.name for path in folder.iterdir())
    assert names[:2] == ["01-val-accuracy.pdf", "01-val-accuracy.svg"]
    assert {path.suffix for path in folder.iterdir()} == {".pdf", ".svg"}
    assert all(path.read_bytes().startswith(b"%PDF") for path in folder.glob("*.pdf"))
    first = (folder / "01-val-accuracy.svg").read_bytes()
    # Real colours, not the page's names or the marks of their places.
    assert b"var(--" not in first
    assert b"#0d0e0f" not in first
    assert b">val/accuracy</text>" in first
    assert report(run_dir, "--figures", tmp_path / "again") == 0
    assert (tmp_path / "again" / "01-val-accuracy.svg").read_bytes() == first


def test_pictures_of_one_title_are_told_apart(tmp_path: Path) -> None:
    settings = {"a": "central", "b": "federated", "c": "federated", "c" * 80: "central"}
    folders = [
        write_run(tmp_path / name[:3], name, kind, rounds=10) for name, kind in settings.items()
    ]
    for seed, folder in enumerate(folders[1:3]):
        write_trace_file(folder / DEVICES, generated.build(generated.Options(seed=seed), 20))
    page = tmp_path / "page.html"
    write_report(folders, page, save_to=tmp_path / "figures")
    names = [path.stem[3:] for path in (tmp_path / "figures").glob("*.svg")]
    assert sorted(names) == sorted(set(names))
    assert {"val-accuracy-by-round", "val-accuracy-by-epoch"} <= set(names)
    assert "compute-generated-ms-a-sample-generated-seed-1" in names
    spoken = re.findall(r'aria-label="([^"]*)"', page.read_text(encoding="utf-8"))
    assert len(spoken) == len(set(spoken)) == len(names)


def test_figures_do_not_fill_a_folder_that_has_files(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = str(tmp_path / "new.html")
    assert main(["report", str(run_dir), "--out", page, "--figures", str(run_dir)]) == 2
    assert "has files already; give another folder, or add --force" in capsys.readouterr().err
    file = str(run_dir / "config.yaml")
    assert main(["report", str(run_dir), "--out", page, "--figures", file]) == 2
    assert "is a file; give a folder" in capsys.readouterr().err
    assert not Path(page).exists()
