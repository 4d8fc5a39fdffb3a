"""What the processes of a run say to one another, and what becomes of those that stop."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pfl_bench.client import machine
from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.federated.parts import FederatedParts, build_model, build_task
from pfl_bench.federated.trainer import FederatedTrainer
from pfl_bench.federated.workers import cores, multiprocess, stalls
from pfl_bench.federated.workers.cores import most_by_memory, usable_cores
from pfl_bench.federated.workers.launched import is_launched, is_restarted
from pfl_bench.federated.workers.messages import Begin, Built, Failure, Train
from pfl_bench.federated.workers.multiprocess import LeadOfProcesses
from pfl_bench.federated.workers.start import start_workers
from pfl_bench.federated.workers.worker_loop import follow
from pfl_bench.types import ConfigError, Evaluate, SingleProcess, WorkerError, WorkerGroup
from privacy.errors import PlanError
from privacy.mechanism import NoiseScale
from tests.helpers import make_config

CPU = torch.device("cpu")
LENGTH = 1000


class StubbornError(Exception):
    """An error that cannot be made again from what was pickled."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(f"{what} {where}")


class Deadly(Sequence[Tensor]):
    """Vectors of which the process dies as they are sent."""

    def __init__(self, vectors: list[Tensor]) -> None:
        self._vectors = vectors
        self._told = False

    def __len__(self) -> int:
        return len(self._vectors)

    def __getitem__(self, place: Any) -> Any:
        return self._vectors[place]

    def __iter__(self) -> Iterator[Tensor]:
        if self._told:
            os.kill(os.getpid(), signal.SIGKILL)
        self._told = True
        return iter(self._vectors)


def work(group: WorkerGroup) -> None:
    """Do as is told, rank by rank: what a worker of these tests runs."""
    while True:
        order, vector = group.broadcast(None)
        if order is None:
            return
        what = order[group.rank]
        if what == "add":
            assert vector is not None
            group.send(group.rank, [vector + group.rank, vector.double() / 3])
        elif what == "greet":
            group.send({"from": group.rank, "tensor": torch.arange(group.rank)})
        elif what == "user":
            group.fail(ConfigError("model: there is none"))
            return
        elif what == "ours":
            group.fail(StubbornError("no", "where"))
            return
        elif what == "die":
            assert vector is not None
            group.send(group.rank, Deadly([vector]))
        elif what == "exit":
            os._exit(3)


def files_in_memory() -> set[str]:
    folder = Path("/dev/shm")
    return {path.name for path in folder.glob("pfl-bench-*")} if folder.is_dir() else set()


@pytest.mark.slow
def test_workers_bring_what_they_have_and_those_that_stop_are_named() -> None:
    before = files_in_memory()
    lead = LeadOfProcesses(5, work)
    try:
        lead.broadcast(["greet"] * 5)
        for rank in range(1, 5):
            part, vectors = lead.receive(rank)
            assert part["from"] == rank
            assert torch.equal(part["tensor"], torch.arange(rank))
            assert list(vectors) == []
        for turn in range(3):
            vector = torch.linspace(0, 1, LENGTH) * (turn + 1)
            lead.broadcast(["add"] * 5, vector)
            for rank in range(1, 5):
                part, vectors = lead.receive(rank)
                assert part == rank
                assert torch.equal(next(vectors), vector + rank)
                wide = next(vectors)
                assert wide.dtype == torch.float64
                assert torch.equal(wide, vector.double() / 3)
                with pytest.raises(StopIteration):
                    next(vectors)
            # Nothing is left behind if the lead is killed from now on.
            assert files_in_memory() <= before
        pids = [process.pid for process in lead._processes]
        lead.broadcast(["", "user", "ours", "die", "exit"], vector)
        with pytest.raises(ConfigError, match=r"^model: there is none$"):
            lead.receive(1)
        with pytest.raises(
            WorkerError, match=r"rank 2 of the run stopped with StubbornError: no where"
        ):
            lead.receive(2)
        part, vectors = lead.receive(3)
        assert part == 3
        with pytest.raises(WorkerError, match=rf"worker 3 \(process {pids[2]}\).*SIGKILL"):
            next(vectors)
        with pytest.raises(WorkerError, match=r"worker 4 .* ended with exit code 3"):
            lead.receive(4)
        # They are not there for the next order either.
        lead._processes[0].join(60)
        with pytest.raises(WorkerError, match=r"worker 1 .* ended with exit code 0"):
            lead.broadcast(["greet"] * 5)
    finally:
        lead.close()
    assert not multiprocessing.active_children()
    assert files_in_memory() <= before


