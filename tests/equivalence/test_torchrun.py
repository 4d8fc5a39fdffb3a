"""Runs that ``torchrun`` starts: the same bits, ranks that die, what is refused."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from pfl_bench.cli.main import main
from pfl_bench.runs.checkpoint import load_latest
from pfl_bench.runs.runner import run
from tests import warm
from tests.helpers import REPOSITORY, make_config

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not dist.is_available(), reason="torch was built without distributed"),
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="ranks are found in /proc"),
]

ROUNDS = 40
CHANGES: dict[str, Any] = {
    "federated__num_rounds": ROUNDS,
    "privacy__epsilon": None,
    "privacy__noise_cohort_size": None,
    "privacy__noise_multiplier": 1.0,
    "evaluation__every": 25,
    "checkpoint__every": 5,
}
LIMIT = 180.0
# The lead is asked to end while it takes the central step of round 4: the mechanism has moved on,
# and the ledger has its line.
ASKED_TO_END = """
import os, signal, sys
from pfl_bench.cli.main import main
from pfl_bench.federated.trainer import FederatedTrainer

real = FederatedTrainer._take_central_step

def step(self, mean_update, index):
    if index == 4:
        os.kill(os.getpid(), signal.SIGTERM)
    return real(self, mean_update, index)

FederatedTrainer._take_central_step = step
sys.exit(main())
"""
# Training moves a buffer of the model, on all ranks: all refuse it, at about the same time.
MOVING_BUFFER = """
import os, sys, time, torch
from pfl_bench.cli.main import main
from tasks.digits import models

class Counting(torch.nn.Linear):
    def forward(self, inputs):
        if self.training:
            self.batches += 1
        return super().forward(inputs)

def build(options, facts):
    model = Counting(64, 10)
    model.register_buffer("batches", torch.zeros(()))
    return model

models.build = build
code = main()
# Rank 1 notices that the lead has gone before torchrun does.
time.sleep(0.5 if os.environ["RANK"] == "0" else 0.0)
sys.exit(code)
"""
# Rank 1 announces a vector and does not send it.
SILENT = """
import time, torch
from datetime import timedelta
import torch.distributed as dist
from pfl_bench.federated.workers import torchrun
from pfl_bench.types import WorkerError

torchrun._LONGEST_TRANSFER = timedelta(seconds=2)
group = torchrun.TorchrunGroup("cpu")
if group.rank:
    announced = torchrun._packed(("part", [(4, torch.float32, "cpu")]))
    dist.send_object_list([announced], dst=0, device=torch.device("cpu"))
    time.sleep(LIMIT)
else:
    part, vectors = group.receive(1)
    try:
        next(vectors)
    except WorkerError as error:
        print(error, flush=True)
"""
# torchrun whose ranks are forks of it, and so need not import torch.
FORKING = """
import os, runpy, signal, subprocess, sys, traceback
from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler
from torch.distributed.run import main

