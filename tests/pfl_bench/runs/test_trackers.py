"""Trackers beside a real run: read back by their own readers, and never in its way."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import pfl_bench
from pfl_bench import plugins
from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.config.sections import LoggingOptions, MlflowOptions, TensorboardOptions
from pfl_bench.config.yaml_text import read_yaml
from pfl_bench.files import read_metrics
from pfl_bench.runs.events import RELEASED
from pfl_bench.runs.tracker import Tracked, Tracker, flatten, markdown
from pfl_bench.runs.trackers import Trackers, tracked_of
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
    notices: list[str] = []
    options = MlflowOptions(enabled=True, uri="http://127.0.0.1:9")
    Trackers.start({"mlflow": options}, tracked(tmp_path), notices.append)
    assert len(notices) == 1
    assert notices[0].startswith("the tracker 'mlflow' is off for this run: ")


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


class Failing(Tracker):
    """A tracker whose server goes away in round 2, and does not come back for the end."""

    after_failure = "; look there"

    def __init__(self) -> None:
        self.calls = 0

    def log(self, metrics: dict[str, Any], round: int) -> None:
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
    trackers = Trackers({"failing": failing}, notices.append)
    for index in (1, 2, 3):
        trackers.log({}, index)
    assert failing.calls == 2
    trackers.conclude({}, {}, LINES)
    assert notices == [
        "the tracker 'failing' stopped (ConnectionError: the server is gone); the run goes on; "
        "look there"
    ]
    # The end of one is not in the way of another's.
    trackers = Trackers({"others": others}, notices.append)
    trackers.finish()
    trackers.finish()
    assert len(notices) == 2
    assert "BrokenPipeError" in notices[1]


class TurnsOff(Tracker):
    def log(self, metrics: Any, round: int) -> None:
        torch.set_grad_enabled(False)


def test_gradients_that_a_tracker_turns_off_are_on_again_for_the_next_round() -> None:
    try:
        Trackers({"turns_off": TurnsOff()}, print).log({}, 1)
        assert torch.is_grad_enabled()
    finally:
        torch.set_grad_enabled(True)


class Asked(Tracker):
    def log(self, metrics: Any, round: int) -> None:
        os.kill(os.getpid(), signal.SIGUSR1)


class Handler:
    def end(self, number: int, frame: Any) -> None:
        sys.exit(128 + number)


@pytest.mark.parametrize("handler", [Handler().end, lambda number, frame: sys.exit(128 + number)])
def test_a_process_that_is_told_to_end_while_a_tracker_logs_ends(handler: Any) -> None:
    notices: list[str] = []
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(SystemExit) as raised:
            Trackers({"asked": Asked()}, notices.append).log({}, 1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert (raised.value.code, notices) == (128 + signal.SIGUSR1, [])


def test_what_is_not_installed_is_said_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("wandb", "mlflow", "tensorboard", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, module, None)
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


def test_a_row_s_labels_are_its_table_task_and_setting() -> None:
    of_ours = tracked_of(pfl_bench.load_row("demo/private_federated.yaml"), Path("run"), 0)
    assert of_ours.name == "demo-private-federated, seed 0"
    assert (of_ours.table, of_ours.row) == ("demo", "private_federated")
    assert of_ours.labels == ("demo", "digits", "private_federated")


def test_nothing_is_imported_for_what_is_not_asked_for(tmp_path: Path) -> None:
    assert LoggingOptions().tensorboard.enabled is LoggingOptions().mlflow.enabled is False
    options = make_config("federated").tracker_options
    assert list(options) == ["wandb", "tensorboard", "mlflow"]
    assert Trackers.start(options, tracked(tmp_path), pytest.fail)._active == {}


@pytest.mark.parametrize(
    "wrong", [{"tensorboard": {"enable": True}}, {"mlflow": {"uri": ""}}, {"mlflw": {}}]
)
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="logging"):
        make_config("federated", logging=wrong)


def test_values_are_flattened_and_tables_written() -> None:
    assert flatten({"a": {"b": [1, "inf"], "c": None}}, "") == {"a/b/0": 1, "a/b/1": math.inf}
    assert markdown(LINES).splitlines()[0] == "| metric | published | measured | source |"


KEEPS = '''
"""Keeps what it is told."""
import json
from pydantic import BaseModel, ConfigDict
from pfl_bench.runs.tracker import Tracker

class Options(BaseModel):
    """Options."""
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    fail: str = ""
    stop: int = 0

class Keeps(Tracker):
    """Keeps what it is told."""
    def __init__(self, options, run):
        self.options, self.run, self.path = options, run, run.folder / "kept.jsonl"
        self.call("build", done=run.done)

    def call(self, hook, **more):
        sums = {name: float(t.double().sum()) for name, t in self.run.model().items()}
        with self.path.open("a") as file:
            file.write(json.dumps({"hook": hook, "model": sums, **more}) + "\\n")
        if hook == self.options.fail:
            raise SystemExit(3) if hook == "log" else KeyError("no")

    def log(self, metrics, round):
        self.call("log", round=round, metrics=metrics)
        metrics.clear()
        self.run.config.clear()
        if round == self.options.stop:
            raise KeyboardInterrupt

    def conclude(self, statement, row, table):
        self.call("conclude", row=row, table=table)
        row.clear()

def build(options, tracked, notice):
    """Build."""
    return Keeps(options, tracked)
'''


@pytest.fixture
def keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's folder with the tracker "keeps"."""
    monkeypatch.setattr(plugins, "__path__", [])
    monkeypatch.setenv(plugins.FOLDERS, "")
    (tmp_path / "mine" / "trackers").mkdir(parents=True)
    (tmp_path / "mine" / "trackers" / "keeps.py").write_text(KEEPS)
    yield tmp_path / "mine"
    sys.modules.pop("pfl_bench.plugins.trackers.keeps", None)


