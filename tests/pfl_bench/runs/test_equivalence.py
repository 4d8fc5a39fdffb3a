"""Verdicts: equivalence within a margin, by t intervals of the difference."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import asdict, replace
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
from pfl_bench.runs.equivalence import LEVEL, Published, equivalence, half_width
from pfl_bench.runs.published import best_over_rounds, compare
from pfl_bench.runs.rows import rows_from_summaries
from pfl_bench.runs.runner import run
from pfl_bench.types import ConfigError, RunSummary
from tests.helpers import make_config

PAPER = {"metric": "test/accuracy", "tolerance": 0.001, "source": "table 1"}


# scipy warns of equal values.
@pytest.mark.filterwarnings("ignore:Precision loss:RuntimeWarning")
@pytest.mark.parametrize(
    ("measured", "sd", "seeds"),
    [((0.70, 0.72, 0.71), 0.02, 5), ((0.9, 0.2), 0.01, 10), ((0.5, 0.5, 0.5), 1e-3, 2)],
)
def test_the_interval_of_two_means_is_scipy_s(
    measured: tuple[float, ...], sd: float, seeds: int
) -> None:
    mine = float(np.std(measured, ddof=1))
    paper = 0.7 + sd * scipy.stats.zscore(np.arange(seeds), ddof=1)
    wanted = scipy.stats.ttest_ind(measured, paper, equal_var=False).confidence_interval(LEVEL)
    half = half_width(mine, len(measured), Published(0.7, 0.0, sd, seeds))
    assert half == pytest.approx((wanted.high - wanted.low) / 2)


def test_one_seed_by_hand() -> None:
    """Quantile of Student's t at 4 degrees of freedom from a printed table: 2.776."""
    assert half_width(None, 1, Published(0.7, 0.1, 0.02, 5)) == pytest.approx(
        2.776 * 0.02 * math.sqrt(1.2), rel=1e-3
    )
    assert half_width(None, 1, Published(0.7, 0.1)) is None
    for value, outcome in (
        (0.7 + 0.039, "reproduced"), (0.7 - 0.040, "undecided"), (0.7 + 0.160, "undecided"),
        (0.7 - 0.161, "differs"), (math.nan, "differs"), (math.inf, "differs"),
    ):  # fmt: skip
        assert equivalence([value], Published(0.7, 0.1, 0.02, 5)).outcome == outcome


@pytest.mark.parametrize(
    ("measured", "published", "outcome"),
    [
        # Scattered seeds that a test of equality cannot tell from .9889.
        ((0.10, 0.23), Published(0.9889, 0.005, 0.0007, 3), "undecided"),
        ((0.9885, 0.9893, 0.9887), Published(0.9889, 0.005, 0.0007, 3), "reproduced"),
        ((0.10, 0.11, 0.10), Published(0.9889, 0.005, 0.0007, 3), "differs"),
        # A spread from chance to above 1.
        ((0.10,), Published(0.5179, 0.005, 0.2675, 3, 0.1), "says nothing"),
        ((0.99,), Published(0.5179, 0.005, 0.2675, 3, 0.1), "says nothing"),
        ((0.52, 0.51, 0.52), Published(0.5179, 0.005, 0.2675, 3), "says nothing"),
        # It holds chance, and is no wider than ten margins.
        ((0.12,), Published(0.12, 0.01, 0.01, 3, 0.1), "says nothing"),
        ((0.12,), Published(0.12, 0.01, 0.01, 3, 0.5), "undecided"),
        # As printed of trainings that all stay at chance: 10.00 +- 0.00.
        ((0.1001,), Published(0.1, 0.01, 0.0, 3, 0.1), "reproduced"),
        ((0.1, 0.1), Published(0.1, 0.01, 0.0, 3, 0.1), "reproduced"),
        # The interval excludes 0 and reaches beyond the margin.
        ((0.712, 0.713, 0.711), Published(0.7, 0.011, 1e-4, 5), "undecided"),
        # No spread is known.
        ((0.7,), Published(0.7, 0.01), "undecided"),
        ((0.7, 0.7), Published(0.7, 0.01), "undecided"),
        ((0.9, 0.9), Published(0.7, 0.01), "differs"),
        # Equal values have the published spread, as one seed has.
        ((0.7, 0.7), Published(0.7, 0.1, 0.05, 5), "undecided"),
        # At the margin as printed.
        ((0.76,), Published(0.75, 0.01, 0.0, 5), "reproduced"),
    ],
)
def test_outcomes(measured: tuple[float, ...], published: Published, outcome: str) -> None:
    assert equivalence(measured, published).outcome == outcome