def test_an_error_of_ours_goes_with_its_rank_and_one_of_the_user_as_it_is() -> None:
    for error in (ConfigError("wrong key"), PlanError("wrong plan")):
        arrived = pickle.loads(pickle.dumps(Failure(2, error))).error
        assert type(arrived) is type(error)
        assert str(arrived) == str(error)
    arrived = pickle.loads(pickle.dumps(Failure(2, StubbornError("no", "where")))).error
    assert isinstance(arrived, WorkerError)
    assert str(arrived).startswith("rank 2 of the run stopped with StubbornError: no where")


def test_one_process_is_a_crew_of_its_own() -> None:
    group: WorkerGroup = SingleProcess()
    vector = torch.ones(3)
    assert group.broadcast("order", vector) == ("order", vector)
    with pytest.raises(RuntimeError, match="alone"):
        group.receive(1)
    with pytest.raises(RuntimeError, match="alone"):
        group.send(1)
    with pytest.raises(ConfigError):
        group.fail(ConfigError("wrong"))
    group.close()


class Ordered(WorkerGroup):
    """A group of rank 1 of 2 whose lead has said all it will say.

    Args:
        orders: And the vectors that come with them.
    """

    rank = 1
    size = 2
    description = "a list"

    def __init__(self, *orders: tuple[Any, Tensor | None]) -> None:
        self._orders = [*orders, (None, None)]
        self.brought: list[tuple[Any, list[Tensor]]] = []
        self.failed: list[Exception] = []

    def broadcast(self, message: Any, vector: Tensor | None = None) -> tuple[Any, Tensor | None]:
        return self._orders.pop(0)

    def send(self, part: Any, vectors: Sequence[Tensor] = ()) -> None:
        self.brought.append((part, [vector.clone() for vector in vectors]))

    def fail(self, error: Exception) -> None:
        self.failed.append(error)


class WithBuffer(torch.nn.Linear):
    """A linear model that counts its batches in a buffer, as training moves it."""

    def __init__(self) -> None:
        super().__init__(64, 10)
        self.register_buffer("batches", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.batches += 1
        return super().forward(inputs)


NOISE = NoiseScale(1.0, 12.0, 30.0)


def begin_of(resolved: ResolvedConfig, **changes: Any) -> tuple[Begin, Tensor]:
    task = build_task(resolved, CPU)
    model = build_model(resolved, task, CPU)
    noise = NOISE if resolved.config.privacy else None
    begin = Begin(resolved, noise, 5, model.initial_digest, task.facts.checksum)
    return Begin(**{**begin.__dict__, **changes}), model.vector.clone()


def train_order(clip_norm: float | None) -> Train:
    shards = [np.arange(3), np.arange(3, 7)]
    return Train(1, shards, -1, clip_norm)


def test_a_follower_builds_trains_and_evaluates_its_part() -> None:
    begin, central = begin_of(make_config("private_federated"))
    group = Ordered(
        (begin, None), (train_order(0.25), central), (Evaluate(("val", "test")), central)
    )
    follow(group)
    assert group.failed == []
    (built, _), (trained, vectors), (measured, _) = group.brought
    assert built == Built("sequential", machine.identity(CPU))
    [result] = trained.results
    [node] = trained.nodes
    assert (node.level, node.place) == (0, 1)
    assert node.aggregate.num_contributions == 4
    # It clips to the bound that the lead has moved to, not to the configured one.
    assert node.aggregate.largest_clipped_norm <= 0.25 < node.aggregate.largest_norm
    [total] = vectors
    assert 0 < torch.linalg.vector_norm(total) <= 4 * 0.25
    assert node.aggregate.total.numel() == 0
    assert result.counted.num_steps > 0
    assert result.seen.worst[0] < 1e-4
    assert len(measured) == 2
    assert measured[0].num_examples > 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_digest": "other"}, "rank 1 begins with other weights"),
        ({"data_checksum": "other"}, "rank 1 reads other data"),
    ],
)
def test_a_follower_that_has_something_else_says_so(changes: dict[str, str], words: str) -> None:
    begin, central = begin_of(make_config("federated"), **changes)
    group = Ordered((begin, None), (train_order(None), central))
    follow(group)
    [error] = group.failed
    assert isinstance(error, ConfigError)
    assert words in str(error)
    assert group.brought == []


