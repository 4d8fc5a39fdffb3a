"""Processes that ``torchrun`` has started, on one machine or many."""

from __future__ import annotations

import io
import os
import pickle
import signal
import socket
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from pfl_bench.federated.workers.messages import Failure
from pfl_bench.federated.workers.stalls import StallWatch
from pfl_bench.types import ConfigError, WorkerError, WorkerGroup

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

_CPU = torch.device("cpu")
# A rank that has died is noticed at once; one that has much to train is waited for.
_LONGEST_WAIT = timedelta(days=1)
# A vector travels when both ends have said that they are there. NCCL does not notice that one died.
_LONGEST_TRANSFER = timedelta(minutes=10)
_SECONDS_BETWEEN = 0.02
# Ranks that one message can name.
_FEW = 4


class _ToCpu(pickle.Pickler):
    """Pickles tensors as ones on the CPU: who reads them may not have the GPU that they are on."""

    def reducer_override(self, given: Any) -> Any:
        if isinstance(given, Tensor) and given.device.type != "cpu":
            return cast("Any", given.detach().cpu()).__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return NotImplemented


def _packed(given: Any) -> bytes:
    buffer = io.BytesIO()
    _ToCpu(buffer, pickle.HIGHEST_PROTOCOL).dump(given)
    return buffer.getvalue()


def _agree(store: Store, rank: int, size: int, seconds: float = 300.0) -> str:
    """Agree on a name that no start of the run has had before.

    After a restart, torchrun's store, which is that of all starts, still has the addresses of
    processes that have died; ranks of torch 2.15 read them where they are earlier than who writes
    the new ones. (Its count of restarts is not the same on all machines.) So rank 0 makes a name,
    and gives it to those who ask by names of their own, until all that ask today have it.
    """
    own = uuid.uuid4().hex
    if rank:
        store.set(f"asks/{rank}", own)
        name: str = store.get(f"answer/{own}").decode()
        store.set(f"has/{name}/{rank}", "")
        return name
    deadline = time.monotonic() + seconds
    left = set(range(1, size))
    while left:
        left -= {other for other in left if store.check([f"has/{own}/{other}"])}
        for other in left:
            if store.check([f"asks/{other}"]):
                store.set(f"answer/{store.get(f'asks/{other}').decode()}", own)
        if left and time.monotonic() > deadline:
            raise WorkerError(f"these ranks have not come so far: {sorted(left)}")
        time.sleep(_SECONDS_BETWEEN)
    return own


