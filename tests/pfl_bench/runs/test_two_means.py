"""Verdicts against a published mean with its deviation: Welch's test, the prediction interval."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats

from pfl_bench.cli.main import main
from pfl_bench.config.loading import load_config
from pfl_bench.config.views import LoadedView, ViewRow, check_measured
from pfl_bench.files import read_json, read_metrics
from pfl_bench.metrics import MetricDirections
from pfl_bench.report.results import results_table
from pfl_bench.runs.published import best_over_rounds, compare
from pfl_bench.runs.rows import rows_from_summaries
from pfl_bench.runs.runner import run
from pfl_bench.runs.two_means import (
    LEVEL,
    Published,
    agreement,
    p_value,
    prediction_half_width,
    welch,
)
from pfl_bench.types import ConfigError
from tests.helpers import make_config

PAPER = {"metric": "test/accuracy", "tolerance": 0.001, "source": "table 1"}


@pytest.mark.parametrize(
    ("measured", "sd", "seeds"),
    [((0.70, 0.72, 0.71), 0.02, 5), ((0.9, 0.2), 0.01, 10), ((0.5, 0.5, 0.5), 1e-9, 2)],
)
def test_welch_is_scipy_s(measured: tuple[float, ...], sd: float, seeds: int) -> None:
    mine = float(np.std(measured, ddof=1))
    wanted = scipy.stats.ttest_ind_from_stats(
        np.mean(measured), mine, len(measured), 0.7, sd, seeds, equal_var=False
    )
    error, freedom = welch(mine, len(measured), sd, seeds)
    t = (np.mean(measured) - 0.7) / error
    assert t == pytest.approx(wanted.statistic)
    assert p_value(t, freedom) == pytest.approx(wanted.pvalue)


def test_the_prediction_interval_by_hand() -> None:
    """Quantile of Student's t at 4 degrees of freedom from a printed table: 2.776."""
    assert prediction_half_width(0.02, 5) == pytest.approx(2.776 * 0.02 * math.sqrt(1.2), rel=1e-3)
    for value, agrees in ((0.7 + 0.0608, True), (0.7 - 0.0609, False), (math.nan, False)):
        found = agreement([value], Published(0.7, 0.5, 0.02, 5))
        assert (found.agrees, found.test) == (agrees, "prediction interval")


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_level_is_the_stated_one_and_a_shift_is_seen(seeds: int) -> None:
    """A test that always agrees fails the second half, one that never does the first."""
    rng = np.random.default_rng(0)
    rejected = {0.0: 0, 8.0: 0}
    trials = 1500
    for shift in rejected:
        for _ in range(trials):
            paper = rng.normal(0.0, 1.0, 5)
            published = Published(float(paper.mean()), 0.0, float(paper.std(ddof=1)), 5)
            measured = rng.normal(shift, 1.0, seeds).tolist()
            rejected[shift] += not agreement(measured, published).agrees
    # The test with equal deviations holds its level from below: Welch's is approximate.
    error = 3 * math.sqrt(LEVEL * (1 - LEVEL) / trials)
    assert LEVEL - 2 * error < rejected[0.0] / trials < LEVEL + error
    assert rejected[8.0] / trials > 0.9


def test_a_sure_difference_within_the_tolerance_does_not_matter() -> None:
    measured = (0.7100, 0.7101, 0.7099)
    strict, loose = (Published(0.7, tolerance, 1e-4, 5) for tolerance in (0.009, 0.011))
    assert not agreement(measured, strict).agrees
    found = agreement(measured, loose)
    assert found.agrees
    assert "all of it within the tolerance 0.011" in found.text
    unsure = agreement((0.6, 0.8), Published(0.75, 0.01, 0.01, 5))
    assert unsure.agrees
    assert "which reaches beyond the tolerance 0.01" in unsure.text
    assert not agreement((0.7, math.nan), loose).agrees
    # As printed of trainings that all stay at chance: 10.00 +- 0.00.
    for measured in ((0.1001, 0.1002), (0.1, 0.1), (0.1001,)):
        assert agreement(measured, Published(0.1, 0.001, 0.0, 3)).text == "tolerance 0.001"


def run_of(seed: int, accuracy: float, **more: Any) -> dict[str, Any]:
    """A finished run's summary, compared as the runner compares it."""
    entry = {**PAPER, "value": 0.7, "sd": 0.02, "seeds": 5, **more}
    config = make_config("federated", expected=[entry], evaluation__splits=["test"]).config
    summary = {
        "name": "row", "setting": "federated", "variant": "digits", "seed": seed,
        "metrics": {"test/accuracy": accuracy},
        "best": {"test/accuracy": {"value": accuracy + 0.1, "round": 2}},
    }  # fmt: skip
    return summary | {"expected": compare(config, summary, {"test/accuracy": accuracy})}