def test_a_follower_refuses_a_bound_that_it_cannot_follow(
    capsys: pytest.CaptureFixture[str],
) -> None:
    mechanism = {"name": "gaussian", "clip_norm": 0.5}
    begin, central = begin_of(make_config("private_federated", privacy__mechanism=mechanism))
    group = Ordered((begin, None), (train_order(0.25), central))
    follow(group)
    [error] = group.failed
    assert "gaussian clips to 0.5 on rank 1 and to 0.25 on rank 0" in str(error)
    # An error of ours: where it was raised is said where it was.
    assert "Traceback" in capsys.readouterr().err


def test_a_follower_tells_of_a_model_whose_buffers_move(monkeypatch: pytest.MonkeyPatch) -> None:
    from tasks.digits import models

    monkeypatch.setattr(models, "build", lambda options, facts: WithBuffer())
    begin, central = begin_of(make_config("federated"))
    group = Ordered((begin, None), (train_order(None), central))
    follow(group)
    [error] = group.failed
    assert isinstance(error, ConfigError)
    assert "training changed its buffer 'batches'" in str(error)


class OfTwoKinds(Ordered):
    """A lead of two whose worker trains in another way, as on another kind of machine."""

    rank = 0

    def broadcast(self, message: Any, vector: Tensor | None = None) -> None:
        pass

    def receive(self, rank: int) -> tuple[Any, Iterator[Tensor]]:
        return Built("vectorized, 1 slots", machine.identity(CPU)), iter(())


def test_processes_that_would_train_otherwise_are_refused(tmp_path: Path) -> None:
    resolved = make_config("private_federated")
    task = build_task(resolved, CPU)
    model = build_model(resolved, task, CPU)
    with pytest.raises(ConfigError, match="process 1 trains by 'vectorized, 1 slots', this one by"):
        FederatedTrainer(
            FederatedParts.build(resolved, task, model),
            tmp_path,
            lambda text: None,
            OfTwoKinds(),
        )


def test_workers_on_a_gpu_are_refused_and_others_have_none() -> None:
    config = make_config("federated", federated__workers=2)
    with pytest.raises(ConfigError, match=r"federated\.workers: 2 processes would share one cuda"):
        start_workers(config, torch.device("cuda"))
    assert start_workers(make_config("central"), CPU).size == 1
    assert start_workers(make_config("federated", federated__workers=1), CPU).size == 1
    # "auto" leaves a GPU to one.
    assert start_workers(make_config("federated"), torch.device("cuda")).size == 1


def test_cores_and_memory_of_this_machine_are_known() -> None:
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)
    fitting = most_by_memory(0)
    assert fitting is None or fitting >= 1
    assert most_by_memory(1 << 60) in (None, 1)