def test_the_number_of_seeds_that_would_decide() -> None:
    """As many more of the same spread decide, and one fewer do not; none where none would."""
    published = Published(0.7, 0.01, 0.004, 10)
    found = equivalence([0.702], published)
    assert found.more_seeds is not None
    total = 1 + found.more_seeds
    halves = [half_width(0.004, seeds, published) or math.inf for seeds in (total - 1, total)]
    assert halves[1] <= 0.008 < halves[0]
    # The published mean is uncertain by more than the margin, whatever we do.
    assert equivalence([0.702], Published(0.7, 0.01, 0.01, 3)).more_seeds is None


@pytest.mark.parametrize("margin", [0.61, 0.63, 0.71, 0.72, 1.5])
def test_the_number_of_seeds_is_the_first_of_all_that_would_do(margin: float) -> None:
    """Below 0.62, half of the published mean's own interval, none can; at 0.72 it takes 345."""
    published = Published(0.1, margin, 1.0, 10)
    found = equivalence([-1.0, 0.2, 1.1], published)
    spread = statistics.stdev([-1.0, 0.2, 1.1])
    enough = [n for n in range(4, 1001) if (half_width(spread, n, published) or 9) <= margin]
    assert found.outcome == "undecided"
    assert found.more_seeds == (enough[0] - 3 if enough else None)


@pytest.mark.parametrize("seeds", [1, 3, 10])
def test_equal_means_are_rarely_called_different_and_distant_ones_rarely_reproduced(
    seeds: int,
) -> None:
    """At the margin itself either is wrong in at most one half of 1 - LEVEL, of both sides."""
    rng = np.random.default_rng(0)
    trials, margin = 1500, 2.0
    found = dict.fromkeys(("reproduced", "differs", "undecided", "says nothing"), 0)
    for _ in range(trials):
        paper = rng.normal(0.0, 1.0, 10)
        published = Published(float(paper.mean()), margin, float(paper.std(ddof=1)), 10)
        found[equivalence(rng.normal(margin, 1.0, seeds).tolist(), published).outcome] += 1
    wrong = (1 - LEVEL) / 2
    bound = (wrong + 3 * math.sqrt(wrong / trials)) * trials
    assert found["reproduced"] < bound
    assert 0 < found["differs"] < bound


@pytest.mark.parametrize(
    ("seeds", "paper_seeds", "spread", "least", "most"),
    [(3, 3, 1.0, 0.02, 0.06), (3, 10, 1.0, 0.04, 0.08), (5, 5, 1.0, 0.03, 0.06),
     (2, 3, 1.0, 0.02, 0.06), (2, 10, 1.0, 0.08, 0.12), (2, 5, 0.3, 0.09, 0.13)],
)  # fmt: skip
def test_how_often_the_interval_misses(
    seeds: int, paper_seeds: int, spread: float, least: float, most: float
) -> None:
    """Satterthwaite's degrees are an estimate, of two seeds a poor one."""
    rng, trials, missed = np.random.default_rng(0), 3000, 0
    for _ in range(trials):
        ours, paper = rng.normal(0.0, 1.0, seeds), rng.normal(0.0, spread, paper_seeds)
        published = Published(float(paper.mean()), 0.0, float(paper.std(ddof=1)), paper_seeds)
        half = half_width(float(ours.std(ddof=1)), seeds, published)
        assert half is not None
        missed += abs(float(ours.mean()) - published.value) > half
    assert least * trials < missed < most * trials


