"""Where the time goes: phases, their own time, the trace, and what a run warns of."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from pfl_bench import profiling
from pfl_bench.cli.main import main
from pfl_bench.profiling import TRACED_ROUNDS, Overhead, Profile, phase, timed


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that pass only when a test says so."""
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return now


def test_without_a_profile_nothing_is_kept() -> None:
    assert phase("training") is phase("noise")
    assert list(timed("training", iter([1, 2]))) == [1, 2]


def test_a_phase_has_its_own_time_and_what_is_inside_has_its(
    clock: list[float], tmp_path: Path
) -> None:
    with Profile() as profile:
        clock[0] += 1.0
        profile.begin_step(1)
        with phase("training"):
            clock[0] += 2.0
            with phase("decoding"):
                clock[0] += 3.0
                with phase("reading"):
                    clock[0] += 4.0
            clock[0] += 0.5
        clock[0] += 0.25
        table = profile.write(tmp_path)
    rows = json.loads((tmp_path / "profile.json").read_text(encoding="utf-8"))["rounds"]
    assert rows[0] == {"round": 0, "total": 1.0, "starting": 1.0}
    assert rows[1] == {
        "round": 1,
        "total": 9.75,
        "training": 2.5,
        "decoding": 3.0,
        "reading": 4.0,
        "other": 0.25,
    }
    assert table.splitlines()[1].split() == ["reading", "4.000", "37.2%"]


def test_what_threads_do_ahead_is_not_the_rounds_time(clock: list[float], tmp_path: Path) -> None:
    def read() -> None:
        with phase("reading"):
            clock[0] += 5.0

    with Profile() as profile:
        profile.begin_step(1)
        thread = threading.Thread(target=read)
        thread.start()
        thread.join()
        profile.write(tmp_path)
    row = json.loads((tmp_path / "profile.json").read_text(encoding="utf-8"))["rounds"][1]
    assert row["reading, ahead"] == 5.0
    assert row["other"] == row["total"] == 5.0


def test_an_iterator_is_measured_item_by_item_and_its_use_is_not(
    clock: list[float], tmp_path: Path
) -> None:
    def work() -> object:
        for _ in range(3):
            clock[0] += 2.0
            yield None
        clock[0] += 1.0

    with Profile() as profile:
        profile.begin_step(1)
        for _ in timed("local training", iter(work())):
            clock[0] += 10.0
        profile.write(tmp_path)
    row = json.loads((tmp_path / "profile.json").read_text(encoding="utf-8"))["rounds"][1]
    assert row["local training"] == 7.0
    assert row["other"] == 30.0


def test_the_trace_has_the_first_rounds_as_a_viewer_wants_them(tmp_path: Path) -> None:
    with Profile() as profile:
        for index in range(1, TRACED_ROUNDS + 5):
            profile.begin_step(index)
            with phase("noise"):
                pass
        profile.write(tmp_path)
    trace = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    assert {event["ph"] for event in trace} == {"X"}
    assert sum(event["name"] == "noise" for event in trace) == TRACED_ROUNDS
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in trace)


def test_evaluation_that_takes_much_is_warned_of_with_the_setting(clock: list[float]) -> None:
    overhead = Overhead(
        {"evaluation": ("evaluation.every", 5), "checkpoint": ("checkpoint.every", 50)}
    )

    def evaluate() -> int:
        clock[0] += 30.0
        return 7

    assert overhead.run("evaluation", evaluate) == 7
    assert overhead.warnings(1000.0) == []
    (text,) = overhead.warnings(100.0)
    assert text == (
        "evaluation took 30% of this run's 100 s; it is below 10% with evaluation.every=15 "
        "(now 5), where fewer will do"
    )


def test_a_run_writes_its_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    row = "demo/private_federated.yaml"
    assert main(["run", row, "federated.num_rounds=2", "--out", str(out), "--profile"]) == 0
    seconds = json.loads((out / "profile.json").read_text(encoding="utf-8"))["seconds"]
    wanted = {"sampling", "decoding", "local training", "clipping", "aggregation", "noise"}
    assert wanted | {"ledger", "evaluation", "logging", "checkpoint"} <= set(seconds)
    parts = sum(value for name, value in seconds.items() if name != "total")
    assert parts == pytest.approx(seconds["total"])
    assert "local training" in capsys.readouterr().err
    assert profiling._active is None
