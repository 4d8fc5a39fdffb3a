"""Trackers beside a real run: read back by their own readers, and never in its way."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import pfl_bench
from pfl_bench.config.logging import LoggingOptions, MlflowOptions, TensorboardOptions
from pfl_bench.files import read_metrics
from pfl_bench.runs.trackers import Trackers, tracked_of
from pfl_bench.runs.trackers.tracker import Tracked, Tracker, flatten, markdown
from pfl_bench.types import ConfigError
from tests.helpers import make_config

SHORT: dict[str, Any] = {"federated__num_rounds": 2, "federated__engine": "sequential"}
LINES = [{"metric": "test/a", "published": 0.5, "measured": math.nan, "source": "a|b"}]


def tracked(folder: Path, done: int = 0) -> Tracked:
    config = {"name": "row", "federated": {"num_rounds": 3, "none": None}}
    labels = ("flair/table1", "flair", "private_federated")
    return Tracked(folder, "row", config, "flair/table1", "private", labels, done)


def fill(tracker: Tracker, first: int, last: int) -> None:
    for index in range(first, last + 1):
        tracker.log({"train/loss": 1 / index, "privacy/clip_norm": math.inf, "val/x,y": 0.5}, index)
    statement = {"unit": "user", "actual": {"epsilon": 4.5}}
    tracker.conclude(statement, {"name": "row", "measured": [0.5, "nan"]}, LINES)


def test_tensorboard_s_reader_finds_each_round_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from pfl_bench.runs.trackers.tensorboard import TensorboardTracker

    killed = TensorboardTracker(TensorboardOptions(enabled=True), tracked(tmp_path), pytest.fail)
    for index in (1, 2, 3):
        killed.log({"train/loss": 9.0}, index)
    killed.finish()
    # Resumed after the checkpoint of round 1.
    again = TensorboardTracker(
        TensorboardOptions(enabled=True), tracked(tmp_path, done=1), pytest.fail
    )
    fill(again, 2, 3)
    said = again.finish()
    assert said.endswith(f"tensorboard --logdir {tmp_path / 'tensorboard'}")
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("train/loss")] == [
        (1, 9.0), (2, 0.5), (3, pytest.approx(1 / 3))
    ]  # fmt: skip
    assert [e.value for e in events.Scalars("privacy/clip_norm")] == [math.inf, math.inf]
    assert [e.value for e in events.Scalars("statement/actual/epsilon")] == [4.5]
    assert math.isnan(events.Scalars("row/measured/1")[0].value)
    tags = events.Tags()["tensors"]
    assert {"configuration/text_summary", "labels/text_summary", "table/text_summary"} <= set(tags)
    text = events.Tensors("table/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "| test/a | 0.5 | nan | a/b |" in text
    text = events.Tensors("labels/text_summary")[0].tensor_proto.string_val[0].decode()
    assert text == "flair/table1, flair, private_federated"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_mlflow_s_client_finds_the_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed")
    pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed")
    from pfl_bench.runs.trackers.mlflow import MlflowTracker

    first = MlflowTracker(MlflowOptions(enabled=True), tracked(tmp_path), pytest.fail)
    first.log({"train/loss": 1.0}, 1)
    again = MlflowTracker(MlflowOptions(enabled=True), tracked(tmp_path, done=1), pytest.fail)
    fill(again, 2, 3)
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    assert again.finish().endswith(uri)
    assert capfd.readouterr() == ("", "")
    client = mlflow.MlflowClient(tracking_uri=uri, registry_uri=uri)
    experiment = client.get_experiment_by_name("pfl-bench")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.status, run.info.run_name) == ("FINISHED", "row")
    assert run.data.params == {"name": "row", "federated/num_rounds": "3"}
    found = {k: run.data.tags[k] for k in ("table", "task", "setting", "row", "statement/unit")}
    assert found == {
        "table": "flair/table1", "task": "flair", "setting": "private_federated",
        "row": "private", "statement/unit": "user",
    }  # fmt: skip
    assert "| test/a | 0.5 | nan | a/b |" in run.data.tags["mlflow.note.content"]
    losses = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(m.step, m.value) for m in losses] == [(1, 1.0), (2, 0.5), (3, pytest.approx(1 / 3))]
    assert run.data.metrics["statement/actual/epsilon"] == 4.5
    assert run.data.metrics["val/x_y"] == 0.5
    assert math.isnan(run.data.metrics["row/measured/1"])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mlflow.db", "mlflow.json"]


def test_a_server_of_mlflow_that_is_not_there_costs_seconds_and_one_notice(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="MLflow is not installed")
    logging = {"mlflow": {"enabled": True, "uri": "http://127.0.0.1:9"}}
    notices: list[str] = []
    options = LoggingOptions.model_validate(logging)
    Trackers.start(options, tracked(tmp_path), notices.append)
    assert len(notices) == 1
    assert notices[0].startswith("MLflow logging is off for this run: ")


def test_a_run_logs_the_lines_of_its_folder(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    row = make_config("private_federated", **SHORT, logging__tensorboard__enabled=True)
    result = pfl_bench.run_row(row, tmp_path)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    for name in ("privacy/clip_norm", "train/loss", "val/accuracy"):
        ours = {line["round"]: line[name] for line in result.history if name in line}
        theirs = {e.step: e.value for e in events.Scalars(name)}
        assert theirs == pytest.approx(ours, rel=1e-6)
        assert theirs
    (epsilon,) = events.Scalars("statement/actual/epsilon")
    assert result.statement is not None
    assert epsilon.value == pytest.approx(result.statement.actual.epsilon, rel=1e-6)
    assert "tensorboard --logdir" in (tmp_path / "run.log").read_text()


class Failing:
    """A tracker whose server goes away in round 2, and does not come back for the end."""

    title = "Failing"
    after_failure = "; look there"

    def __init__(self) -> None:
        self.calls = 0

    def log(self, metrics: Mapping[str, Any], round: int) -> None:
        self.calls += 1
        if round == 2:
            raise ConnectionError("the server\nis gone")

    def conclude(self, *ending: Any) -> None:
        raise AssertionError("told of the end after its failure")

    def finish(self) -> None:
        raise BrokenPipeError


def test_a_tracker_that_fails_is_left_out_and_said_once(tmp_path: Path) -> None:
    notices: list[str] = []
    failing, others = Failing(), Failing()
    trackers = Trackers([failing], notices.append)
    for index in (1, 2, 3):
        trackers.log({}, index)
    assert failing.calls == 2
    trackers.conclude({}, {}, LINES)
    assert notices == [
        "Failing logging stopped (ConnectionError: the server is gone); the run goes on; look there"
    ]
    # The end of one is not in the way of another's.
    trackers = Trackers([others], notices.append)
    trackers.finish()
    trackers.finish()
    assert len(notices) == 2
    assert "BrokenPipeError" in notices[1]


def test_what_is_not_installed_is_said_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("wandb", "mlflow", "tensorboard", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, "pfl_bench.runs.trackers.tensorboard", raising=False)
    logging = {
        "wandb": {"mode": "offline"},
        "tensorboard": {"enabled": True},
        "mlflow": {"enabled": True},
    }
    row = make_config("federated", **SHORT, logging=logging)
    result = pfl_bench.run_row(row, tmp_path)
    assert len(result.history) == len(read_metrics(tmp_path / "metrics.jsonl")) == 2
    log = (tmp_path / "run.log").read_text()
    for extra in logging:
        assert log.count(f"pip install 'pfl-bench[{extra}]'") == 1
    sys.modules.pop("pfl_bench.runs.trackers.tensorboard", None)


def test_a_row_s_labels_are_its_table_task_and_setting() -> None:
    of_ours = tracked_of(pfl_bench.load_row("demo/private_federated.yaml"), Path("run"), 0)
    assert (of_ours.table, of_ours.row) == ("demo", "private_federated")
    assert of_ours.labels == ("demo", "digits", "private_federated")


def test_nothing_is_imported_for_what_is_not_asked_for(tmp_path: Path) -> None:
    assert LoggingOptions().tensorboard.enabled is LoggingOptions().mlflow.enabled is False
    trackers = Trackers.start(LoggingOptions(), tracked(tmp_path), pytest.fail)
    assert trackers._active == []


@pytest.mark.parametrize(
    "wrong", [{"tensorboard": {"enable": True}}, {"mlflow": {"uri": ""}}, {"mlflw": {}}]
)
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="logging"):
        make_config("federated", logging=wrong)


def test_values_are_flattened_and_tables_written() -> None:
    assert flatten({"a": {"b": [1, "inf"], "c": None}}, "") == {"a/b/0": 1, "a/b/1": math.inf}
    assert markdown(LINES).splitlines()[0] == "| metric | published | measured | source |"
