"""Figures over the time of simulated devices: made-up run folders."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from pfl_bench.config.schema import RunConfig
from pfl_bench.config.views import check_measured
from pfl_bench.report.figures import draw_figures
from pfl_bench.report.run_folder import RunRecord, read_run
from pfl_bench.simulation.device_sources.generated import generate_devices
from pfl_bench.simulation.devices.trace_file import DEVICES, write_trace_file
from pfl_bench.types import ConfigError
from tests.helpers import make_tree
from tests.pfl_bench.report.test_report_figures import figure, view_of, write_run


def timed_run(folder: Path, seconds: float, **more: Any) -> RunRecord:
    """A run of three rounds of so many simulated seconds each."""
    write_run(folder, "row", **more)
    path = folder / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        line["systems/total_simulated_seconds"] = seconds * line["round"]
        line["time/round_seconds"] = 10.0 ** line["round"]
        line["privacy/epsilon_actual"] = 5.0 if line["round"] < 3 else "inf"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    summary = json.loads((folder / "summary.json").read_text())
    for budget in summary["budgets"]:
        budget["simulated_seconds"] = seconds * 2 if budget["reached"] else None
    (folder / "summary.json").write_text(json.dumps(summary))
    return read_run(folder)


def test_curves_over_simulated_time_have_hours(tmp_path: Path) -> None:
    over_time = figure("curves", "test/accuracy", x="simulated_time")
    view = view_of(tmp_path, ["fast", "slow", "bare"], over_time)
    runs = {
        "fast": [timed_run(tmp_path / "f", 360.0)],
        "slow": [
            timed_run(tmp_path / "s0", 3600.0),
            timed_run(tmp_path / "s1", 7200.0, seed=1, shift=0.1),
        ],
        "bare": [read_run(write_run(tmp_path / "b", "bare"))],
    }
    (drawn,) = draw_figures(view, runs)
    assert drawn.table.headings == (
        "row",
        "test/accuracy, last",
        "test/accuracy, best",
        "simulated hours",
    )
    assert drawn.table.rows == (
        ("FAST", "0.8000", "0.8000", "0.3000"),
        # Two seeds: the mean of 3 and 6 hours.
        ("SLOW", "0.8500", "0.8500", "4.5000"),
        ("BARE", "0.8000", "0.8000", "-"),
    )
    (panel,) = drawn.panels
    assert panel.title == "test/accuracy"
    assert "by simulated hours" in panel.svg
    assert "BARE: has no simulated time" in drawn.notes


def test_made_up_devices_are_named_as_generated(tmp_path: Path) -> None:
    view = view_of(
        tmp_path,
        ["a"],
        figure("curves", "test/accuracy", x="simulated_time"),
        figure("curves", "test/accuracy"),
    )
    run = timed_run(tmp_path / "a", 60.0)
    write_trace_file(run.path / DEVICES, generate_devices(5, np.random.default_rng(0), "seed 0"))
    over_time, over_rounds = draw_figures(view, {"a": [run]})
    assert [panel.title for panel in over_time.panels] == ["test/accuracy (generated devices)"]
    assert [panel.title for panel in over_rounds.panels] == ["test/accuracy"]


def test_the_price_of_a_value_has_hours_where_there_is_a_clock(tmp_path: Path) -> None:
    view = view_of(tmp_path, ["a", "b"], figure("budgets", "test/accuracy", target=0.75))
    a = timed_run(tmp_path / "a", 1800.0)
    b = read_run(write_run(tmp_path / "b", "b"))
    (drawn,) = draw_figures(view, {"a": [a], "b": [b]})
    assert drawn.table.headings[-1] == "simulated hours"
    assert [line[-1] for line in drawn.table.rows] == ["1.0000", "-"]
    (without,) = draw_figures(view, {"b": [b]})
    assert "simulated hours" not in without.table.headings


def test_seconds_and_epsilons_have_a_median_and_no_best(tmp_path: Path) -> None:
    wanted = figure("curves", "time/round_seconds", "privacy/epsilon_actual")
    (drawn,) = draw_figures(
        view_of(tmp_path, ["a"], wanted), {"a": [timed_run(tmp_path / "a", 1.0)]}
    )
    assert drawn.table.headings[1:] == tuple(
        f"{metric}, {what}" for metric in wanted.metrics for what in ("last", "median")
    )
    # The epsilon is infinite at the end, whatever it was before.
    assert drawn.table.rows == (("A", "1000.00", "100.00", str(math.inf), "5.0000"),)


def test_only_curves_of_rows_with_devices_are_over_time(tmp_path: Path) -> None:
    for kind, more in (("boxes", {}), ("budgets", {"target": 0.5})):
        with pytest.raises(ValidationError, match=f"x: a figure of {kind} has no such axis"):
            figure(kind, "val/accuracy", x="simulated_time", **more)
    view = view_of(tmp_path, ["a"], figure("curves", "val/accuracy", x="simulated_time"))
    tree = make_tree("federated")
    with pytest.raises(ConfigError, match="without the section 'systems'"):
        check_measured(view, view.rows[0][0], RunConfig.model_validate(tree))
    tree["federated"].pop("sampling", None)
    tree["systems"] = {"source": {"name": "generated"}}
    check_measured(view, view.rows[0][0], RunConfig.model_validate(tree))