def test_the_table_names_the_test_and_what_is_published() -> None:
    one, two = run_of(0, 0.75), run_of(1, 0.77)
    # By hand: the half width of the interval is 0.0608; t is 0.06 / sqrt(1e-4 + 8e-5).
    assert [run["expected"][0]["verdict"] for run in (one, two)] == ["reproduced", "differs"]
    row = rows_from_summaries([one])[0]
    assert (row.status, row.test) == ("reproduced", "prediction interval")
    both = rows_from_summaries([one, two])
    assert (both[0].status, both[0].test) == ("differs", "Welch's t-test")
    text = results_table(both).to_markdown()
    assert "0.7000 ± 0.0200 (5 seeds)" in text
    assert "differs (Welch's t-test) [1]" in text
    assert "Welch's t-test against 0.7 ± 0.02 (5 seeds): t 4.47 at 2.8 degrees of freedom" in text
    first, line = results_table(both).to_csv().splitlines()[:2]
    assert "published,published sd,published seeds,mean" in first
    assert ",0.7,0.02,5,0.76," in line


def test_a_number_of_ours_is_as_measured_before_by_the_test_too() -> None:
    row = rows_from_summaries([run_of(seed, 0.71, measured_here=True) for seed in (0, 1)])[0]
    assert (row.status, row.test) == ("as measured before", "Welch's t-test")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sd": 0.1}, "sd is given without seeds"),
        ({"seeds": 3}, "seeds is given without sd"),
        ({"sd": -0.1, "seeds": 3}, "expected.0.sd: must be a finite number >= 0"),
        ({"sd": 0.1, "seeds": 1}, "expected.0.seeds: must be a whole number >= 2"),
        ({"statistic": "best"}, "must be one of 'last', 'best_over_rounds'"),
        (
            {"statistic": "best_over_rounds"},
            r"expected.0: statistic best_over_rounds of 'test/accuracy', whose split is not in "
            r"evaluation.splits: \['val'\]",
        ),
    ],
)
def test_half_a_statement_is_refused(
    config_file: Callable[..., Path], changes: dict[str, Any], words: str
) -> None:
    path = config_file("federated", expected=[{**PAPER, "value": 0.7, **changes}])
    with pytest.raises(ConfigError, match=words):
        load_config(path)


def test_the_best_over_rounds_follows_each_metric_s_direction() -> None:
    lines = [
        {"round": 2, "val/loss": 2.0, "val/accuracy": 0.5, "train/loss": 9.0},
        {"round": 4, "val/loss": "nan", "val/accuracy": 0.7},
        {"round": 6, "val/loss": 1.5, "val/accuracy": 0.7},
        {"round": 8, "val/loss": "inf", "val/accuracy": "nan"},
    ]
    best = best_over_rounds(lines, ["val"], MetricDirections.of_summary(None))
    assert best == {
        "val/loss": {"value": 1.5, "round": 6},
        "val/accuracy": {"value": 0.7, "round": 4},
    }


def test_a_run_is_compared_by_the_best_of_its_rounds(
    config_file: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both numbers of one metric are lines of their own; a resumption sees the whole run."""
    last = {**PAPER, "value": 0.5, "tolerance": 1.0}
    expected = [last, {**last, "statistic": "best_over_rounds"}]
    path = config_file(
        "federated", federated__num_rounds=4, evaluation__every=1, evaluation__splits=["test"],
        federated__local_learning_rate=3.0, checkpoint__every=1, expected=expected,
    )  # fmt: skip
    out = tmp_path / "run"
    assert main(["run", str(path), "--out", str(out)]) == 0
    assert "test/accuracy (best over rounds)" in capsys.readouterr().out
    best = max(line["test/accuracy"] for line in read_metrics(out / "metrics.jsonl"))
    summary = read_json(out / "summary.json")
    assert summary is not None
    assert summary["best"]["test/accuracy"]["value"] == best
    assert [entry["measured"] for entry in summary["expected"]] == [
        summary["metrics"]["test/accuracy"],
        best,
    ]
    (out / "summary.json").unlink()
    assert run(load_config(path), out, resume=True)["best"] == summary["best"]
    # The more often is looked, the better is the best.
    assert load_config(path, ["evaluation.every=2"]).not_the_row == ("evaluation.every 1 -> 2",)


def test_a_run_that_recorded_no_best_is_not_comparable() -> None:
    entry = {**PAPER, "value": 0.7, "statistic": "best_over_rounds"}
    config = make_config("federated", expected=[entry], evaluation__splits=["test"]).config
    ((compared),) = compare(config, {"variant": "digits"}, {"test/accuracy": 0.7})
    assert compared["verdict"] == "not comparable"
    assert "recorded no best value" in compared["why"]


def test_a_view_refuses_the_best_of_a_split_that_no_round_evaluates() -> None:
    row = ViewRow.model_validate(
        {"row": "a", "expected": [{**PAPER, "value": 0.7, "statistic": "best_over_rounds"}]}
    )
    with pytest.raises(ConfigError, match="the best over rounds of 'test/accuracy' is wanted"):
        check_measured(LoadedView(Path("v"), Path(), ()), row, make_config("federated").config)