@pytest.mark.parametrize("spread", [(None, None), (0.005, 5)])
def test_of_coarse_values_that_are_equal_a_number_is_not_taken_for_reproduced(
    spread: tuple[float | None, int | None],
) -> None:
    """Two seeds of 100 examples are equal in half of all cases, which says nothing of a spread."""
    rng, trials, reproduced, equal = np.random.default_rng(0), 1000, 0, 0
    for _ in range(trials):
        ours = (np.round(100 * rng.normal(0.810001, 0.005, 2)) / 100).tolist()
        equal += ours[0] == ours[1]
        reproduced += equivalence(ours, Published(0.8, 0.01, *spread)).outcome == "reproduced"
    assert 0.4 * trials < equal < 0.6 * trials
    assert reproduced <= 0.025 * trials


def test_runs_of_one_seed_are_no_further_seeds_of_an_interval() -> None:
    """A seed's runs lie near one another, and say nothing of how far the next seed is."""
    seeds, values = (0, 0, 0, 1, 1, 1), (0.691, 0.69, 0.689, 0.731, 0.73, 0.729)
    runs = [run_of(seed, value) for seed, value in zip(seeds, values, strict=True)]
    row, once = rows_from_summaries(runs)[0], rows_from_summaries([runs[1], runs[4]])[0]
    assert (row.status, row.num_seeds, len(row.measured)) == (once.status, 2, 6)
    assert row.interval == once.interval
    assert row.interval != replace(row, seeds=()).judged().interval
    (row,) = rows_from_summaries([*runs, run_of(1, 0.73)])
    assert row.mean == pytest.approx((0.69 + 0.73) / 2, abs=1e-12)
    assert row.sd == pytest.approx(0.04 / math.sqrt(2), abs=1e-12)


def test_runs_of_other_settings_are_no_seeds_and_seeds_are_in_order() -> None:
    runs = [run_of(3, 0.72) | {"settings_sha256": name} for name in ("a", "b")]
    first, second = rows_from_summaries([*runs, run_of(0, 0.6) | {"settings_sha256": "a"}])
    assert (first.measured, second.measured) == ((0.6, 0.72), (0.72,))
    assert first.difference == pytest.approx(0.66 - 0.7)


def test_the_largest_epsilon_of_the_seeds_is_the_row_s() -> None:
    claims: list[dict[str, Any]] = [
        {"simulated": {"epsilon": 2.0, "delta": 1e-6}},
        {"simulated": {"epsilon": 1.0, "delta": 1e-4}},
    ]
    runs = [run_of(seed, 0.7) | {"privacy": claim} for seed, claim in enumerate(claims)]
    (row,) = rows_from_summaries(runs)
    assert (row.epsilon_simulated, row.delta_simulated) == (2.0, 1e-6)
    assert (row.epsilon_actual, row.delta_actual) == (None, None)
    # The price of the choice takes the place of the run's own.
    claims[1]["selection"] = {"epsilon": {"simulated": 3.0}, "delta": {"simulated": 1e-5}}
    (row,) = rows_from_summaries(runs)
    assert (row.epsilon_simulated, row.delta_simulated) == (3.0, 1e-5)


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_seed_that_is_not_finite_leaves_no_deviation(value: float) -> None:
    (row,) = rows_from_summaries([run_of(0, 0.7), run_of(1, value)])
    assert row.sd is not None
    assert math.isnan(row.sd)
    assert row.mean is not None
    assert not math.isfinite(row.mean)


def run_of(seed: int, accuracy: float, **more: Any) -> dict[str, Any]:
    """A finished run's summary, compared as the runner compares it."""
    entry = {**PAPER, "value": 0.7, "sd": 0.02, "seeds": 5, **more}
    config = make_config("federated", expected=[entry], evaluation__splits=["test"]).config
    summary = {
        "name": "row", "setting": "federated", "variant": "digits", "seed": seed,
        "metrics": {"test/accuracy": accuracy},
        "best": {"test/accuracy": {"value": accuracy + 0.1, "round": 2}},
    }  # fmt: skip
    known = RunSummary.of({**summary, "expected": []})
    return summary | {"expected": list(map(asdict, compare(config, known)))}


