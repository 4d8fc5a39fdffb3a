"""Diverged training is said in its round, and in all that is left of the run."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from pfl_bench.cli.main import main
from pfl_bench.evaluation.evaluator import Evaluator
from pfl_bench.files import read_metrics
from pfl_bench.report.grid import make_grid
from pfl_bench.runs.divergence import DivergenceWatch, describe_divergence
from pfl_bench.runs.rows import rows_from_summaries
from pfl_bench.runs.runner import run
from tests.helpers import central_of, make_config

ANYTHING = {
    "metric": "test/accuracy",
    "value": 0.5,
    "sd": 0.0,
    "seeds": 2,
    "tolerance": 1.0,
    "source": "any number",
}
# Settings by which each trainer diverges, with finite losses, in its first rounds.
DIVERGING: dict[str, tuple[str, dict[str, Any], str]] = {
    "federated": ("federated", {"federated__local_learning_rate": 1e6}, "local_learning_rate"),
    "private": ("private_federated", {"federated__central_learning_rate": 1e7}, "less noise"),
    "central": ("central", {"central__learning_rate": 1e6}, "central.learning_rate"),
    "central_dp": ("central_dp", {"central__learning_rate": 1e6}, "central.learning_rate"),
}
LOCAL = {"num_epochs": 1, "batch_size": 4, "learning_rates": [1e9], "num_clients": 3}


@pytest.mark.parametrize(
    ("scalars", "metric"),
    [
        ({"train/loss": 1999.0, "val/loss": 1.0, "val/client_loss_p90": math.nan}, None),
        ({"train/loss": 2001.0}, "train/loss"),
        ({"train/loss": math.nan}, "train/loss"),
        ({"train/loss": math.inf}, "train/loss"),
        ({"train/loss": -math.inf}, "train/loss"),
        ({"train/loss": -1e30}, None),
        ({"train/loss": 1.0, "val/loss": 1e30}, "val/loss"),
        ({"local/val_loss": math.nan}, "local/val_loss"),
        ({"train/num_nonfinite": 3.0, "train/loss": 1.0}, None),
        # Nobody's update was finite, so that there is no loss to record.
        ({"train/num_nonfinite": 3.0}, "train/loss"),
        ({"train/num_nonfinite": 0.0}, None),
        ({"train/update_norm": math.inf, "val/perplexity": math.inf}, None),
    ],
)
def test_what_counts_as_diverged(scalars: dict[str, float], metric: str | None) -> None:
    watch = DivergenceWatch(2.0)
    assert watch.look(7, scalars) == (metric is not None)
    assert (watch.found or {}).get("metric") == metric
    if metric is not None:
        assert watch.found is not None
        assert watch.found["round"] == 7
        # It is said once, of the first round.
        assert not watch.look(8, scalars)
        assert watch.found["round"] == 7
        assert f"in round 7: {metric} is" in describe_divergence(watch.found)


def test_a_description_has_the_value_before_the_start() -> None:
    watch = DivergenceWatch(2.0)
    watch.look(7, {"val/loss": 2001.0})
    said = "training diverged in round 7: val/loss is 2001, and was 2 at the start"
    assert describe_divergence(watch.found) == said


@pytest.mark.parametrize("start", [0.0, -3.0, math.nan])
def test_a_start_that_is_no_measure_leaves_finite_losses_alone(start: float) -> None:
    watch = DivergenceWatch(start)
    assert not watch.look(1, {"train/loss": 1e30})
    assert watch.look(2, {"train/loss": math.nan})


def test_a_resumed_run_measures_by_the_start_that_was_saved() -> None:
    """Another machine may compute the initial model's loss a little differently."""
    watch = DivergenceWatch(2.0)
    watch.load_state_dict(DivergenceWatch(2000.0).state_dict())
    assert not watch.look(1, {"train/loss": 2001.0})
    assert watch.look(2, {"train/loss": math.inf})
    assert (watch.found or {})["start"] == 2000.0