def test_a_containers_limits_are_kept_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "_CONTAINER", tmp_path)
    there, fitting = usable_cores(), most_by_memory(1 << 20)
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "memory.max").write_text(f"{1 << 20}\n")
    (tmp_path / "memory.stat").write_text("anon 4096\nfile 900000\n")
    assert usable_cores() == 1
    assert most_by_memory(1 << 20) in (None, 1)
    (tmp_path / "cpu.max").write_text("max 100000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert usable_cores() == there
    assert (fitting is None) == (most_by_memory(1 << 20) is None)


def test_ranks_of_torchrun_are_told_by_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    assert not is_launched()
    for name, value in (("RANK", "0"), ("MASTER_ADDR", "here"), ("MASTER_PORT", "1")):
        monkeypatch.setenv(name, value)
    assert not is_launched()
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert not is_launched()
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert is_launched()
    assert not is_restarted()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert is_restarted()


def test_ranks_of_a_restarted_run_agree_beside_what_the_dead_have_left() -> None:
    from pfl_bench.federated.workers.torchrun import _agree

    store = torch.distributed.HashStore()
    store.set_timeout(timedelta(seconds=20))
    names = set()
    for start_number in range(3):
        # Of an earlier start that not all had come to.
        store.set("asks/2", f"died early {start_number}")
        with ThreadPoolExecutor(3) as pool:
            ranks = [0, 1, 2] if start_number % 2 else [2, 1, 0]
            found = [pool.submit(_agree, store, rank, 3) for rank in ranks]
            [name] = {one.result(30) for one in found}
        names.add(name)
    assert len(names) == 3
    with pytest.raises(WorkerError, match=r"have not come so far: \[1, 2\]"):
        _agree(store, 0, 3, seconds=0.2)


def test_what_is_brought_arrives_with_its_numbers() -> None:
    from pfl_bench.federated.workers.torchrun import _packed

    given = {"sum": torch.linspace(0, 1, LENGTH, dtype=torch.float64), "names": ["a", "b"]}
    arrived = pickle.loads(_packed(given))
    assert torch.equal(arrived["sum"], given["sum"])
    assert arrived["sum"].dtype == torch.float64
    assert arrived["names"] == given["names"]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_what_is_brought_from_a_gpu_arrives_where_there_is_none() -> None:
    from pfl_bench.federated.workers.torchrun import _packed

    given = torch.arange(LENGTH, device="cuda")
    arrived = pickle.loads(_packed([given]))[0]
    assert arrived.device == CPU
    assert torch.equal(arrived, given.cpu())


def test_a_stopped_worker_is_named_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stalls, "PATIENCE", 0.4)
    group = LeadOfProcesses(3, work)
    try:
        vector = torch.arange(4, dtype=torch.float32)
        for _ in range(2):
            group.broadcast([None, "add", "add"], vector)
            assert [len(list(group.receive(rank)[1])) for rank in (1, 2)] == [2, 2]
        capsys.readouterr()
        group.broadcast([None, "greet", "greet"], vector)
        assert group.receive(1)[0]["from"] == 1
        assert group.receive(2)[0]["from"] == 2
        assert capsys.readouterr().err == ""
        stopped = group._processes[1].pid
        assert stopped is not None
        os.kill(stopped, signal.SIGSTOP)
        go_on = threading.Timer(2.0, os.kill, (stopped, signal.SIGCONT))
        go_on.start()
        group.broadcast([None, "greet", "greet"], vector)
        assert group.receive(1)[0]["from"] == 1
        assert group.receive(2)[0]["from"] == 2
        go_on.join()
        said = capsys.readouterr().err
        assert f"worker 2 (process {stopped})" in said
        assert f"kill -CONT {stopped}" in said
        assert f"kill -KILL {stopped}" in said
        assert "worker 1" not in said
        # What was stopped is no measure of how long a round takes.
        assert group._stalls._longest < 1.5
        os.kill(stopped, signal.SIGSTOP)
    finally:
        monkeypatch.setattr(multiprocess, "_SECONDS_TO_END", 0.2)
        group.close()
    assert not any(process.is_alive() for process in group._processes)