def kept(folder: Path, hook: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "kept.jsonl").read_text().splitlines()]
    return [line for line in lines if line["hook"] == hook]


def row_of(setting: str, folder: Path, **changes: Any) -> ResolvedConfig:
    options = {"keeps": changes.pop("options", {})}
    changes = {"federated__num_rounds": 4, "evaluation__every": 2, **changes}
    return make_config(setting, plugins=[str(folder)], logging=options, **changes)


def sums_of(state: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value.double().sum()) for name, value in state.items()}


def test_a_user_s_tracker_is_told_of_each_round_and_shown_the_model(
    keeps: Path, tmp_path: Path
) -> None:
    result = pfl_bench.run_row(row_of("federated", keeps), tmp_path / "run")
    rounds = kept(tmp_path / "run", "log")
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [{"round": one["round"], **one["metrics"]} for one in rounds] == lines
    plain = make_config("federated", federated__num_rounds=4, evaluation__every=2)
    ends = list(pfl_bench.FederatedTrainer(plain, tmp_path / "plain"))
    assert [one["model"] for one in rounds] == [sums_of(end.model) for end in ends]
    (end,) = kept(tmp_path / "run", "conclude")
    assert end["model"] == rounds[-1]["model"] == sums_of(result.state_dict())
    assert end["row"]["test/accuracy"] == result.metrics["test/accuracy"]
    recorded = read_yaml(tmp_path / "run" / "config.yaml")["logging"]
    assert list(recorded) == ["wandb", "tensorboard", "mlflow", "keeps"]


@pytest.mark.parametrize("split_by", ["user", "example"])
def test_of_a_private_run_a_user_s_tracker_is_given_releases_alone(
    split_by: str, keeps: Path, tmp_path: Path
) -> None:
    number = {"value": 0.5, "tolerance": 0.1, "source": "nobody"}
    changes: dict[str, Any] = {
        "evaluation__splits": ["train", "val"],
        "evaluation__final_splits": ["train", "test"],
        "expected": [{"metric": f"{split}/accuracy", **number} for split in ("train", "test")],
    }
    if split_by == "example":
        changes["task"] = {"name": "synthetic", "num_tasks": 20, "split_by": "example"}
        changes |= {"federated__cohort_size": 5, "privacy__population_size": 20}
        changes["privacy__noise_cohort_size"] = 20
    pfl_bench.run_row(row_of("private_federated", keeps, **changes), tmp_path / "run")
    (end,) = kept(tmp_path / "run", "conclude")
    given = {name for one in kept(tmp_path / "run", "log") for name in one["metrics"]}
    assert "train/update_norm" in given
    seen = [
        sorted({name.partition("/")[0] for name in names})
        for names in (given - RELEASED, end["row"])
    ]
    is_user = split_by == "user"
    assert seen == [["val"] * is_user, ["name", "setting", *["test"] * is_user]]
    assert [line["metric"] for line in end["table"]] == ["test/accuracy"] * is_user


@pytest.mark.parametrize("hook", ["build", "log", "conclude"])
def test_a_user_s_tracker_that_raises_loses_no_round(
    hook: str, keeps: Path, tmp_path: Path
) -> None:
    row = row_of("federated", keeps, options={"fail": hook})
    result = pfl_bench.run_row(row, tmp_path / "run")
    assert len(result.history) == 4
    assert len(kept(tmp_path / "run", hook)) == 1
    log = (tmp_path / "run" / "run.log").read_text()
    assert log.count("the tracker 'keeps' ") == 1
    assert "SystemExit: 3" if hook == "log" else "KeyError: 'no'" in log


def test_a_resumed_run_does_not_tell_of_what_lies_behind_it(keeps: Path, tmp_path: Path) -> None:
    row = row_of("federated", keeps, checkpoint__every=2, options={"stop": 3})
    with pytest.raises(KeyboardInterrupt):
        pfl_bench.run_row(row, tmp_path / "run")
    again = row_of("federated", keeps, checkpoint__every=2)
    pfl_bench.run_row(again, tmp_path / "run", resume=True)
    assert [one["round"] for one in kept(tmp_path / "run", "log")] == [1, 2, 3, 3, 4]
    assert [one["done"] for one in kept(tmp_path / "run", "build")] == [0, 2]
    pfl_bench.run_row(again, tmp_path / "run", resume=True)
    assert len(kept(tmp_path / "run", "log")) == 5


def test_no_model_is_shown_between_calls_and_none_where_clients_have_their_own(
    keeps: Path, tmp_path: Path
) -> None:
    row = pfl_bench.load_row("leaf/quick/local.yaml", plugins=[keeps], logging={"keeps": {}})
    pfl_bench.run_row(row, tmp_path / "run")
    assert {str(one["model"]) for one in kept(tmp_path / "run", "log")} == {"{}"}
    options = row_of("federated", keeps).tracker_options
    trackers = Trackers.start(options, tracked(tmp_path), pytest.fail)
    with pytest.raises(RuntimeError, match="alone"):
        trackers._active["keeps"].run.model()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("logging", "words"),
    [
        ({"keps": {}}, "did you mean 'keeps'"),
        ({"keeps": {"fial": "log"}}, "logging.keeps.fial: unknown key; did you mean 'fail'"),
        ({"keeps": None}, "logging.keeps: must be a section"),
    ],
)
def test_a_wrong_section_of_a_user_s_tracker_is_refused(
    logging: dict[str, Any], words: str, keeps: Path
) -> None:
    with pytest.raises(ConfigError, match=words):
        make_config("federated", plugins=[str(keeps)], logging=logging)
