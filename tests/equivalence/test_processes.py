"""A run's results are the same bits, however many processes its clients are assigned to."""

from __future__ import annotations

import functools
import json
import math
import multiprocessing
import os
import pickle
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pfl_bench.cli.main import main
from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.federated import trainer as federated
from pfl_bench.federated.cohort import CohortTraining
from pfl_bench.federated.workers import multiprocess
from pfl_bench.federated.workers.messages import Begin, Failure
from pfl_bench.federated.workers.worker_loop import follow
from pfl_bench.files import read_metrics
from pfl_bench.runs.checkpoint import load_latest
from pfl_bench.runs.runner import run
from pfl_bench.types import ConfigError, WorkerError
from privacy import aggregate as aggregates
from tasks.digits import task as digits
from tests.helpers import make_config

WAIT = 60.0
Received = tuple[Any, Sequence[Tensor]]


class InTurn:
    """A group in one process, whose workers run in threads, one at a time; all is pickled.

    A worker gets the lead's message only when the lead takes what it brings, so that two never
    train at once: torch's generators belong to the process.

    Args:
        size: Ranks.
    """

    rank = 0

    def __init__(self, size: int) -> None:
        self.size = size
        self.description = f"{size} threads in turn"
        self._followers = [_InTurnFollower(rank, size) for rank in range(1, size)]
        self._threads = [
            threading.Thread(target=follow, args=(worker,), daemon=True)
            for worker in self._followers
        ]
        for thread in self._threads:
            thread.start()
        self._order = b""
        self._vector: Tensor | None = None

    def broadcast(self, message: Any, vector: Tensor | None = None) -> tuple[Any, Tensor | None]:
        self._order = pickle.dumps(message)
        self._vector = None if vector is None else vector.clone()
        return message, vector

    def send(self, part: Any, vectors: Sequence[Tensor] = ()) -> None:
        raise RuntimeError("the lead takes what others bring")

    def receive(self, rank: int) -> tuple[Any, Iterator[Tensor]]:
        worker = self._followers[rank - 1]
        worker.messages.put((self._order, self._vector))
        part, vectors = worker.parts.get(timeout=WAIT)
        part = pickle.loads(part)
        if isinstance(part, Failure):
            raise part.error
        return part, iter(vectors)

    def fail(self, error: Exception) -> None:
        raise error

    def close(self) -> None:
        for worker, thread in zip(self._followers, self._threads, strict=True):
            worker.messages.put((pickle.dumps(None), None))
            thread.join(WAIT)
            assert not thread.is_alive()


class _InTurnFollower:
    description = "a thread"

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.messages: queue.Queue[tuple[bytes, Tensor | None]] = queue.Queue()
        self.parts: queue.Queue[tuple[bytes, Sequence[Tensor]]] = queue.Queue()

    def broadcast(self, message: Any, vector: Tensor | None = None) -> tuple[Any, Tensor | None]:
        # For ever, where a test leaves its group: an error of this thread would fail another test.
        given, shared = self.messages.get()
        return pickle.loads(given), shared

    def send(self, part: Any, vectors: Sequence[Tensor] = ()) -> None:
        self.parts.put((pickle.dumps(part), [vector.clone() for vector in vectors]))

    def receive(self, rank: int) -> tuple[Any, Iterator[Tensor]]:
        raise RuntimeError("only the lead takes")

    def fail(self, error: Exception) -> None:
        self.send(Failure(self.rank, error))

    def close(self) -> None:
        pass


def outcome(folder: Path) -> dict[str, Any]:
    """What must be the same bits whatever the number of processes."""
    state = load_latest(folder / "checkpoints")
    assert state is not None
    buffer: dict[str, Any] = {}
    _flatten(state["trainer"], "", buffer)
    ledger = folder / "ledger.jsonl"
    rows = [
        {key: value for key, value in row.items() if not key.startswith(("time/", "val/"))}
        for row in read_metrics(folder / "metrics.jsonl")
    ]
    for row in rows:
        # A sum of float64 whose order is that of the shards, so exact too.
        assert math.isfinite(float(str(row.get("train/loss", 0.0))))
    return {
        "ledger": ledger.read_text() if ledger.exists() else None,
        "state": buffer,
        "rows": rows,
    }


def _flatten(value: Any, name: str, into: dict[str, Any]) -> None:
    if isinstance(value, dict):
        for key, part in value.items():
            _flatten(part, f"{name}.{key}", into)
    elif isinstance(value, (list, tuple)):
        _flatten(dict(enumerate(value)), name, into)
    elif isinstance(value, Tensor):
        into[name] = value.numpy().tobytes()
    else:
        into[name] = value