class Forked(subprocess.Popen):
    def _execute_child(self, args, *rest):
        self.pid = os.fork()
        self._child_created = True
        if self.pid:
            return
        code = 1
        try:
            os.setsid()
            with open("rank-" + self.variables["RANK"], "w") as file:
                file.write(str(os.getpid()))
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
                signal.signal(number, signal.SIG_DFL)
            os.environ.update({name: str(value) for name, value in self.variables.items()})
            _, unbuffered, *program = args
            assert unbuffered == "-u"
            sys.argv = program if program[0] != "-m" else program[1:]
            if program[0] == "-m":
                runpy.run_module(program[1], run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(program[0], run_name="__main__")
            code = 0
        except SystemExit as end:
            code = end.code or 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

def start(args, env, **rest):
    Forked.variables = env
    return Forked(args, env=env, **rest)

subprocess_handler.Popen = start
sys.argv[0] = "torchrun"
main()
"""


class Launched:
    """A run that torchrun has started.

    Args:
        arguments: Of torchrun, and then of ``pfl-bench run``.
        log: File for what all processes say.
        cold: Start torchrun and the ranks as a user does, each of which imports all of it.
    """

    def __init__(self, arguments: list[str], log: Path, cold: bool) -> None:
        arguments = ["--standalone", "--nproc-per-node", "2", *arguments]
        environment = {
            **os.environ,
            "PYTHONPATH": str(REPOSITORY),
            "OMP_NUM_THREADS": "1",
        }
        self.log = log
        self.process: Any
        if not cold:
            log.touch()
            program = ("-c", FORKING, *arguments)
            self.process = warm.start(program, str(log.parent), environment, (str(log), str(log)))
            return
        command = [sys.executable, "-m", "torch.distributed.run", *arguments]
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                command, cwd=log.parent, env=environment, stdout=file, stderr=file
            )

    def code(self) -> int | None:
        """Exit code of torchrun; None while it runs."""
        if isinstance(self.process, subprocess.Popen):
            return self.process.poll()
        ended: int | None = self.process.exitcode
        return ended

    def pid_of(self, rank: int) -> int:
        """Process of a rank."""
        forked = self.log.with_name(f"rank-{rank}")
        if forked.exists():
            return int(forked.read_text())
        for path in Path("/proc").iterdir():
            if not path.name.isdigit():
                continue
            try:
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                variables = (path / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if parent == self.process.pid and b"RANK=%d" % rank in variables:
                return int(path.name)
        raise AssertionError(f"rank {rank} is not there: {self.said()}")

    def kill_after(self, rounds: int, rank: int, metrics: Path, unseen: bool = False) -> int:
        """Kill a rank by SIGKILL when so many rounds are written; returns its process.

        ``unseen`` keeps torchrun from asking the others to end until one has said who was lost.
        """
        deadline = time.monotonic() + LIMIT
        while not metrics.exists() or metrics.read_bytes().count(b"\n") < rounds:
            assert self.code() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.005)
        pid = self.pid_of(rank)
        if unseen:
            os.kill(self.process.pid, signal.SIGSTOP)
        os.kill(pid, signal.SIGKILL)
        if unseen:
            while " lost rank " not in self.said() and time.monotonic() < deadline:
                time.sleep(0.005)
            os.kill(self.process.pid, signal.SIGCONT)
        return pid

    def wait(self) -> int:
        """Exit code of torchrun."""
        if isinstance(self.process, subprocess.Popen):
            return self.process.wait(LIMIT)
        self.process.join(LIMIT)
        code = self.code()
        assert code is not None, self.said()
        return code

    def said(self) -> str:
        """What all processes have said so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Launched]]:
    """Start runs by torchrun; those that a failed test has left behind are ended."""
    launched: list[Launched] = []

    def start(
        *arguments: str,
        options: Sequence[str] = (),
        program: Sequence[str] = ("-m", "pfl_bench"),
        cold: bool = False,
    ) -> Launched:
        log = tmp_path / f"torchrun-{len(launched)}.log"
        launched.append(Launched([*options, *program, "run", *arguments], log, cold))
        return launched[-1]

    yield start
    for one in launched:
        if one.code() is None:
            one.process.terminate()
            one.wait()


def result(folder: Path) -> tuple[str, bytes]:
    """Ledger and central parameters of a finished run."""
    state = load_latest(folder / "checkpoints")
    assert state is not None
    assert state["step"] == ROUNDS
    assert (folder / "summary.json").exists()
    central: bytes = state["trainer"]["central"].numpy().tobytes()
    return (folder / "ledger.jsonl").read_text(), central


@pytest.fixture
def row(config_file: Callable[..., Path]) -> Path:
    return config_file("private_federated", **CHANGES)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, bytes]:
    """Result of the row in one process."""
    folder = tmp_path_factory.mktemp("alone")
    run(make_config("private_federated", **CHANGES), folder)
    return result(folder)


