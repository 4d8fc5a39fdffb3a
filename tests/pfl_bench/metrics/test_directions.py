"""Which metrics are better when lower, and which head a table: the families' own statement."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pfl_bench.metrics
from pfl_bench import plugins
from pfl_bench.files import read_metrics
from pfl_bench.metrics import MetricDirections, is_spread, lower_is_better
from pfl_bench.report.pictures import box_keys
from pfl_bench.runs.rows import headline_metrics, rows_from_summaries
from pfl_bench.runs.runner import run
from pfl_bench.types import PluginError, RunSummary
from tasks.digits.task import DigitsTask
from tests.helpers import make_config

FAMILY = """
'''The share of examples that are wrong.'''
from pydantic import BaseModel, ConfigDict
{statement}

class Options(BaseModel):
    '''None.'''
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Errors:
    def __init__(self):
        self.wrong = self.count = 0

    def update(self, outputs, targets):
        wrong = (outputs.argmax(dim=1) != targets).float()
        self.wrong += int(wrong.sum())
        self.count += len(targets)
        return {{"error_rate": wrong}}

    def merge(self, other):
        self.wrong += other.wrong
        self.count += other.count

    def compute(self):
        return {{"right": self.count - self.wrong, "error_rate": self.wrong / self.count}}


def build(options, facts):
    return Errors()
"""
STATEMENT = 'LOWER_IS_BETTER = frozenset({"error_rate"})\nHEADLINES = ("error_rate",)\n'


def plant(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    (folder / "errors.py").write_text(text, encoding="utf-8")
    folders = [*pfl_bench.metrics.__path__, str(folder)]
    monkeypatch.setattr(pfl_bench.metrics, "__path__", folders)
    monkeypatch.setattr(pfl_bench.metrics.__spec__, "submodule_search_locations", folders)
    monkeypatch.setattr(DigitsTask, "metrics", ("errors",))
    importlib.invalidate_caches()


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    sys.modules.pop("pfl_bench.metrics.errors", None)


@pytest.mark.parametrize(
    "metric", ["val/error_rate", "val/error_rate_by_client", "val/client_error_rate_p90"]
)
def test_the_lowest_of_a_family_s_own_error_rate_is_selected_and_heads_the_table(
    metric: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(FAMILY.format(statement=STATEMENT), tmp_path / "plug-ins", monkeypatch)
    budget = {"metric": metric, "value": 0.7}
    config = make_config(
        "federated",
        evaluation__every=1,
        evaluation__select_best=metric,
        evaluation__budgets=[budget],
    )
    summary = run(config, tmp_path / "run")
    values = [row[metric] for row in read_metrics(tmp_path / "run" / "metrics.jsonl")]
    assert summary["selection"]["value"] == min(values) < max(values)
    assert summary["budgets"][0]["value"] == next(value for value in values if value <= 0.7)
    assert [row.metric for row in rows_from_summaries([summary])] == ["test/error_rate"]
    # What reads a run does not need the family.
    monkeypatch.undo()
    read = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))
    recorded = {"lower_is_better": ["error_rate"], "headlines": ["error_rate"]}
    assert read["metric_directions"] == recorded
    assert lower_is_better(metric, read["metric_directions"])
    assert not lower_is_better(metric)
    assert headline_metrics(RunSummary.of(read)) == ["test/error_rate"]


@pytest.mark.parametrize("missing", ["LOWER_IS_BETTER", "HEADLINES"])
def test_a_family_that_does_not_say_it_is_refused(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    statement = "\n".join(line for line in STATEMENT.splitlines() if not line.startswith(missing))
    plant(FAMILY.format(statement=statement), tmp_path / "plug-ins", monkeypatch)
    with pytest.raises(PluginError, match=f"'errors' has no {missing}"):
        run(make_config("federated"), tmp_path / "run")


@pytest.mark.parametrize(
    ("metric", "low"),
    [
        ("val/error_rate", True),
        ("test/error_rate_by_client", True),
        ("val/client_error_rate_weighted_p10", True),
        ("val/stratum_play_error_rate_mean", True),
        ("val/stratum_play_error_rate_p90", True),
        ("val/client_hits_weighted_sd", True),
        ("val/sd", True),
        ("train/step_loss", True),
        ("local/val_loss", True),
        ("val/hits", False),
        ("val/client_hits_p10", False),
        ("val/stratum_error_rate_hits_mean", False),
        # A class of the data may have any name.
        ("val/ap_hair_loss", False),
        ("error_rate/hits", False),
    ],
)
def test_derived_names_follow_by_rule(metric: str, low: bool) -> None:
    directions = MetricDirections(frozenset({"error_rate"}), ())
    assert directions.lower_is_better(metric) == low


def test_summaries_of_before_go_by_what_all_families_say() -> None:
    def headlines(**metrics: float) -> list[str]:
        named = {"name": "row", "setting": "central", "variant": "digits", "seed": 0}
        old = {name.replace("__", "/"): value for name, value in metrics.items()}
        return headline_metrics(RunSummary.of({**named, "metrics": old, "expected": []}))

    assert headlines(val__accuracy=0.5, test__perplexity=9.0, test__c_ap=0.1) == ["test/c_ap"]
    assert headlines(test__loss=1.0) == ["test/loss"]
    own = headlines(test__accuracy=1.0, test__personal_accuracy=0.9)
    assert own == ["test/personal_accuracy"]
    assert headlines() == []
    assert lower_is_better("test/perplexity", None)
    assert not lower_is_better("test/accuracy", None)


def test_every_family_states_it() -> None:
    for name in plugins.available(plugins.METRIC):
        assert isinstance(MetricDirections.of([name]), MetricDirections)


def test_spreads_over_clients_and_strata_are_known_by_the_name() -> None:
    spreads = (
        "test/client_accuracy_p10",
        "test/personal_client_loss_sd",
        "val/stratum_play_loss_p50",
    )
    assert all(map(is_spread, spreads))
    assert not any(map(is_spread, ("test/accuracy", "val/personal_loss", "val/loss_by_client")))
    # The spread of what clients' own models give has its own names.
    keys = box_keys("test/personal_accuracy")
    assert keys[0] == "test/personal_client_accuracy_p10"
    assert keys[-1] == "test/personal_accuracy_by_client"
