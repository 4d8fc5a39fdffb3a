"""A side in processes of its own, told over a pipe when it is its turn."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.common import Side
from benchmarks.flair_material import FlairJob
from benchmarks.workload import Job

_END_SECONDS = 20.0


class RemoteSide:
    """The parent's end of a side that runs elsewhere.

    Args:
        kind: What ``benchmarks.child`` is to build.
        job: What is measured.
        folder: For its files; made.
        ranks: Processes that take part; more than one find one another as ``torchrun``'s do.

    Attributes:
        startup_seconds: From the start of the processes until all were ready for a round.

    Raises:
        SystemExit: It did not start; the message ends with what it said.
    """

    def __init__(self, kind: str, job: Job | FlairJob, folder: Path, ranks: int = 1) -> None:
        folder.mkdir(parents=True)
        self._folder, self._kind = folder, kind
        path = folder / "job.json"
        job.write(path)
        command = [sys.executable, "-m", "benchmarks.child", kind, str(path)]
        self._children: list[subprocess.Popen[str]] = []
        started = time.perf_counter()
        try:
            for environment in _environments(ranks, job.threads):
                with (folder / f"log-{len(self._children)}.txt").open("w") as log:
                    child = subprocess.Popen(
                        command,
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=log,
                        env=environment,
                        text=True,
                    )
                self._children.append(child)
            self._answers()
        except BaseException:
            self.close()
            raise
        self.startup_seconds = time.perf_counter() - started

    def prepare(self, index: int) -> None:
        self._ask({"prepare": index})

    def round(self, index: int) -> None:
        self._ask({"round": index})

    def vector(self) -> Tensor:
        path = self._ask({"vector": str(self._folder / "vector")})[0]["path"]
        return torch.from_numpy(np.load(path))

    def _ask(self, what: Mapping[str, Any]) -> list[dict[str, Any]]:
        for child in self._children:
            with contextlib.suppress(BrokenPipeError):
                _input(child).write(json.dumps(what) + "\n")
                _input(child).flush()
        return self._answers()

    def _answers(self) -> list[dict[str, Any]]:
        answers = []
        for rank, child in enumerate(self._children):
            assert child.stdout is not None
            line = child.stdout.readline()
            if not line:
                text = (self._folder / f"log-{rank}.txt").read_text(errors="replace")
                raise SystemExit(f"{self._kind} ended before it was told to:\n{text[-3000:]}")
            answers.append(json.loads(line))
        return answers

    def close(self) -> None:
        """End the processes; they end by themselves when their pipe is closed."""
        for child in self._children:
            with contextlib.suppress(BrokenPipeError):
                _input(child).close()
        for child in self._children:
            try:
                child.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            assert child.stdout is not None
            child.stdout.close()


def _input(child: subprocess.Popen[str]) -> IO[str]:
    assert child.stdin is not None
    return child.stdin


def _environments(ranks: int, threads: int) -> list[dict[str, str]]:
    """The variables of each process."""
    scripts = str(Path(__file__).resolve().parents[1])
    inherited = [entry for entry in (scripts, *sys.path) if entry]
    base = {**os.environ, "PYTHONPATH": os.pathsep.join(inherited), "OMP_NUM_THREADS": str(threads)}
    if ranks == 1:
        return [base]
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    shared = {
        **base,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "TORCHELASTIC_RUN_ID": "bench",
    }
    return [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]


def claim_output() -> IO[str]:
    """Keep this process's output for answers; what libraries print goes to its log."""
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return output


def serve(side: Side, output: IO[str]) -> None:
    """Compute rounds when told, until the parent closes the pipe.

    Args:
        side: What computes them; it is ready.
        output: Of ``claim_output``.
    """

    def answer(what: Mapping[str, Any]) -> None:
        output.write(json.dumps(what) + "\n")
        output.flush()

    answer({"ready": True})
    for line in sys.stdin:
        told = json.loads(line)
        if "prepare" in told:
            side.prepare(told["prepare"])
            answer({})
        elif "round" in told:
            side.round(told["round"])
            answer({})
        else:
            path = f"{told['vector']}-{os.getpid()}.npy"
            np.save(path, side.vector().numpy())
            answer({"path": path})