class TorchrunGroup(WorkerGroup):
    """The processes of ``torchrun``, over gloo, and NCCL for what is on GPUs.

    Orders and parts are objects on the CPU. The lead hears from one rank after another, so that it
    knows which one it waits for. On a machine with GPUs each process has one of its own.
    """

    def __init__(self, device: str) -> None:
        if not dist.is_available():
            raise ConfigError(
                "torchrun: this build of torch has no torch.distributed; install another, or use "
                "federated.workers on one machine"
            )
        # A build without it has no such modules.
        from torch.distributed.distributed_c10d import PrefixStore
        from torch.distributed.rendezvous import rendezvous

        backend = "gloo"
        if device in ("auto", "cuda") and torch.cuda.is_available():
            # Vectors travel where they live.
            backend = "cpu:gloo,cuda:nccl"
            local, there = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
            if local >= there:
                raise ConfigError(
                    f"torchrun: process {local + 1} of this machine has no GPU of its own: there "
                    f"are {there}; start no more (--nproc-per-node), or add device=cpu"
                )
            torch.cuda.set_device(local)
            # Who waits too long is told so, where NCCL would end the process.
            os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
        try:
            store, rank, size = next(rendezvous("env://"))
            store = PrefixStore(f"pfl-bench/{_agree(store, rank, size)}", store)
            dist.init_process_group(
                "gloo", store=store, rank=rank, world_size=size, timeout=_LONGEST_WAIT
            )
            self._transfers: Any = dist.new_group(backend=backend, timeout=_LONGEST_TRANSFER)
        except RuntimeError as error:
            raise WorkerError(
                "the ranks of torchrun did not come together: see the output of each. "
                f"({str(error).splitlines()[0][:200]})"
            ) from None
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self.description = f"{self.size} ranks of torchrun"
        self._is_asked_to_end = self._is_waiting = self._is_broken = False
        # From a message until all have brought their part, nothing of the run changes.
        self._is_under_way = False
        self._before = signal.signal(signal.SIGTERM, self._asked_to_end)
        self._names: dict[int, str] = {}
        self._stalls = StallWatch()
        if self.rank:
            self.send(f"process {os.getpid()} on {socket.gethostname()}")
        else:
            self._names = {rank: self.receive(rank)[0] for rank in range(1, self.size)}

    def broadcast(self, message: Any, vector: Tensor | None = None) -> tuple[Any, Tensor | None]:
        """See ``WorkerGroup``."""
        given = [(message, vector is not None)]
        with self._waiting(self._others()):
            dist.broadcast_object_list(given, src=0, device=_CPU)
            message, has_vector = given[0]
            if has_vector:
                assert vector is not None
                dist.broadcast(vector, src=0, group=self._transfers)
        self._is_under_way = True
        return message, vector if has_vector else None

    def send(self, part: Any, vectors: Sequence[Tensor] = ()) -> None:
        """See ``WorkerGroup``."""
        shapes = [(vector.numel(), vector.dtype, vector.device.type) for vector in vectors]
        with self._waiting("rank 0"):
            dist.send_object_list([_packed((part, shapes))], dst=0, device=_CPU)
            for vector in vectors:
                dist.send(vector, dst=0, group=self._transfers)

    def receive(self, rank: int) -> tuple[Any, Iterator[Tensor]]:
        """See ``WorkerGroup``."""
        given: list[Any] = [None]
        with self._waiting(self._name(rank)):
            dist.recv_object_list(given, src=rank, device=_CPU)
        if isinstance(given[0], Failure):
            self._is_broken = True
            raise given[0].error
        part, shapes = pickle.loads(given[0])
        self._is_under_way = rank < self.size - 1 or bool(shapes)
        return part, self._receive(rank, shapes)

    def _receive(self, rank: int, shapes: Sequence[Any]) -> Iterator[Tensor]:
        for place, (length, dtype, device) in enumerate(shapes, start=1):
            vector = torch.empty(length, dtype=dtype, device=device)
            with self._waiting(self._name(rank)):
                dist.recv(vector, src=rank, group=self._transfers)
            self._is_under_way = rank < self.size - 1 or place < len(shapes)
            yield vector

    def _name(self, rank: int) -> str:
        return f"rank {rank} ({self._names.get(rank, 'which has not come so far')})"

    def _others(self) -> str:
        names = [self._name(rank) for rank in self._names]
        return " or ".join(names) if 0 < len(names) <= _FEW else "another rank"

    def fail(self, error: Exception) -> None:
        """See ``WorkerGroup``."""
        if self.rank == 0:
            raise error
        with self._waiting("rank 0"):
            dist.send_object_list([Failure(self.rank, error)], dst=0, device=_CPU)

    def close(self) -> None:
        """See ``WorkerGroup``: on the lead, tell the others that the run has ended."""
        self._is_waiting = True
        # With a message under way others wait to bring their part: they see that this one ends.
        if self.rank == 0 and not self._is_broken and not self._is_under_way:
            # Who has died by now misses nothing; what ended the run is what is to be said.
            with suppress(RuntimeError):
                dist.broadcast_object_list([(None, False)], src=0, device=_CPU)
        self._stalls.close()
        dist.destroy_process_group()
        signal.signal(signal.SIGTERM, self._before)

    @contextmanager
    def _waiting(self, whom: str) -> Iterator[None]:
        """Wait for others: torch tells of a connection that broke, here it gets a name.

        What happens while waiting tells more than that torchrun is ending the run.
        """
        self._is_waiting = True
        try:
            if self.rank:
                # It waits for messages while the lead works, for as long as that takes.
                yield
            else:
                with self._stalls.waiting(whom):
                    yield
        except RuntimeError as error:
            self._is_broken = True
            raise WorkerError(
                f"rank {self.rank} lost {whom}, which has probably died: see its own output. The "
                f"run can be resumed with --resume. ({str(error).splitlines()[0][:200]})"
            ) from None
        self._is_waiting = False
        self._check_end()

    def _asked_to_end(self, number: int, frame: Any) -> None:
        self._is_asked_to_end = True
        # Half a release or step must never be saved: that is awaited.
        if not self._is_waiting and (self.rank or self._is_under_way):
            self._check_end()

    def _check_end(self) -> None:
        if self._is_asked_to_end:
            self._is_asked_to_end = False
            self._is_broken = True
            raise WorkerError(
                f"rank {self.rank} was asked to end (SIGTERM), as torchrun does when another rank "
                "has died; the run can be resumed with --resume"
            )
