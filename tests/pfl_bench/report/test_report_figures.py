"""Figures of views, and what the page says of clients, strata and costs: made-up run folders."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from matplotlib.axes import Axes

from pfl_bench.config.row_differences import settings_digest
from pfl_bench.config.schema import RunConfig
from pfl_bench.config.views import Figure, LoadedView, ViewRow, check_measured
from pfl_bench.files import write_json
from pfl_bench.report.canvas import Picture
from pfl_bench.report.costs import bytes_text, clock_table, flops_text, price_of, total_of
from pfl_bench.report.figures import DrawnFigure, draw_figures
from pfl_bench.report.page import write_page, write_report
from pfl_bench.report.pictures import Box, box_keys, box_of, draw_boxes
from pfl_bench.report.run_facts import strata_tables
from pfl_bench.report.run_folder import read_run
from pfl_bench.types import ConfigError
from tests.helpers import make_tree
from tests.pfl_bench.report.test_report import Page

PERCENTILES = dict(zip((10, 25, 50, 75, 90), (0.1, 0.4, 0.7, 0.8, 0.9), strict=True))


def write_run(
    folder: Path,
    name: str,
    *,
    seed: int = 0,
    setting: str = "federated",
    losses: tuple[float, ...] = (2.0, 1.0, 0.5),
    shift: float = 0.0,
    reached: int | None = 2,
    finished: bool = True,
    percentiles: dict[int, float] = PERCENTILES,
    strata: dict[str, Any] | None = None,
) -> Path:
    """Write a run folder as a trainer would; 10 GFLOP, 2 MB down and 1 MB up a round."""
    folder.mkdir(parents=True)
    section = {"local": "local", "multitask": "multitask", "central": "central"}.get(
        setting, "federated"
    )
    length = {"central": "num_epochs", "local": "num_epochs"}.get(section, "num_rounds")
    config = {
        "name": name,
        "seed": seed,
        "task": {"name": "digits"},
        section: {length: len(losses)},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    lines = [
        {
            "round": place,
            "train/loss": loss if math.isfinite(loss) else "nan",
            "test/accuracy": 0.5 + 0.1 * place + shift,
            "systems/flops": 1e10,
        }
        for place, loss in enumerate(losses, start=1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "environment.json").write_text("{}")
    if strata is not None:
        (folder / "strata.json").write_text(json.dumps(strata))
    if not finished:
        return folder
    rounds = len(losses)
    budget: dict[str, Any] = {"metric": "test/accuracy", "target": 0.75, "reached": False}
    budget |= dict.fromkeys(("index", "value", "flops", "bytes_down", "bytes_up"))
    if reached is not None:
        budget |= {"reached": True, "index": reached, "value": 0.76, "flops": reached * 1e10}
        budget |= {"bytes_down": reached * 2e6, "bytes_up": reached * 1e6}
    metrics = {f"test/client_accuracy_p{p}": v + shift for p, v in percentiles.items()}
    metrics |= {"test/accuracy": 0.66, "test/accuracy_by_client": 0.6 + shift}
    summary = {
        "format_version": 1,
        "name": name,
        "setting": setting,
        "task": "digits",
        "variant": "made-up",
        "seed": seed,
        "settings_sha256": settings_digest(config),
        "rounds": rounds,
        "status": "finished",
        "metrics": {**metrics, "test/num_clients": 1234.0},
        "expected": [],
        "privacy": None,
        "systems": {"flops": rounds * 1e10, "bytes_down": rounds * 2e6, "bytes_up": rounds * 1e6},
        "budgets": [budget],
        "seconds": 1.0,
    }
    write_json(folder / "summary.json", summary)
    return folder


def figure(kind: str, *metrics: str, **more: Any) -> Figure:
    return Figure.model_validate(
        {"kind": kind, "title": f"A figure of {kind}", "metrics": list(metrics), **more}
    )


def view_of(path: Path, names: list[str], *figures: Figure) -> LoadedView:
    rows = tuple((ViewRow(row=name, label=name.upper()), path / f"{name}.yaml") for name in names)
    return LoadedView(path / "view.yaml", path, rows, figures)


@pytest.fixture
def drawn(tmp_path: Path) -> tuple[list[DrawnFigure], str]:
    """Four rows, of which "d" has no run and "c" did not reach the value, and the page."""
    view = view_of(
        tmp_path,
        ["a", "b", "c", "d"],
        figure("curves", "train/loss", "test/accuracy", rows=["a", "b", "d"]),
        figure("boxes", "test/accuracy"),
        figure("budgets", "test/accuracy", target=0.75),
    )
    runs = {
        "a": [
            read_run(write_run(tmp_path / f"a{seed}", "row-a", seed=seed, shift=seed * 0.02))
            for seed in range(2)
        ],
        "b": [read_run(write_run(tmp_path / "b", "row-b", losses=(2.0, 400.0, math.nan)))],
        "c": [read_run(write_run(tmp_path / "c", "row-c", reached=None, percentiles={50: 0.5}))],
    }
    figures = draw_figures(view, runs)
    records = [run for group in runs.values() for run in group]
    page = write_page(records, tmp_path / "page.html", None, figures)
    return figures, page.read_text(encoding="utf-8")


def test_curves_have_a_line_a_row_and_say_what_is_missing(
    drawn: tuple[list[DrawnFigure], str],
) -> None:
    curves = drawn[0][0]
    # 2 to 400 does not fit a linear scale; accuracies do.
    assert [panel.title for panel in curves.panels] == ["train/loss (logarithmic)", "test/accuracy"]
    assert [(entry["name"], entry["num_runs"]) for entry in curves.legend] == [("A", 2), ("B", 1)]
    assert curves.table.rows == (
        ("A", "0.5000", "0.5000", "0.8100", "0.8100"),
        ("B", "400.00", "2.0000", "0.8000", "0.8000"),
    )
    assert "D: no run of this row is there" in curves.notes
    assert "B: train/loss is not finite at 1 of 3 points" in curves.notes


def test_boxes_are_of_the_percentiles_over_clients(drawn: tuple[list[DrawnFigure], str]) -> None:
    boxes = drawn[0][1]
    assert boxes.table.rows[0] == (
        ("A", "1,234", "0.1100", "0.4100", "0.7100", "0.8100", "0.9100", "0.6100")
    )
    assert boxes.table.rows[1][2:] == ("0.1000", "0.4000", "0.7000", "0.8000", "0.9000", "0.6000")
    assert len(boxes.table.rows) == 2
    (lacking,) = [note for note in boxes.notes if note.startswith("C: ")]
    assert "the summary lacks test/client_accuracy_p10, test/client_accuracy_p25, " in lacking
    assert "A: averaged over 2 runs, number by number" in boxes.notes
    (panel,) = boxes.panels
    assert "A: p10 0.11, p25 0.41, median 0.71, p75 0.81, p90 0.91, mean 0.61" in panel.svg


def test_budgets_name_the_row_that_did_not_reach_the_value(
    drawn: tuple[list[DrawnFigure], str],
) -> None:
    budgets = drawn[0][2]
    assert budgets.table.rows == (
        ("A", "2 of 2", "2", "20 GFLOP", "2 MB", "4 MB"),
        ("B", "yes", "2", "20 GFLOP", "2 MB", "4 MB"),
        # Not reached: all that the run used.
        ("C", "no", "3", "30 GFLOP", "3 MB", "6 MB"),
    )
    assert "C: test/accuracy 0.75 was not reached in 3 rounds; the best was 0.8000" in budgets.notes
    assert "D: no run of this row is there" in budgets.notes
    (panel,) = budgets.panels
    assert "C: 30 GFLOP, 3 MB sent, not reached" in panel.svg
    assert "C (not reached)" in re.sub("<[^>]*>", "", panel.svg)


def test_the_page_shows_figures_and_asks_nobody_for_anything(
    drawn: tuple[list[DrawnFigure], str],
) -> None:
    text = drawn[1]
    page = Page(text)
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    assert all(reference.startswith("#") for reference in page.references)
    assert not re.search(r"https?://(?!github.com/leeoniya/uPlot )|@import|url\((?!#)", text)
    order = ["Results", "A figure of curves", "Learning curves"]
    assert sorted(order, key=page.text.index) == order
    # Colours and ink are the page's own, in the dark too.
    pictures = "".join(re.findall(r"<svg role=.*?</svg>", text, flags=re.DOTALL))
    assert len(pictures) > 10_000
    assert not re.search(r"(?:stroke|fill): #", pictures)
    assert "D: no run of this row is there" in page.text
    assert "row-a 30 GFLOP 6 MB 3 MB" in page.text
    assert "row-c test/accuracy 0.75 not reached - - -" in page.text
    assert "row-a test/accuracy 0.75 round 2 (2 of 2 runs) 20 GFLOP 4 MB 2 MB" in page.text


def test_a_figure_without_runs_says_that_nothing_could_be_drawn(tmp_path: Path) -> None:
    view = view_of(tmp_path, ["a"], figure("boxes", "test/accuracy"))
    (empty,) = draw_figures(view, {})
    assert empty.panels == ()
    assert empty.notes == ("Nothing could be drawn.", "A: no run of this row is there")


def test_an_unfinished_run_is_drawn_as_far_as_it_came(tmp_path: Path) -> None:
    view = view_of(tmp_path, ["a"], figure("curves", "test/accuracy"))
    run = read_run(write_run(tmp_path / "r", "row-a", finished=False))
    (curves,) = draw_figures(view, {"a": [run]})
    assert curves.table.rows == (("A", "0.8000", "0.8000"),)
    assert curves.notes == ("A: seed 0 is unfinished, after round 3",)


def test_figures_of_rows_that_were_not_asked_for_are_left_out(tmp_path: Path) -> None:
    view = view_of(
        tmp_path,
        ["a", "b"],
        figure("boxes", "test/accuracy", rows=["a"]),
        figure("boxes", "test/accuracy", rows=["b"]),
    )
    runs = {"b": [read_run(write_run(tmp_path / "r", "row-b"))]}
    (only,) = draw_figures(view, runs, ["b"])
    assert only.notes == ()
    assert [line[0] for line in only.table.rows] == ["B"]


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ({"kind": "boxes", "metrics": ["val/accuracy"]}, "not of a split in the row's"),
        ({"kind": "curves", "metrics": ["test/accuracy"]}, "evaluation.splits: .'val'"),
        (
            {"kind": "budgets", "metrics": ["val/accuracy"], "target": 0.8},
            "not in the row's evaluation.budgets; add it there",
        ),
    ],
)
def test_a_figure_of_what_a_row_does_not_measure_is_refused_before_it_runs(
    tmp_path: Path, metric: dict[str, Any], words: str
) -> None:
    tree = make_tree("federated")
    tree["evaluation"]["budgets"] = [{"metric": "val/accuracy", "value": 0.75}]
    config = RunConfig.model_validate(tree)
    view = view_of(tmp_path, ["a"], Figure.model_validate({"title": "F", **metric}))
    with pytest.raises(ConfigError, match=words):
        check_measured(view, view.rows[0][0], config)
    good = view_of(
        tmp_path,
        ["a"],
        figure("boxes", "test/accuracy"),
        figure("curves", "val/accuracy", "train/loss"),
        figure("budgets", "val/accuracy", target=0.75),
    )
    check_measured(good, good.rows[0][0], config)


def test_strata_are_the_best_and_the_worst(tmp_path: Path) -> None:
    plays = {
        f"play {index:02d}": {"examples": 100 + index, "clients": 3, "accuracy": index / 100}
        for index in range(30)
    }
    plays["tiny"] = {"examples": 1, "clients": 1, "accuracy": 1.0}
    folder = write_run(tmp_path / "r", "row", strata={"test": {"play": plays}})
    (table,) = strata_tables([read_run(folder)])
    assert table.title == "row: test, by play"
    best, worst = table.tables
    assert (best.headings[:2], worst.headings[0]) == (("best", "accuracy"), "worst")
    assert [line[0] for line in best.rows] == [f"play {index}" for index in range(29, 24, -1)]
    # Small ones are at an end by chance: the smallest quarter is left out, and that is said.
    assert [line[0] for line in worst.rows] == [f"play {index:02d}" for index in range(6, 11)]
    assert (
        table.count
        == "31 values; the 7 with fewer than 106 examples are left out, ordered by accuracy."
    )
    text = Page(write_report([folder], tmp_path / "p.html").read_text(encoding="utf-8")).text
    assert "Strata row: test, by play 31 values" in text
    assert "play 29 0.2900 129 3" in text


def test_a_stratum_without_a_number_does_not_disturb_the_order(tmp_path: Path) -> None:
    values = {"a": 0.1, "b": "nan", "c": 0.3, "d": 0.2}
    plays = {name: {"examples": 5, "clients": 1, "accuracy": v} for name, v in values.items()}
    folder = write_run(tmp_path / "r", "row", strata={"test": {"play": plays}})
    (table,) = strata_tables([read_run(folder)])
    assert [line[0] for line in table.tables[0].rows] == ["c", "d", "a"]
    assert table.count == "3 values; 1 without a number is left out, ordered by accuracy."


def test_few_strata_are_all_shown(tmp_path: Path) -> None:
    plays = {name: {"examples": 5, "clients": 1, "loss": place} for place, name in enumerate("ba")}
    folder = write_run(tmp_path / "r", "row", strata={"test": {"play": plays}})
    (table,) = strata_tables([read_run(folder)])
    (shown,) = table.tables
    assert (shown.headings[0], [line[0] for line in shown.rows]) == ("value", ["b", "a"])


@pytest.mark.parametrize(
    ("setting", "words"),
    [("local", "local models"), ("multitask", "federated multi-task")],
)
@pytest.mark.parametrize("finished", [True, False])
def test_settings_are_named(tmp_path: Path, setting: str, words: str, finished: bool) -> None:
    folder = write_run(tmp_path / "r", "row", setting=setting, finished=finished)
    assert read_run(folder).setting == setting
    text = Page(write_report([folder], tmp_path / "p.html").read_text(encoding="utf-8")).text
    assert f"row {words} " in text
    # How many rounds local models take depends on the data, not on the configuration alone.
    assert ("3 of 3 rounds" in text) == (setting == "multitask")


def test_a_damaged_strata_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from pfl_bench.cli.main import main

    folder = write_run(tmp_path / "r", "row")
    (folder / "strata.json").write_text("{", encoding="utf-8")
    assert main(["report", str(folder), "--out", str(tmp_path / "p.html")]) == 2
    assert "strata.json is not JSON" in capsys.readouterr().err


def test_amounts_are_written_with_prefixes() -> None:
    assert [bytes_text(v) for v in (0, 999, 1000, 26_414_840, 1e30)] == [
        "0 B",
        "999 B",
        "1 kB",
        "26.4 MB",
        "1000000000 ZB",
    ]
    assert flops_text(1.234e12) == "1.23 TFLOP"
    assert flops_text(None) == "-"


def test_a_price_is_averaged_over_the_seeds_that_reached_the_value(tmp_path: Path) -> None:
    runs = [
        read_run(write_run(tmp_path / str(seed), "row", seed=seed, reached=reached))
        for seed, reached in enumerate((1, 3, None))
    ]
    price = price_of(runs, "test/accuracy", 0.75)
    assert price is not None
    assert (price.num_reached, price.num_runs, price.steps) == (2, 3, 2.0)
    assert price.flops == 2e10
    assert price_of(runs, "test/accuracy", 0.8) is None


def test_the_price_of_a_value_that_is_to_fall_has_the_smallest_as_the_best(tmp_path: Path) -> None:
    reaching = write_run(tmp_path / "0", "row", reached=2, losses=(2.0, 1.0, 1.5))
    missing = write_run(tmp_path / "1", "row", seed=1, reached=None, losses=(3.0, 1.6, 1.2))
    for folder in (reaching, missing):
        tree = json.loads((folder / "summary.json").read_text())
        tree["budgets"][0] |= {"metric": "train/loss", "target": 1.1}
        write_json(folder / "summary.json", tree)
    price = price_of([read_run(reaching), read_run(missing)], "train/loss", 1.1)
    assert price is not None
    assert (price.num_reached, price.num_runs, price.steps, price.best) == (1, 2, 2.0, 1.0)
    price = price_of([read_run(missing)], "train/loss", 1.1)
    assert price is not None
    assert (price.num_reached, price.steps, price.flops, price.best) == (0, 3.0, 3e10, 1.2)


def test_costs_and_simulated_clocks_are_means_over_the_seeds(tmp_path: Path) -> None:
    runs = []
    for seed, (rounds, hours) in enumerate([(2, 1.0), (6, 2.0), (0, 0.0)]):
        folder = write_run(tmp_path / str(seed), "row", seed=seed, reached=1)
        tree = json.loads((folder / "summary.json").read_text())
        tree["rounds"] = rounds
        tree["systems"] |= {"simulated_seconds": hours * 3600, "lost": 10 * seed, "stragglers": 4}
        tree["systems"]["flops"] = 1e10 * (seed + 1)
        tree["budgets"][0]["simulated_seconds"] = [1.0, 2.0, 9.0][seed]
        write_json(folder / "summary.json", tree)
        runs.append(read_run(folder))
    total, price, clocks = (
        total_of(runs),
        price_of(runs, "test/accuracy", 0.75),
        clock_table({"r": runs}),
    )
    assert total is not None
    assert price is not None
    assert clocks is not None
    assert (total["flops"], price.seconds) == (2e10, 4.0)
    # A run of no round says nothing of a round.
    assert clocks.rows == (("r", "1.5", "1350", "5", "4"),)


def test_a_box_needs_all_its_numbers(tmp_path: Path) -> None:
    run = read_run(
        write_run(
            tmp_path / "r",
            "row",
            percentiles={
                10: math.nan,
            },
        )
    )
    assert box_of("R", [run], "test/accuracy") is None
    assert box_keys("val/loss")[-1] == "val/loss_by_client"


def test_rows_that_their_settings_tell_apart_leave_a_picture_room(tmp_path: Path) -> None:
    # Matplotlib warns, which is an error here, where labels leave the axes no size.
    labels = [f"demo-federated ({n}: {'federated.cohort_size 60 -> 10; ' * 6})" for n in (2, 3)]
    boxes = [Box(label, (0.1, 0.2, 0.3, 0.4, 0.5), 0.3, 1) for label in labels]
    svg = draw_boxes("b0", "test/accuracy", boxes).svg
    assert "demo-federated (2: federated.co…" in svg
    assert labels[1] in svg

    def paint(axes: Axes) -> None:
        for label in labels:
            axes.plot([0, 1], [0, 1], label=label)

    Picture("c0", "two curves", paint).save(tmp_path / "curves", "accuracy")
    assert (tmp_path / "curves.pdf").is_file()