def same_metrics(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two summaries have the same numbers, to the rounding of other batches."""
    found: bool = one["metrics"] == pytest.approx(other["metrics"], rel=2e-5, abs=1e-9)
    return found and one["selected"] == other["selected"]


@pytest.fixture(autouse=True)
def _read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The digits are read and assigned once in this process."""
    build: Callable[..., Any] = functools.cache(digits.build)
    monkeypatch.setattr(digits, "build", build)


# No calibration, which takes a second.
NOISE = {
    "privacy__epsilon": None,
    "privacy__noise_cohort_size": None,
    "privacy__noise_multiplier": 1.0,
}


def small(setting: str, **changes: Any) -> ResolvedConfig:
    return make_config(setting, **{**(NOISE if "private" in setting else {}), **changes})


ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "adaptive_gaussian": ("private_federated", {"federated__local_epochs": 2}),
    "local_gaussian": (
        "private_federated",
        {
            "privacy__mechanism": {"name": "local_gaussian", "clip_norm": 0.5},
        },
    ),
    "privunit": (
        "private_federated",
        {
            "privacy__mechanism": {"name": "privunit", "clip_norm": 0.5},
            "privacy__noise_multiplier": 0.25,
            "privacy__accountant": "pld",
        },
    ),
    "canaries": (
        "private_federated",
        {
            "privacy__mechanism": {"name": "gaussian", "clip_norm": 0.5},
            "privacy__noise_multiplier": 1.0,
            "privacy__audit": {"kind": "worst_case", "count": 5},
        },
    ),
    "tree_aggregation": (
        "private_federated",
        {
            "privacy__mechanism": {
                "name": "tree_aggregation",
                "clip_norm": 0.5,
                "restart_every": 3,
            },
            "privacy__noise_multiplier": 4.0,
            "federated__sampling": "cyclic_poisson",
            "federated__separation": 2,
        },
    ),
    "by examples": (
        "federated",
        {
            "federated__weighting": "examples",
            "federated__central_optimizer": {"name": "adam"},
            "federated__central_learning_rate": 0.02,
            "evaluation__select_best": "val/accuracy",
        },
    ),
    "vectorized, one slot": (
        "private_federated",
        {"federated__engine": "vectorized", "federated__engine_lanes": 1},
    ),
    # Of the parts of a sum some elements are compared, not all of them.
    "more than are compared": (
        "private_federated",
        {"model__name": "mlp", "model__hidden": 500, "federated__num_rounds": 3},
    ),
    # Of one expected client, many rounds have none; and one shard is too few for three.
    "empty rounds": (
        "private_federated",
        {
            "privacy__mechanism": {"name": "gaussian", "clip_norm": 0.5},
            "federated__cohort_size": 1,
            "federated__num_rounds": 12,
        },
    ),
    "fine-tuned": (
        "federated",
        {
            "evaluation__adaptation": {
                "num_steps": 2,
                "batch_size": 2,
                "learning_rate": 0.1,
                "fraction": 0.5,
            },
            "federated__num_rounds": 2,
        },
    ),
    "threads that read": ("federated", {"federated__data_workers": 2, "federated__num_rounds": 2}),
}


