"""Worker processes on one machine: messages over pipes, vectors in memory that all of them map.

A worker of one thread a core is faster than threads inside the small products of a client's step:
it shares nothing with its neighbours between the first step of a round and the last.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pfl_bench.federated.workers.messages import Failure
from pfl_bench.federated.workers.stalls import StallWatch
from pfl_bench.types import WorkerError, WorkerGroup, importing_nothing_here

# Bytes an element of what a worker gives back at most: sums of many clients are float64.
_WIDEST = 8
_SECONDS_TO_END = 10.0


class _Vectors:
    """The vector that the lead shares, and one place for the sum of each worker.

    The file at ``path`` has ``size`` bytes; it may be removed once all have mapped it.
    """

    def __init__(self, path: str, length: int, workers: int) -> None:
        self.path = path
        self.length = length
        size = self.size(length, workers)
        self._map = np.memmap(path, dtype=np.uint8, mode="r+", shape=(size,))
        self.shared = self._view(0, torch.float32)

    @staticmethod
    def size(length: int, workers: int) -> int:
        """Bytes of the file; what is never written takes no memory."""
        return length * (4 + 4 + _WIDEST * workers)

    def place(self, rank: int, dtype: torch.dtype) -> Tensor:
        """Memory for a worker's sum; shape (P,)."""
        # float64 begins at a multiple of 8 bytes.
        return self._view(self.length * (8 + _WIDEST * (rank - 1)), dtype)

    def _view(self, start: int, dtype: torch.dtype) -> Tensor:
        width = torch.empty((), dtype=dtype).element_size()
        part = self._map[start : start + width * self.length]
        return torch.from_numpy(np.asarray(part)).view(dtype)


def _send(pipe: Connection, given: Any) -> None:
    """Send an object, the tensors in it by value.

    ``Connection.send`` would open a file and a socket for each, and leave them if it is killed.
    """
    pipe.send_bytes(pickle.dumps(given))


def _receive(pipe: Connection) -> Any:
    return pickle.loads(pipe.recv_bytes())


def _make_file(size: int) -> str:
    """A file for the vectors, in memory where that has room."""
    folder = Path("/dev/shm")
    # Pages beyond what it holds would end the process by a signal.
    in_memory = folder.is_dir() and shutil.disk_usage(folder).free > 2 * size
    handle, path = tempfile.mkstemp(prefix="pfl-bench-", dir=folder if in_memory else None)
    with os.fdopen(handle, "wb") as file:
        file.truncate(size)
    return path


