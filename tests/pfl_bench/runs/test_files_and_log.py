from __future__ import annotations

import io
import json
import math
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from pfl_bench.client.flat_model import FlatModel
from pfl_bench.files import (
    parse_json,
    read_json,
    read_metrics,
    write_atomically,
    write_json,
)
from pfl_bench.metrics import MetricDirections
from pfl_bench.runs.best_model import BestModel
from pfl_bench.runs.checkpoint import _digest, load, load_latest, restoring, save_checkpoint
from pfl_bench.runs.log import Notices, RunLog, headline_of, saying_once
from pfl_bench.runs.published import best_over_rounds
from pfl_bench.types import RunFolderError


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_failed_write_keeps_the_old_content_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file.json"
    write_atomically(path, "old")

    def refuse(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(OSError, match="No space") as caught:
        write_atomically(path, "new")
    # What the user named, and not the file beside it.
    assert str(caught.value) == f"[Errno 28] No space left on device: '{path}'"
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file.json"]


def test_a_checkpoint_on_a_full_disk_keeps_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint(tmp_path, 1, {"value": torch.zeros(1000)}, keep=2)

    class Full(io.FileIO):
        def write(self, content: object) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "open", lambda path, mode: Full(path, mode))
    with pytest.raises(OSError, match="No space"):
        save_checkpoint(tmp_path, 2, {"value": torch.ones(1000)}, keep=2)
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001.pt"]


def test_json_has_no_bare_infinity(tmp_path: Path) -> None:
    values = {"a": math.inf, "b": [-math.inf, {"c": math.nan}], "d": 1.5}
    write_json(tmp_path / "x.json", values)
    assert read_json(tmp_path / "x.json") == {"a": "inf", "b": ["-inf", {"c": "nan"}], "d": 1.5}
    assert read_json(tmp_path / "none.json") is None


@pytest.mark.parametrize("content", ["{", "[1]", '"text"'])
def test_damaged_json_is_named(content: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(RunFolderError, match=r"x\.json"):
        read_json(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 100_000, "nested"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "nested"),
        ('{"a": ' + "[" * 60 + "]" * 60 + "}", "nested"),
        ('{"a": ' + "9" * 5000 + "}", "digits"),
        ('{"a": ' + "9" * 400 + "}", "too large"),
        ('{"a": NaN}', "NaN is no JSON number"),
        ('{"a": 1e999}', "too large"),
        (r'{"a": "\ud800"}', "surrogates"),
        (r'{"a": "\u0000"}', "NUL"),
        (r'{"\u0000": 1}', "NUL"),
    ],
)
def test_json_that_later_code_could_not_bear_is_refused(
    text: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=words):
        parse_json(text)
    path = tmp_path / "metrics.jsonl"
    path.write_text(text + "\n")
    for read in (read_json, read_metrics):
        with pytest.raises(RunFolderError, match=words):
            read(path)


def test_brackets_in_strings_are_no_depth() -> None:
    value = {"a": ["[{" * 100, '\\"[' * 100, {"b": [[]] * 60}]}
    assert parse_json(json.dumps(value)) == value


def test_pipes_and_devices_are_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(RunFolderError, match="no regular file"):
            read_json(path)
        with pytest.raises(RunFolderError, match="no regular file"):
            load(path)
    with pytest.raises(FileExistsError, match="no regular file"):
        write_atomically(tmp_path / "pipe", "text")


def test_without_a_terminal_lines_come_when_there_is_news(tmp_path: Path) -> None:
    stream = io.StringIO()
    with RunLog(tmp_path, "row", total=3, done=0, stream=stream) as log:
        log.metrics(1, {"train/loss": 1.0}, "")
        assert len(read_metrics(tmp_path / "metrics.jsonl")) == 1  # before a kill
        log.metrics(2, {"train/loss": math.nan}, "val/accuracy 0.5")
        log.notice("something happened")
    assert stream.getvalue() == "row: 2/3 val/accuracy 0.5\nrow: something happened\n"
    assert (tmp_path / "run.log").read_text() == "something happened\n"
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert rows == [{"round": 1, "train/loss": 1.0}, {"round": 2, "train/loss": "nan"}]


def test_without_news_a_line_comes_after_ten_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, times = io.StringIO(), iter([0.0, 9.0, 11.0, 11.0, 20.0])
    monkeypatch.setattr("pfl_bench.runs.log.time", SimpleNamespace(monotonic=times.__next__))
    with RunLog(tmp_path, "row", total=3, done=0, stream=stream) as log:
        for step in (1, 2, 3):
            log.metrics(step, {}, "")
    assert stream.getvalue() == "row: 2/3\n"


def test_the_line_of_a_round_has_the_loss_and_what_speaks_for_the_run() -> None:
    scalars = {"train/loss": 1.0, "val/accuracy": 0.5, "val/loss": 2.0, "train/num_steps": 3.0}
    assert headline_of(scalars, ("accuracy",)) == "train/loss 1.0000  val/accuracy 0.5000"


def test_notices_wait_for_their_log() -> None:
    notices, said = Notices(), list[str]()
    for text in ("a", "b"):
        notices.add(text)
    notices.send_to(said.append)
    notices.add("c")
    assert said == ["a", "b", "c"]


def test_with_a_terminal_there_is_a_bar(tmp_path: Path) -> None:
    stream = Terminal()
    with RunLog(tmp_path, "row", total=2, done=0, stream=stream) as log:
        log.metrics(1, {"train/loss": 1.0}, "val/accuracy 0.5")
        log.notice("something [bold]happened[/bold]")
        log.metrics(2, {"train/loss": 1.0}, "val/accuracy 0.7")
    shown = stream.getvalue()
    assert "2/2" in shown
    assert "at 2  val/accuracy 0.7" in shown
    assert "something [bold]happened[/bold]" in shown