@pytest.mark.parametrize(("setting", "changes"), ROWS.values(), ids=ROWS.keys())
def test_the_number_of_processes_changes_no_bit(
    setting: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    config = small(setting, **changes)
    alone = run(config, tmp_path / "alone")
    # The four shards of twelve clients unevenly; and over more processes than shards.
    for size in (3, 5):
        shared = run(config, tmp_path / f"{size}", group=InTurn(size))
        assert outcome(tmp_path / f"{size}") == outcome(tmp_path / "alone")
        assert same_metrics(shared, alone)
        assert shared["canaries"] == alone["canaries"]
    cohorts = {row["train/cohort_size"] for row in read_metrics(tmp_path / "3/metrics.jsonl")}
    assert (0.0 in cohorts) == (changes.get("federated__cohort_size") == 1)
    assert cohorts != {0.0}


def test_sums_of_many_clients_are_the_same_bits_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small("private_federated")
    run(config, tmp_path / "narrow")
    monkeypatch.setattr(aggregates, "MANY_CLIENTS", 10)
    run(config, tmp_path / "alone")
    run(config, tmp_path / "shared", group=InTurn(3))
    assert outcome(tmp_path / "shared") == outcome(tmp_path / "alone")
    assert outcome(tmp_path / "narrow")["state"] != outcome(tmp_path / "alone")["state"]


def test_clients_that_diverge_are_lost_alike(tmp_path: Path) -> None:
    # A rate of 1e38 overflows float32, of most clients.
    changes = {
        "model__name": "mlp",
        "federated__local_learning_rate": 1e38,
        "federated__local_epochs": 3,
        "federated__num_rounds": 2,
        "privacy__mechanism": {"name": "local_gaussian", "clip_norm": 0.5},
    }
    config = small("private_federated", **changes)
    run(config, tmp_path / "alone")
    run(config, tmp_path / "shared", group=InTurn(3))
    assert outcome(tmp_path / "shared") == outcome(tmp_path / "alone")
    rows = outcome(tmp_path / "alone")["rows"]
    assert rows[0]["train/num_nonfinite"] > 0
    logs = [(tmp_path / name / "run.log").read_text() for name in ("alone", "shared")]
    named = [[line.partition("round ")[2] for line in log.splitlines()] for log in logs]
    assert [line for line in named[1] if "not finite" in line] == [
        line for line in named[0] if "not finite" in line
    ]


def interrupted(patch: pytest.MonkeyPatch, index: int, what: Callable[[], None]) -> None:
    """Have something happen while round ``index`` is trained, after the messages have gone out."""
    real = CohortTraining.train

    def train(self: Any, shards: Any, first: int, round_index: int, *rest: Any) -> Any:
        if first == 0 and round_index == index and threading.current_thread().name == "MainThread":
            what()
        return real(self, shards, first, round_index, *rest)

    patch.setattr(CohortTraining, "train", train)


@pytest.mark.parametrize(("before", "after"), [(3, 1), (1, 3), (2, 6)])
def test_a_run_may_go_on_with_another_number_of_processes(
    before: int, after: int, tmp_path: Path
) -> None:
    config = small("private_federated")
    straight, cut = tmp_path / "straight", tmp_path / "cut"
    run(config, straight)

    def lose() -> None:
        raise WorkerError("rank 1 has gone")

    with pytest.MonkeyPatch.context() as patch:
        interrupted(patch, 4, lose)
        with pytest.raises(WorkerError, match="rank 1 has gone"):
            run(config, cut, group=InTurn(before) if before > 1 else None)
    # Not only what the configuration asks for is saved, which was round 2.
    state = load_latest(cut / "checkpoints")
    assert state is not None
    assert state["step"] == 3
    run(config, cut, resume=True, group=InTurn(after) if after > 1 else None)
    assert outcome(cut) == outcome(straight)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"model_digest": "sha256:other"}, "rank 1 begins with other weights than rank 0"),
        ({"data_checksum": "sha256:other"}, "rank 1 reads other data than rank 0"),
    ],
)
def test_a_process_with_another_model_or_other_data_is_refused(
    changed: dict[str, str],
    words: str,
    config_file: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def begin(*arguments: Any) -> Begin:
        real = Begin(*arguments)
        return Begin(**{**real.__dict__, **changed})

    monkeypatch.setattr(federated, "Begin", begin)
    with pytest.raises(ConfigError, match=words):
        run(small("private_federated"), tmp_path / "run", group=InTurn(3))
    assert not (tmp_path / "run").exists()
    # Likewise by worker processes, where the command ends as with any other wrong input.
    path = config_file("private_federated", **NOISE, federated__workers=2)
    assert main(["run", str(path), "--out", str(tmp_path / "run")]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert not multiprocessing.active_children()


def files_in_memory() -> set[str]:
    folder = Path("/dev/shm")
    return {path.name for path in folder.glob("pfl-bench-*")} if folder.is_dir() else set()


@pytest.mark.slow
def test_worker_processes_give_the_same_bits_and_one_that_dies_is_named(
    config_file: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = files_in_memory()
    path = config_file("private_federated", **NOISE, federated__workers=3)
    command = ["run", str(path), "--out"]
    assert main([*command, str(tmp_path / "alone"), "federated.workers=1"]) == 0
    stopped: list[threading.Timer] = []

    def victim() -> int:
        [found] = [p for p in multiprocessing.active_children() if p.name.endswith("worker 2")]
        assert found.pid is not None
        return found.pid

    def stop() -> None:
        os.kill(victim(), signal.SIGSTOP)
        stopped.append(threading.Timer(1.0, os.kill, (victim(), signal.SIGCONT)))
        stopped[0].start()

    with monkeypatch.context() as patch:
        # As for users: each imports all of it. Those of the runs below have it imported.
        patch.setattr(multiprocess, "multiprocessing", multiprocessing)
        interrupted(patch, 2, stop)
        assert main([*command, str(tmp_path / "shared")]) == 0
    [go_on] = stopped
    go_on.join()
    assert outcome(tmp_path / "shared") == outcome(tmp_path / "alone")
    environment = json.loads((tmp_path / "shared" / "environment.json").read_text())
    assert environment["processes"] == "3 worker processes"
    capsys.readouterr()

    cut = tmp_path / "cut"
    with monkeypatch.context() as patch:
        interrupted(patch, 4, lambda: os.kill(victim(), signal.SIGKILL))
        assert main([*command, str(cut)]) == 1
    said = capsys.readouterr().err
    assert "worker 2 (process " in said
    assert "was ended by SIGKILL" in said
    assert "--resume" in said
    assert not multiprocessing.active_children()
    assert files_in_memory() <= before
    state = load_latest(cut / "checkpoints")
    assert state is not None
    assert state["step"] == 3
    assert main([*command, str(cut), "--resume", "federated.workers=2"]) == 0
    assert outcome(cut) == outcome(tmp_path / "alone")
    assert torch.get_num_threads() == 1