class LeadOfProcesses(WorkerGroup):
    """The lead's side of ``size`` processes, itself among them, 2 or more.

    ``work``, a function of a module, is what a worker does with its group until its lead lets go.
    """

    def __init__(self, size: int, work: Callable[[WorkerGroup], None]) -> None:
        self.size = size
        self.description = f"{size} worker processes"
        self._vectors: _Vectors | None = None
        self._is_removed = False
        self._connections: list[Connection] = []
        self._processes: list[SpawnProcess] = []
        self._stalls = StallWatch()
        context = multiprocessing.get_context("spawn")
        for rank in range(1, size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_main,
                args=(rank, size, theirs, work),
                name=f"pfl-bench worker {rank}",
                daemon=True,
            )
            with importing_nothing_here():
                process.start()
            theirs.close()
            self._connections.append(ours)
            self._processes.append(process)

    def broadcast(self, message: Any, vector: Tensor | None = None) -> tuple[Any, Tensor | None]:
        """See ``WorkerGroup``; the vector is copied once, whatever the number of workers."""
        place = None
        if vector is not None:
            if self._vectors is None:
                path = _make_file(_Vectors.size(vector.numel(), self.size - 1))
                self._vectors = _Vectors(path, vector.numel(), self.size - 1)
            self._vectors.shared.copy_(vector)
            place = (self._vectors.path, self._vectors.length)
        for rank, (pipe, process) in enumerate(
            zip(self._connections, self._processes, strict=True), start=1
        ):
            try:
                with self._stalls.waiting(f"worker {rank}", process.pid):
                    _send(pipe, (message, place))
            except OSError:
                raise _died(rank, process) from None
        return message, vector

    def receive(self, rank: int) -> tuple[Any, Iterator[Tensor]]:
        """See ``WorkerGroup``; vectors, shape (P,), are views of the worker's place."""
        part, dtypes = self._receive(rank)
        if rank == self.size - 1 and self._vectors is not None:
            # All have mapped it: nothing stays behind if this process is killed.
            self._remove_file()
        return part, self._places(rank, dtypes)

    def _places(self, rank: int, dtypes: Sequence[torch.dtype]) -> Iterator[Tensor]:
        assert self._vectors is not None or not dtypes
        for dtype in dtypes:
            # The worker waits for this before it writes, and says when it has written.
            try:
                _send(self._connections[rank - 1], None)
            except OSError:
                raise _died(rank, self._processes[rank - 1]) from None
            self._receive(rank)
            assert self._vectors is not None
            yield self._vectors.place(rank, dtype)

    def _receive(self, rank: int) -> Any:
        pipe, process = self._connections[rank - 1], self._processes[rank - 1]
        # At first it loads torch and the data.
        is_usual = self._is_removed
        with self._stalls.waiting(f"worker {rank}", process.pid, is_usual):
            connection.wait([pipe, process.sentinel])
        try:
            # What a worker said before it died is still in the pipe.
            if not pipe.poll():
                raise EOFError
            given = _receive(pipe)
        except (EOFError, OSError):
            raise _died(rank, process) from None
        if isinstance(given, Failure):
            raise given.error
        return given

    def _remove_file(self) -> None:
        if self._vectors is not None and not self._is_removed:
            os.unlink(self._vectors.path)
            self._is_removed = True

    def close(self) -> None:
        """Let the workers end, and wait for them."""
        self._stalls.close()
        for pipe in self._connections:
            pipe.close()
        for process in self._processes:
            process.join(_SECONDS_TO_END)
            if process.is_alive():
                # SIGTERM would not end one that is stopped.
                process.kill()
                process.join()
        self._remove_file()


class _Worker(WorkerGroup):
    """A worker's side."""

    def __init__(self, rank: int, size: int, pipe: Connection) -> None:
        self.rank = rank
        self.size = size
        self.description = f"{size} worker processes"
        self._pipe = pipe
        self._vectors: _Vectors | None = None

    def broadcast(self, message: Any, vector: Tensor | None = None) -> tuple[Any, Tensor | None]:
        message, place = _receive(self._pipe)
        if place is None:
            return message, None
        if self._vectors is None:
            path, length = place
            self._vectors = _Vectors(path, length, self.size - 1)
        return message, self._vectors.shared

    def send(self, part: Any, vectors: Sequence[Tensor] = ()) -> None:
        _send(self._pipe, (part, [vector.dtype for vector in vectors]))
        for vector in vectors:
            _receive(self._pipe)
            assert self._vectors is not None
            self._vectors.place(self.rank, vector.dtype).copy_(vector)
            _send(self._pipe, None)

    def fail(self, error: Exception) -> None:
        _send(self._pipe, Failure(self.rank, error))

    def close(self) -> None:
        self._pipe.close()


def _main(rank: int, size: int, pipe: Connection, work: Callable[[WorkerGroup], None]) -> None:
    # Ctrl-C goes to all processes of a terminal; the lead decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        work(_Worker(rank, size, pipe))
    except (EOFError, OSError):
        # The lead has let go, or has died: there is nobody to work for.
        return


def _died(rank: int, process: SpawnProcess) -> WorkerError:
    process.join(_SECONDS_TO_END)
    code = process.exitcode
    if code is not None and code < 0:
        how = f"was ended by {signal.Signals(-code).name}; if memory ran out, fewer workers "
        how += "(federated.workers) need less of it"
    else:
        how = f"ended with exit code {code}; its own error, if any, stands above"
    return WorkerError(
        f"worker {rank} (process {process.pid}) {how}. The run can be resumed with --resume"
    )