def test_a_narrow_terminal_has_the_bar_first_and_keeps_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    stream = Terminal()
    title = "a-row-whose-name-is-longer-than-a-terminal-can-show-beside-its-bar"
    tail = "epsilon (simulated) 3.78  epsilon (actual) 4.66"
    first, last = (f"train/loss {i}.2345  val/accuracy 0.{i}896  {tail}" for i in (1, 2))
    with RunLog(tmp_path, title, total=20, done=0, stream=stream) as log:
        log.metrics(5, {}, first)
        log.metrics(20, {}, last)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue()).replace("\r", "\n")
    lines = [line.rstrip() for line in shown.splitlines()]
    assert max(map(len, lines)) <= 80
    # Two lines stay: the bar with the time left, and the last metrics as far as they fit.
    assert re.fullmatch(r"a-row-whose-\S*… 20/20 ━+ 0:00:00", lines[-2])
    assert lines[-1] == f"val/accuracy 0.2896  {tail}"
    # What they replaced has scrolled away in full, not broken within a number.
    (kept,) = [i for i, line in enumerate(lines) if line.startswith("5  train/loss")]
    assert " ".join(lines[kept : kept + 2]).split() == ["5", *first.split()]
    assert lines[kept].endswith("epsilon (simulated) 3.78")
    assert lines[kept + 1].startswith("    epsilon (actual)")


def test_what_several_runs_say_alike_is_shown_once(tmp_path: Path) -> None:
    stream = io.StringIO()
    with saying_once():
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            with RunLog(tmp_path / name, name, total=2, done=0, stream=stream) as log:
                log.notice("engine: auto picked one")
                log.notice(f"about {name}")
    with RunLog(tmp_path / "a", "a", total=2, done=0, stream=stream) as log:
        log.notice("engine: auto picked one")
    said = ["a: engine: auto picked one", "a: about a", "b: about b", "a: engine: auto picked one"]
    assert stream.getvalue().splitlines() == said
    # Each run's own log has it all.
    assert (tmp_path / "b" / "run.log").read_text() == "engine: auto picked one\nabout b\n"


def test_a_resumed_log_drops_later_rounds_and_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps({"round": index}) for index in range(1, 6)]
    path.write_text("\n".join(lines) + '\n{"round": 6, "tr', encoding="utf-8")
    RunLog(tmp_path, "row", total=6, done=3, stream=io.StringIO()).__exit__()
    assert [row["round"] for row in read_metrics(path)] == [1, 2, 3]


def test_a_damaged_line_in_the_middle_is_an_error_not_a_shorter_log(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"round": 1}\n{"rou\n{"round": 3}\n', encoding="utf-8")
    with pytest.raises(RunFolderError, match="line 2"):
        read_metrics(path)


def test_checkpoints_are_kept_newest_first_and_foreign_files_are_left(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine", encoding="utf-8")
    for step in (2, 4, 6, 10):
        save_checkpoint(folder, step, {"value": step}, keep=2)
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["notes.txt", "step-00000006.pt", "step-00000010.pt"]
    latest = load_latest(folder)
    assert latest is not None
    assert (latest["step"], latest["value"]) == (10, 10)
    assert load_latest(tmp_path / "none") is None


def test_a_checkpoint_under_the_name_of_another_step_is_refused(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 2, {"value": 2}, keep=1).rename(tmp_path / "step-00000003.pt")
    with pytest.raises(RunFolderError, match=r"step-00000003.pt: holds step 2;"):
        load_latest(tmp_path)


def test_one_central_parameter_that_is_not_finite_is_refused() -> None:
    fresh = {"trainer": {"central": torch.ones(2)}}
    state = {"trainer": {"central": torch.tensor([1.0, math.nan])}}
    with (
        pytest.raises(RunFolderError, match="central parameters are not finite"),
        restoring(Path("step-00000001.pt"), state, fresh),
    ):
        pass


def test_the_digest_of_a_state_is_of_types_and_shapes_too() -> None:
    zeros = [torch.zeros(2, 3), torch.zeros(3, 2), torch.zeros(2, 3, dtype=torch.int32)]
    assert len({_digest({"a": value}) for value in zeros}) == 3


def test_the_kept_model_comes_back_with_its_buffers() -> None:
    model = FlatModel(nn.BatchNorm1d(2), torch.device("cpu"))
    best = BestModel("val/loss", model, MetricDirections(frozenset({"loss"}), ()))
    wanted = {name: value.clone() for name, value in model.module.state_dict().items()}
    best.look(1, {"val/loss": 0.5})
    for value in model.module.state_dict().values():
        value += 1
    best.load()
    found = model.module.state_dict()
    assert all(torch.equal(found[name], value) for name, value in wanted.items())


def test_the_first_of_equal_models_is_kept_and_nan_never_is() -> None:
    model: Any = SimpleNamespace(vector=torch.zeros(1), buffers=dict)
    directions = MetricDirections(frozenset({"loss"}), ())
    best = BestModel("val/loss", model, directions)
    losses = (math.nan, 0.5, math.nan, 0.5, 0.75)
    for index, loss in enumerate(losses, start=1):
        best.look(index, {"val/loss": loss})
    assert best.to_json_dict() == {"metric": "val/loss", "value": 0.5, "index": 2}
    lines = [{"round": index, "val/loss": loss} for index, loss in enumerate(losses, start=1)]
    found = best_over_rounds(lines, ["val"], directions)
    assert found == {"val/loss": {"value": 0.5, "round": 2}}
