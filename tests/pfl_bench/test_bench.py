"""The benchmarks' machinery: sides agree or are refused, others' processes answer, pages add up."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

from tests import warm
from tests.helpers import REPOSITORY


@pytest.fixture(scope="module")
def bench() -> Iterator[SimpleNamespace]:
    """The benchmarks' modules, which are found beside scripts/bench.py."""
    scripts = str(REPOSITORY / "scripts")
    sys.path.insert(0, scripts)
    try:
        names = "common defaults femnist local_training options page remote scale sides workload"
        yield SimpleNamespace(
            **{name: importlib.import_module(f"benchmarks.{name}") for name in names.split()}
        )
    finally:
        sys.path.remove(scripts)


@pytest.fixture(scope="module")
def store(bench: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("bench") / "generated.h5"
    bench.femnist.make_store(path, num_users=12, mean_examples=25)
    return path


def _load(bench: SimpleNamespace) -> Any:
    return bench.workload.Workload("femnist", "softmax", 4, 10, 0.1)


def _options(bench: SimpleNamespace) -> Any:
    return bench.options.Options(repeats=2, peers=())


@pytest.mark.parametrize("private", [False, True])
def test_both_engines_and_the_bare_loop_take_the_same_first_step(
    bench: SimpleNamespace, store: Path, tmp_path: Path, private: bool
) -> None:
    found = bench.sides.measure(
        store, _load(bench), private, _options(bench), tmp_path / "measured"
    )
    sides = ["pfl-bench, sequential", "pfl-bench, vectorized", "bare"]
    assert list(found["sides"]) == sides
    for side in sides:
        assert found["agreement"][side]["step_difference"] < 1e-5
        assert len(found["sides"][side]["seconds"]) == 2
    assert found["private"] is private
    assert len(found["steps"]) == 2
    assert all(steps > 0 for steps in found["steps"])


def test_a_side_that_computes_something_else_is_refused(
    bench: SimpleNamespace, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = bench.local_training.Material.train

    def twice(self: Any, module: Any, user: int, index: int) -> None:
        train(self, module, user, index)
        train(self, module, user, index)

    monkeypatch.setattr(bench.local_training.Material, "train", twice)
    with pytest.raises(SystemExit, match="computed something else"):
        bench.sides.measure(store, _load(bench), False, _options(bench), tmp_path / "measured")


def test_another_noise_than_the_bare_loops_is_refused(
    bench: SimpleNamespace, store: Path, tmp_path: Path
) -> None:
    """Peers draw noise of their own, so that only its size can be compared."""

    class Scaled:
        def __init__(self, side: Any, factor: float) -> None:
            self._start, self._side, self._factor = side.vector(), side, factor

        def vector(self) -> torch.Tensor:
            return self._start + self._factor * (self._side.vector() - self._start)

    options = _options(bench)
    with bench.sides.build_sides(store, _load(bench), True, options, tmp_path / "a") as sides:
        job = bench.workload.Job(
            str(store), _load(bench), True, cohort_seed=sides.first.cohort_seed
        )
        material = bench.local_training.Material(job)
        bare = sides.named["bare"]
        share = 4 / len(material.clients.users_of_round(1))
        right, wrong = Scaled(bare, share), Scaled(bare, 1.5 * share)
        agreement = bench.sides._Agreement(sides, material)
        for side in sides.named.values():
            side.round(1)
        sides.named["pfl"] = right
        agreement.check("float32")
        sides.named["pfl"] = wrong
        with pytest.raises(SystemExit, match="pfl computed something else"):
            agreement.check("float32")


def test_two_processes_take_the_step_of_one(
    bench: SimpleNamespace, store: Path, tmp_path: Path
) -> None:
    job = bench.workload.Job(str(store), _load(bench), private=False, processes=2)
    bare = bench.sides.BareSide(bench.local_training.Material(job))
    remote = bench.remote.RemoteSide("ours", job, tmp_path / "remote")
    try:
        assert remote.startup_seconds > 0
        for index in (1, 2):
            for side in (bare, remote):
                side.prepare(index)
                side.round(index)
        torch.testing.assert_close(remote.vector(), bare.vector(), rtol=1e-5, atol=1e-6)
    finally:
        remote.close()


@pytest.mark.parametrize(("kind", "module"), [("pfl", "pfl"), ("flower", "ray")])
def test_peers_in_processes_of_their_own_take_our_step(
    bench: SimpleNamespace, store: Path, tmp_path: Path, kind: str, module: str
) -> None:
    pytest.importorskip(module, reason=f"{module} is not installed: docs/performance.md")
    job = bench.workload.Job(str(store), _load(bench), private=False)
    bare = bench.sides.BareSide(bench.local_training.Material(job))
    remote = bench.remote.RemoteSide(kind, job, tmp_path / "remote")
    try:
        for side in (bare, remote):
            side.prepare(1)
            side.round(1)
        torch.testing.assert_close(remote.vector(), bare.vector(), rtol=1e-5, atol=1e-6)
    finally:
        remote.close()


def test_a_process_that_ends_is_told_with_what_it_said(
    bench: SimpleNamespace, tmp_path: Path
) -> None:
    job = bench.workload.Job(str(tmp_path / "absent.h5"), _load(bench), private=False)
    with pytest.raises(SystemExit, match=r"(?s)ours ended before it was told to.*absent\.h5"):
        bench.remote.RemoteSide("ours", job, tmp_path / "remote")


def _result() -> dict[str, Any]:
    return {
        "workload": "femnist softmax",
        "private": True,
        "precision": "float32",
        "sides": {
            "pfl-bench, sequential": {"seconds": [2.0, 2.0, 4.0], "processor_seconds": [1, 1, 1]},
            "pfl-bench, vectorized": {"seconds": [1.0, 1.0, 2.0], "processor_seconds": [1, 1, 1]},
            "bare": {"seconds": [2.0, 3.0, 4.0], "processor_seconds": [2, 2, 2]},
            "pfl": {"seconds": [6.0, 6.0, 6.0], "processor_seconds": [6, 3, 3]},
            "pfl, 2 processes": {"seconds": [4.0, 4.0, 4.0]},
        },
        "agreement": {"pfl-bench, sequential": {"step_difference": 2e-6}},
        "startup_seconds": {"pfl, 2 processes": 12.5},
    }


def test_the_summary_compares_the_fastest_of_each(bench: SimpleNamespace) -> None:
    assert bench.page.fastest(_result(), "pfl") == "pfl, 2 processes"
    assert bench.page.fastest(_result(), "Flower") is None
    speed = bench.page.speed(_result(), "pfl-bench, vectorized", "bare")
    assert speed == {"median": 2.0, "min": 2.0, "max": 3.0}
    row = bench.page.summary([_result()])[-1]
    assert "pfl-bench, vectorized | 1.000 | 2.00 (2.00-3.00)" in row
    assert "4.00 (2.00-4.00); pfl, 2 processes | -" in row


def test_the_page_goes_between_its_marks(
    bench: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = {"subject": "femnist", "machine": bench.common.Machine().describe()}
    measured = tmp_path / "femnist.json"
    bench.common.write_json(measured, {**report, "results": [_result()]})
    page = tmp_path / "performance.md"
    begin, end = bench.page.marks(bench.page.ROUNDS)
    page.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    monkeypatch.setattr(sys, "argv", ["bench.py page", str(measured), "--into", str(page)])
    bench.page.main()
    text = page.read_text()
    assert text.startswith(f"before\n{begin}\n| workload")
    assert text.endswith(f"{end}\nafter\n")
    assert "old" not in text
    assert "load average" in text
    assert "pfl, 2 processes 12.5" in text
    page.write_text("no marks\n")
    with pytest.raises(SystemExit, match="must be there once each"):
        bench.page.main()
    assert page.read_text() == "no marks\n"


def test_the_committed_page_is_that_of_the_committed_records(bench: SimpleNamespace) -> None:
    records = sorted((REPOSITORY / "docs/results/speed").glob("*.json"))
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in records]
    page = (REPOSITORY / "docs/performance.md").read_text(encoding="utf-8")
    for name, text in bench.page.sections(reports).items():
        begin, end = bench.page.marks(name)
        assert page.partition(begin)[2].partition(end)[0] == f"\n{text}\n", name
    for report in reports:
        assert not report["machine"]["checkout"]["uncommitted_changes"]


def test_scale_measures_a_cohort_and_says_whether_it_holds(
    bench: SimpleNamespace, store: Path, tmp_path: Path
) -> None:
    job = tmp_path / "job.json"
    bench.workload.Job(str(store), _load(bench), private=True).write(job)
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY / 'scripts'}:{REPOSITORY}"}
    command = ("-m", "bench", "scale", "--child", str(job), "2")
    done = warm.python(*command, cwd=tmp_path, check=True, env=environment)
    found = json.loads(done.stdout)
    assert 0 < found["start_mib"] <= found["peak_mib"]
    assert len(found["wall_ms"]) == found["rounds"] == 2
    told = {"model": "softmax", "engine": "sequential"}
    small = {**found, "wall_ms": [1.0, 1.0], "peak_mib": 700.0}
    large = {**found, "wall_ms": [1.05, 1.05], "peak_mib": 800.0}
    text = bench.scale.table({**told, "cohorts": {"100": small, "10000": large}})
    assert "time at 10,000 is at most 1.1 times that at 100: yes (1.050)" in text
    assert "memory at 10,000 is at most 1.1 times that at 100: no (1.143)" in text


def test_the_command_is_timed_round_by_round_and_interrupted(
    bench: SimpleNamespace, store: Path, tmp_path: Path
) -> None:
    job = bench.workload.Job(str(store), _load(bench), private=True)
    tree = bench.workload.configuration(job)
    tree["federated"] |= {"num_rounds": 100_000, "workers": 1}
    config = tmp_path / "row.yaml"
    config.write_text(yaml.safe_dump(tree))
    times = bench.defaults.Times()
    bench.defaults.run_command(config, tmp_path / "run", 0.2, times)
    assert 0 < times.wall[0] < times.start[0]
    assert 0 < times.processor[0] < times.start[0]
    assert not (tmp_path / "run" / "summary.json").exists()
    config.write_text("version: 1\n")
    with pytest.raises(SystemExit, match="ended early"):
        bench.defaults.run_command(config, tmp_path / "other", 0.2, bench.defaults.Times())


def test_defaults_stand_beside_the_best_by_hand(bench: SimpleNamespace) -> None:
    def side(wall: list[float]) -> dict[str, list[float]]:
        return {"wall": wall, "processor": wall, "start": wall}

    result = {
        "workload": "w",
        "private": True,
        "picked": "sequential",
        "sides": {
            "defaults": side([1.0, 1.0, 2.0]),
            "sequential, 1 workers": side([0.9, 1.1, 2.0]),
            "vectorized, 1 workers": side([5.0, 5.0, 5.0]),
            "pfl, threads": side([2.0, 3.0, 8.0]),
        },
    }
    text = bench.defaults.table({"results": [result]})
    assert "| sequential, 1 workers | 1.00 (0.90-1.10) | 3.00 (2.00-4.00) |" in text
    assert "|  | pfl, threads | 2.000, 3.000, 8.000 | 2.000, 3.000, 8.000 |" in text
