"""The vectorized engine: several clients at once, each in a slot with weights of its own.

All slots take a step together, in one batched program; a slot takes the next client as soon as
its client has finished, so that none waits for the longest. A batch is padded to the largest of
its step, at most to the local batch size, and padding has no part in a mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from pfl_bench.client.batched.auto_slots import slots_of
from pfl_bench.client.batched.gradients import descend
from pfl_bench.client.batched.graphs import StepGraphs
from pfl_bench.client.batched.program import (
    Program,
    StepBatch,
    build_program,
    check,
    unsupported,
)
from pfl_bench.client.batched.slot_masks import SlotMasks
from pfl_bench.client.batched.slot_weights import SlotWeights
from pfl_bench.client.batches import Batch, local_batches, num_used
from pfl_bench.client.flat_model import FlatModel
from pfl_bench.client.forward import Forward
from pfl_bench.client.prefetch import read_users
from pfl_bench.config.training import Strict
from pfl_bench.rng import Purpose, stream, torch_seed
from pfl_bench.types import (
    ConfigError,
    Examples,
    FederatedSplit,
    LocalResult,
    LocalTraining,
    is_out_of_memory,
)


class Options(Strict):
    """Options of the vectorized engine.

    Attributes:
        data_workers: Threads that read clients ahead of training; 0 reads in line.
        slots: Clients that train at once; None for as many as ``auto_slots`` says.
        keeps_slots: Whether a run must end where that many do not fit into a GPU's memory, instead
            of going on with half: the seed of a private run's noise takes in how many they are.
    """

    data_workers: int = Field(default=0, ge=0)
    slots: int | None = Field(default=None, ge=1)
    keeps_slots: bool = False


@dataclass(slots=True)
class _Client:
    """A client in its slot; without a next ``batch`` it has finished.

    ``batches`` are those still to come after ``batch``, of ``size`` examples; ``num_examples``
    counts each once, ``processed`` those that went through its ``steps``.
    """

    user: int
    num_examples: int
    batches: Iterator[Batch]
    batch: Batch | None = None
    size: int = 0
    steps: int = 0
    processed: int = 0

    def advance(self) -> None:
        """Look up the next batch."""
        self.batch = next(self.batches, None)
        self.size = 0 if self.batch is None else self.batch[0].shape[0]


class VectorizedEngine:
    """Trains clients in slots; equal to the sequential engine to rounding.

    A client's draws come from its own streams, named by (seed, round, user), as in the sequential
    engine; on a GPU dropout masks are drawn from them in another way. Clients begin in the order of
    their sizes, the largest first, and results come as clients finish. The model gives layers and
    shapes; its memory is not trained. With one slot no client has another beside it
    (``trains_alone``).
    """

    def __init__(
        self,
        options: Options,
        model: FlatModel,
        split: FederatedSplit,
        forward: Forward,
        local: LocalTraining,
        seed: int,
        notice: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._options = options
        self._model = model
        self._split = split
        self._forward = forward
        self._local = local
        self._seed = seed
        self._notice = notice
        self._slots = options.slots or slots_of(model, forward, split, local)
        self.description = f"vectorized, {self._slots} slots"
        self.trains_alone = self._slots == 1
        self._update = torch.empty_like(model.vector)
        self._start: Sequence[Tensor] = ()
        self._rate = 0.0
        self._graphs: StepGraphs | None = None
        # Of minibatch SGD, batches are of any size.
        self._repeats_shapes = model.device.type == "cuda" and local.batch_fraction is None
        if self._repeats_shapes:
            self._central = torch.empty_like(model.vector)
        self._weights: SlotWeights | None = None
        self._velocity: SlotWeights | None = None
        self._program: Program | None = None
        self._is_checked = False
        reason = unsupported(model)
        if reason is not None:
            notice(f"engine: {reason}; all layers go through torch.func.vmap")

    def train(
        self, users: NDArray[np.int64], round_index: int, central: Tensor
    ) -> Iterator[LocalResult]:
        """Train each user from ``central``, shape (P,); see ``Engine.train``.

        Results come as clients finish. An ``update`` is overwritten by the next: use it before
        asking for the next.
        """
        sizes = np.diff(self._split.offsets)[users]
        left = dict.fromkeys(users[np.argsort(-sizes, kind="stable")].tolist())
        while left:
            try:
                for result in self._train_slots(list(left), round_index, central):
                    del left[result.user]
                    yield result
            except RuntimeError as error:
                if self._slots == 1 or not is_out_of_memory(error):
                    raise
                if self._options.keeps_slots:
                    raise ConfigError(
                        f"federated.engine_lanes: out of memory in round {round_index} with "
                        f"{self._slots} slots, and the noise of a private run belongs to their "
                        f"number; set federated.engine_lanes={self._slots // 2} and begin in a new "
                        "folder with --out"
                    ) from None
                self._slots //= 2
            else:
                return
            # Behind the handler, which keeps what was in memory. Clients that were in a slot begin
            # anew: their draws are the same, and nothing of them was given out.
            self._weights = self._velocity = self._program = self._graphs = None
            if self._model.device.type == "cuda":
                torch.cuda.empty_cache()
            self._notice(
                f"engine: out of memory in round {round_index}; going on with {self._slots} slots "
                f"(set federated.engine_lanes={self._slots} to begin with so many)"
            )

    def _train_slots(
        self, users: Sequence[int], round_index: int, central: Tensor
    ) -> Iterator[LocalResult]:
        self._model.module.train()
        read = read_users(self._split, users, self._seed, round_index, self._options.data_workers)
        waiting = (self._begin(user, examples, round_index) for user, examples in read)
        if self._weights is None:
            self._weights = SlotWeights(self._model, self._slots)
            if self._local.momentum:
                self._velocity = SlotWeights(self._model, self._slots)
            self._program = build_program(self._model, self._forward, self._weights)
            device = self._model.device
            self._masks = SlotMasks(self._slots, device) if self._program.draws_masks else None
            self._losses = torch.zeros(self._slots, device=device)
            # Where the local rate follows a schedule, a graph of a round would not serve the next.
            has_graphs = self._repeats_shapes and self._local.schedule is None
            self._graphs = StepGraphs(self._notice) if has_graphs else None
        if self._repeats_shapes:
            central = self._central.copy_(central)
        weights, start = self._weights, self._weights.views(central)
        self._start, self._rate = start, self._local.rate(round_index)
        update = weights.views(self._update)
        clients: list[_Client] = []
        while True:
            while len(clients) < weights.slots and self._has_room(clients):
                client = next(waiting, None)
                if client is None:
                    break
                self._place(client, len(clients), round_index, start)
                clients.append(client)
            if not clients:
                return
            self._step(clients)
            for slot in range(len(clients) - 1, -1, -1):
                if clients[slot].batch is not None:
                    continue
                weights.update(slot, start, update)
                yield self._result(clients[slot], slot)
                following = next(waiting, None) if self._has_room(clients[:-1]) else None
                if following is not None:
                    self._place(following, slot, round_index, start)
                    clients[slot] = following
                    continue
                last = clients.pop()
                if slot < len(clients):
                    self._move(len(clients), slot)
                    clients[slot] = last

    def _begin(self, user: int, examples: Examples, round_index: int) -> _Client:
        rng = stream(self._seed, Purpose.LOCAL_TRAINING, round_index, user)
        batches = local_batches(examples, self._local, self._forward, rng, self._model.device)
        client = _Client(user, num_used(len(examples), self._local), batches)
        client.advance()
        return client

    def _place(self, client: _Client, slot: int, round_index: int, start: Sequence[Tensor]) -> None:
        assert self._weights is not None
        self._weights.load(slot, start)
        if self._velocity is not None:
            self._velocity.clear(slot)
        self._losses[slot].zero_()
        if self._masks is not None:
            seed = torch_seed(self._seed, Purpose.LOCAL_TRAINING, round_index, client.user)
            self._masks.begin(slot, seed)

    def _has_room(self, clients: Sequence[_Client]) -> bool:
        """Whether another client's batch, were it as large as these, is in proportion."""
        if self._local.batch_fraction is None or not clients:
            return True
        # Batches of minibatch SGD are of any size: no more slots than rows allow.
        largest = max(client.size for client in clients)
        return (len(clients) + 1) * largest <= self._slots * self._local.batch_size

    def _move(self, source: int, target: int) -> None:
        assert self._weights is not None
        self._weights.move(source, target)
        if self._velocity is not None:
            self._velocity.move(source, target)
        self._losses[target] = self._losses[source]
        if self._masks is not None:
            self._masks.move(source, target)

    def _step(self, clients: Sequence[_Client]) -> None:
        """Take a step in each slot, and look up its next batch."""
        assert self._weights is not None
        assert self._program is not None
        exact = slots, rows = len(clients), max(client.size for client in clients)
        if self._repeats_shapes:
            slots = min(_power_of_two(slots), self._slots)
            rows = min(_power_of_two(rows), max(rows, self._local.batch_size))
        batch = self._assemble(clients, slots, rows)
        if not self._is_checked:
            tried = batch if exact == (slots, rows) else self._assemble(clients, *exact)
            check(self._program, self._model, self._forward, self._weights, tried)
            for slot in range(len(clients)):
                self._weights.load(slot, self._start)
            self._is_checked = True
        if self._graphs is None:
            self._take(batch)
        else:
            self._graphs.step(batch, self._take)
        for client in clients:
            client.steps += 1
            client.processed += client.size
            client.advance()

    def _take(self, batch: StepBatch) -> None:
        """Take the step of a batch; see ``StepGraphs`` for what must stay as it is."""
        assert self._weights is not None
        assert self._program is not None
        slots = len(batch.sizes)
        losses, gradients = self._program.step(batch, self._masks)
        velocity = None if self._velocity is None else self._velocity.active(slots)
        with torch.no_grad():
            weights = self._weights.active(slots)
            descend(weights, gradients, self._start, self._local, self._rate, velocity)
        # Freed now, their memory serves the next step.
        del gradients
        self._losses[:slots] += losses

    def _assemble(self, clients: Sequence[_Client], slots: int, rows: int) -> StepBatch:
        """The batches of clients in as many slots, of as many rows each; the rest is padding."""
        sizes = [client.size for client in clients] + [0] * (slots - len(clients))
        batches = [client.batch for client in clients if client.batch is not None]
        inputs = _stack([batch[0] for batch in batches], slots, rows)
        targets = _stack([batch[1] for batch in batches], slots, rows)
        draws = None
        if batches[0][2] is not None:
            draws = _stack([batch[2] for batch in batches if batch[2] is not None], slots, rows)
        return StepBatch(inputs, targets, draws, self._shares(sizes, rows), sizes)

    def _shares(self, sizes: Sequence[int], rows: int) -> Tensor:
        device = self._model.device
        if min(sizes) == rows:
            return torch.full((len(sizes), rows), 1 / rows, device=device)
        shares = np.zeros((len(sizes), rows), np.float32)
        for slot, size in enumerate(sizes):
            shares[slot, :size] = 1 / max(size, 1)
        return torch.from_numpy(shares).to(device, non_blocking=True)

    def _result(self, client: _Client, slot: int) -> LocalResult:
        loss = self._losses[slot] / max(client.steps, 1)
        return LocalResult(
            client.user, self._update, client.num_examples, client.steps, loss, client.processed
        )


def _power_of_two(number: int) -> int:
    """The least power of two that is not below a positive number."""
    return 1 << (number - 1).bit_length()


def _stack(parts: Sequence[Tensor], slots: int, rows: int) -> Tensor:
    """Batches end to end, each padded to ``rows`` by its own first example; slots likewise."""
    pieces = []
    for part in parts:
        pieces.append(part)
        missing = rows - part.shape[0]
        if missing:
            pieces.append(part[:1].expand(missing, *part.shape[1:]))
    idle = (slots - len(parts)) * rows
    if idle:
        pieces.append(parts[0][:1].expand(idle, *parts[0].shape[1:]))
    try:
        return torch.cat(pieces)
    except RuntimeError:
        shapes = sorted({tuple(part.shape[1:]) for part in parts})
        if len(shapes) == 1:
            raise
        raise ConfigError(
            f"federated.engine: clients' examples differ in shape ({shapes[:4]}), and the "
            "vectorized engine puts them into one batch; use engine: sequential"
        ) from None


build = VectorizedEngine