@pytest.mark.parametrize("name", sorted(DIVERGING))
def test_a_diverged_run_says_so_everywhere(
    name: str, config_file: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    setting, changes, mend = DIVERGING[name]
    row = config_file(setting, expected=[ANYTHING], **changes)
    out = tmp_path / "run"
    assert main(["run", str(row), "--out", str(out)]) == 1
    printed = capsys.readouterr()
    summary = json.loads((out / "summary.json").read_text())
    found = summary["diverged"]
    unit = "epoch" if "central" in setting else "round"
    notices = [n for n in (out / "run.log").read_text().splitlines() if "diverged" in n]
    assert len(notices) == 1
    assert f"training diverged in {unit} {found['round']}: " in notices[0]
    assert f"{float(found['value']):.4g}" in notices[0]
    assert mend in notices[0]
    # It was said when it happened, before the evaluations that came later.
    lines = printed.err.splitlines()
    (said,) = [place for place, line in enumerate(lines) if "diverged in" in line]
    last = next(place for place, line in enumerate(lines) if f": {summary['rounds']}/" in line)
    assert said < last
    recorded = read_metrics(out / "metrics.jsonl")[found["round"] - 1]
    assert recorded[found["metric"]] == found["value"]
    assert not found["value"] <= 1000 * found["start"]
    assert summary["status"] == "finished"
    ((verdict, why),) = [(entry["verdict"], entry["why"]) for entry in summary["expected"]]
    assert verdict == "diverged"
    assert "training diverged in" in why
    assert "| diverged [1]" in printed.out
    page = (out / "report.html").read_text(encoding="utf-8")
    assert '<span class="verdict differs">diverged' in page
    assert f"finished, training diverged in {unit} {found['round']}" in page
    # The table of the same run, which is not run again.
    assert main(["table", str(row.parent), "--out", str(tmp_path / "table")]) == 1
    assert main(["table", str(row.parent), "--out", str(tmp_path / "table")]) == 1


def test_local_models_diverge_too(tmp_path: Path) -> None:
    task = {"name": "synthetic", "num_tasks": 5, "min_examples": 10}
    summary = run(make_config("federated", federated=None, local=LOCAL, task=task), tmp_path)
    assert summary["diverged"]["metric"].startswith("local/")
    (row,) = rows_from_summaries([summary])
    assert row.status == "diverged"
    assert "lower local.learning_rates" in (tmp_path / "run.log").read_text()


def test_a_run_whose_every_update_is_lost_has_diverged(tmp_path: Path) -> None:
    changes = {"federated__local_learning_rate": 1e38, "federated__local_epochs": 3}
    config = make_config("federated", model__name="mlp", federated__num_rounds=1, **changes)
    assert run(config, tmp_path)["diverged"]["value"] != 0
    assert json.loads((tmp_path / "summary.json").read_text())["diverged"]["value"] == "nan"


@pytest.mark.parametrize("setting", ["federated", "central"])
def test_a_healthy_run_has_not_diverged(setting: str, tmp_path: Path) -> None:
    summary = run(make_config(setting), tmp_path)
    assert summary["diverged"] is None


def test_a_loss_of_the_final_evaluation_alone_counts(tmp_path: Path) -> None:
    """All training losses come before the step that ruins the model."""
    config = make_config(
        "federated", federated__num_rounds=1, federated__central_learning_rate=1e9,
        evaluation__splits=[],
    )  # fmt: skip
    summary = run(config, tmp_path)
    found = summary["diverged"]
    assert (found["metric"], found["round"]) == ("test/loss", 1)


def test_a_loss_of_an_evaluation_counts_although_a_better_model_is_selected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training losses of an epoch come before its last step, which may ruin the model."""
    real = Evaluator.evaluate

    def ruined(self: Evaluator, splits: Sequence[str]) -> Any:
        measured, tables = real(self, splits)
        return measured | ({"val/loss": 1e9} if "val" in splits else {}), tables

    monkeypatch.setattr(Evaluator, "evaluate", ruined)
    config = make_config(
        "central", central__num_epochs=2, evaluation__every=1,
        evaluation__select_best="val/accuracy",
    )  # fmt: skip
    found = run(config, tmp_path)["diverged"]
    assert (found["metric"], found["round"], found["value"]) == ("val/loss", 1, 1e9)


def test_what_diverged_survives_a_cut(tmp_path: Path) -> None:
    """And the cut run resumes to the same bits, and says the round in which it happened."""
    changes = {"federated__local_learning_rate": 1e6, "checkpoint": {"every": 2, "keep": 10}}
    config = make_config("federated", **changes)
    straight, cut = tmp_path / "straight", tmp_path / "cut"
    whole = run(config, straight)
    run(config, cut)
    (cut / "summary.json").unlink()
    for path in (cut / "checkpoints").iterdir():
        if path.name != "step-00000004.pt":
            path.unlink()
    resumed = run(config, cut, resume=True)
    assert whole["diverged"]["round"] <= 4
    assert resumed["diverged"] == whole["diverged"]
    assert torch.equal(central_of(cut), central_of(straight))
    assert (cut / "run.log").read_text().count("training diverged") == 1


def test_a_published_failure_is_compared(tmp_path: Path) -> None:
    """The number of training that failed, such as an accuracy at chance."""
    expected = [{**ANYTHING, "diverged": True}, {**ANYTHING, "metric": "test/loss", "value": 0.0}]
    changes = {"federated__local_learning_rate": 1e6, "expected": expected}
    summary = run(make_config("federated", **changes), tmp_path)
    assert [entry["verdict"] for entry in summary["expected"]] == ["reproduced", "diverged"]
    accuracy, loss = rows_from_summaries([summary])
    assert (accuracy.status, accuracy.is_failure) == ("reproduced", False)
    assert "training diverged in round" in accuracy.note
    assert (loss.status, loss.is_failure) == ("diverged", True)


def test_one_diverged_seed_is_enough(tmp_path: Path) -> None:
    good = run(make_config("federated", expected=[ANYTHING]), tmp_path)
    found = {"metric": "train/loss", "round": 3, "unit": "round", "value": "nan", "start": 2.3}
    bad = {**good, "seed": 9, "diverged": found}
    bad["expected"] = [{**good["expected"][0], "verdict": "diverged", "why": "it did"}]
    (row,) = rows_from_summaries([good, bad])
    assert (row.status, row.note) == ("diverged", "it did; seeds 3, 9")
    assert make_grid([row], {}).to_text().splitlines()[-1].split() == [
        "agree",
        "diverged",
    ]
    # Nor does a row of which nothing is published keep it to itself.
    unpublished = [{**summary, "expected": []} for summary in (good, bad)]
    (row,) = rows_from_summaries(unpublished)
    assert row.status == "diverged"
    assert "train/loss is not finite (nan)" in row.note