def test_the_table_says_what_would_decide_and_what_is_published() -> None:
    two = [run_of(0, 0.70, tolerance=0.05), run_of(3, 0.72, tolerance=0.05)]
    # By hand: the half width of one seed's interval is 0.0608.
    assert [run["expected"][0]["verdict"] for run in two] == ["undecided", "undecided"]
    (row,) = rows_from_summaries(two)
    text = results_table([row]).to_markdown()
    assert "0.7000 ± 0.0200 (5 seeds)" in text
    assert "undecided (1 more seed) [1]" in text
    # By hand: 3.318 * sqrt(1e-4 + 8e-5) at 2.8 degrees of freedom.
    assert "difference +0.01, 95% interval -0.03454 to +0.05454, margin 0.05; seeds 0, 3" in text
    assert "undecided<small>1 more seed</small>" in results_table([row]).to_html()
    first, line = results_table([row]).to_csv().splitlines()[:2]
    assert "published,published sd,published seeds,mean" in first
    assert ",0.7,0.02,5,0.71," in line


def test_a_pinned_nonce_is_said_beside_the_verdict() -> None:
    (row,) = rows_from_summaries([run_of(0, 0.7) | {"pinned_nonce": True}])
    assert row.note == "private draws of a pinned nonce"


def test_fine_tuning_before_the_test_is_said_beside_the_verdict() -> None:
    (row,) = rows_from_summaries([run_of(0, 0.7) | {"fine_tuned": True}])
    assert row.note.startswith("each client's model was fine-tuned")


def test_a_number_of_ours_is_as_measured_before_by_the_same_rule() -> None:
    runs = [run_of(seed, 0.7, measured_here=True, tolerance=0.1) for seed in (0, 1)]
    assert rows_from_summaries(runs)[0].status == "as measured before"
    assert rows_from_summaries([run_of(0, 0.2, measured_here=True)])[0].status == "differs"


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
    directions = MetricDirections.of_recorded(None)
    best = best_over_rounds(lines, ["val"], directions)
    assert best == {
        "val/loss": {"value": 1.5, "round": 6},
        "val/accuracy": {"value": 0.7, "round": 4},
    }
    both = best_over_rounds(lines, ["val", "train"], directions)
    assert both == best | {"train/loss": {"value": 9.0, "round": 2}}


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
    named = {"name": "row", "setting": "federated", "variant": "digits", "seed": 0}
    measured = {**named, "metrics": {"test/accuracy": 0.7}, "expected": []}
    (compared,) = compare(config, RunSummary.of(measured))
    assert compared.verdict == "not comparable"
    assert "recorded no best value" in compared.why


def test_a_view_refuses_the_best_of_a_split_that_no_round_evaluates() -> None:
    row = ViewRow.model_validate(
        {"row": "a", "expected": [{**PAPER, "value": 0.7, "statistic": "best_over_rounds"}]}
    )
    with pytest.raises(
        ConfigError, match="metric 'test/accuracy', whose best over rounds is wanted"
    ):
        check_measured(LoadedView(Path("v"), Path(), ()), row, make_config("federated").config)


def test_one_seed_far_from_a_number_without_a_spread_differs() -> None:
    """However far off it was undecided."""
    assert equivalence([0.85], Published(0.8, 0.01)).outcome == "undecided"
    assert equivalence([0.699], Published(0.8, 0.01)).outcome == "differs"
    assert equivalence([0.9], Published(0.8, 0.01)).outcome == "undecided"


@pytest.mark.parametrize(("published_seeds", "said"), [(None, 0.13), (10, 0.11)])
def test_seeds_that_are_added_until_decided(published_seeds: int | None, said: float) -> None:
    """The shares that docs/commands.md says, of a difference of just the margin."""
    rng, trials, reproduced = np.random.default_rng(0), 2000, 0
    for _ in range(trials):
        seeds, published = 1.00001 + 0.2 * rng.standard_normal(20), Published(0.0, 1.0)
        if published_seeds is not None:
            other = 0.2 * rng.standard_normal(published_seeds)
            published = Published(other.mean(), 1.0, other.std(ddof=1), published_seeds)
        for number in range(2, 21):
            difference = seeds[:number].mean() - published.value
            half = half_width(seeds[:number].std(ddof=1), number, published)
            assert half is not None
            if abs(difference) + half <= 1.0 or abs(difference) - half > 1.0:
                break
        found = equivalence(seeds[:number].tolist(), published).outcome
        reproduced += found == "reproduced"
    # Four standard deviations of a share of so many.
    assert reproduced / trials == pytest.approx(said, abs=0.03)