def test_a_rank_that_dies_is_named_and_the_run_resumes_or_restarts_to_the_same_bits(
    row: Path,
    expected: tuple[str, bytes],
    launch: Callable[..., Launched],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cut, elastic = (tmp_path / name for name in ("cut", "elastic"))
    first = launch(str(row), "--out", str(cut), cold=True)
    victim = first.kill_after(6, 1, cut / "metrics.jsonl", unseen=True)
    assert first.wait() == 1
    said = first.said()
    assert f"rank 1 (process {victim} on " in said
    assert "--resume" in said
    assert "]: Traceback" not in said  # As those of ranks begin; the launcher has its own.
    assert not (cut / "summary.json").exists()
    state = load_latest(cut / "checkpoints")
    assert state is not None
    assert 6 <= state["step"] < ROUNDS
    capsys.readouterr()
    # With one process, and so another number of them than it began with.
    assert main(["run", str(row), "--out", str(cut), "--resume"]) == 0
    assert "resumed after round" in capsys.readouterr().err
    assert result(cut) == expected
    second = launch(str(row), "--out", str(elastic), options=("--max-restarts", "1"))
    second.kill_after(6, 1, elastic / "metrics.jsonl")
    assert second.wait() == 0, second.said()
    assert "resumed after round" in (elastic / "run.log").read_text()
    assert result(elastic) == expected


def test_what_torchrun_cannot_share_out_is_refused(
    config_file: Callable[..., Path], launch: Callable[..., Launched], tmp_path: Path
) -> None:
    central = launch(str(config_file("central")), "--out", str(tmp_path / "run"))
    workers = launch(
        str(config_file("federated")), "federated.workers=2", "--out", str(tmp_path / "run")
    )
    for launched, words in (
        (central, "torchrun shares out the clients of federated training"),
        (workers, "federated.workers: torchrun has started the processes of this run"),
    ):
        assert launched.wait() == 1
        said = launched.said()
        assert words in said
        assert "exitcode  : 2" in said
    assert not (tmp_path / "run").exists()


def test_a_wrong_row_is_refused_by_the_lead_alone_and_nobody_waits_on(
    config_file: Callable[..., Path], launch: Callable[..., Launched], tmp_path: Path
) -> None:
    # That the plan is wrong turns out when the other rank waits for orders.
    path = config_file("private_federated", **CHANGES, federated__weighting="examples")
    launched = launch(str(path), "--out", str(tmp_path / "run"))
    assert launched.wait() == 1
    said = launched.said()
    assert said.count("weighting by examples with a private mechanism") == 1
    assert "exitcode  : 2" in said
    assert "lost" not in said
    assert not (tmp_path / "run").exists()


def test_a_round_is_never_saved_by_halves(
    row: Path,
    expected: tuple[str, bytes],
    launch: Callable[..., Launched],
    tmp_path: Path,
) -> None:
    script = tmp_path / "asked_to_end.py"
    script.write_text(ASKED_TO_END, encoding="utf-8")
    cut = tmp_path / "cut"
    launched = launch(str(row), "--out", str(cut), program=[str(script)])
    assert launched.wait() == 1
    assert "rank 0 was asked to end (SIGTERM)" in launched.said()
    assert "]: Traceback" not in launched.said()
    state = load_latest(cut / "checkpoints")
    assert state is not None
    # All of the round, though the checkpoints that were asked for come every five.
    assert state["step"] == 4
    assert main(["run", str(row), "--out", str(cut), "--resume"]) == 0
    assert result(cut) == expected


def test_what_all_ranks_refuse_is_said_as_by_one(
    config_file: Callable[..., Path], launch: Callable[..., Launched], tmp_path: Path
) -> None:
    script = tmp_path / "moving_buffer.py"
    script.write_text(MOVING_BUFFER, encoding="utf-8")
    path = config_file("federated")
    launched = launch(str(path), "--out", str(tmp_path / "run"), program=[str(script)])
    assert launched.wait() == 1
    said = launched.said()
    assert "pfl-bench: model: training changed its buffer 'batches'" in said
    assert "exitcode  : 2" in said
    assert "]: Traceback" not in said


def test_a_vector_that_does_not_come_is_waited_for_a_while_and_its_rank_named(
    tmp_path: Path,
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    ranks = []
    for rank in "01":
        place = {"RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        log = tmp_path / rank
        log.touch()
        program = ("-c", SILENT.replace("LIMIT", str(LIMIT)))
        ranks.append(
            warm.start(program, str(REPOSITORY), {**os.environ, **place}, (str(log), str(log)))
        )
    lead, silent = ranks
    try:
        lead.join(LIMIT)
    finally:
        for process in (silent, lead):
            process.kill()
            process.join()
    assert f"rank 0 lost rank 1 (process {silent.pid}" in (tmp_path / "0").read_text()
