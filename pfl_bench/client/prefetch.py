"""Reading ahead of training in threads, in order, with bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from pfl_bench.data.threads import map_in_order
from pfl_bench.profiling import phase
from pfl_bench.rng import Purpose, stream
from pfl_bench.types import Examples, FederatedSplit

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A batch, or the part of one that fits the memory, as it was read.

    Attributes:
        step: The optimizer step that it is of, counted from 0 within the epoch.
        size: Its examples.
        is_last: Whether the step is complete with it.
        examples: None for an empty batch, which Poisson sampling may draw.
        draws: Its augmentation; None without one.
    """

    step: int
    size: int
    is_last: bool
    examples: Examples | None
    draws: Tensor | None

    def to(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor | None]:
        """Inputs, targets and draws on a device, of shape (n, ...) each; an empty one has none."""
        assert self.examples is not None, "an empty one has no examples"
        inputs = self.examples.inputs.to(device, non_blocking=True)
        targets = self.examples.targets.to(device, non_blocking=True)
        draws = None if self.draws is None else self.draws.to(device, non_blocking=True)
        return inputs, targets, draws


def prefetch(jobs: Iterable[Callable[[], T]], workers: int) -> Iterator[T]:
    """Run jobs ahead of their use in some threads, or in line for 0: their results, in order.

    Jobs are taken from the iterable in the caller's thread. At most 2 * workers + 1 results wait.
    """
    if workers == 0:
        for job in jobs:
            yield job()
        return
    pool = ThreadPoolExecutor(workers, thread_name_prefix="read-ahead")
    # Reading further ahead would hold more data in memory and gain nothing.
    with closing(map_in_order(lambda job: job(), jobs, pool, 2 * workers + 1)) as done:
        for _, result in done:
            yield result


def read_users(
    split: FederatedSplit, users: Iterable[int], seed: int, round_index: int, workers: int
) -> Iterator[tuple[int, Examples]]:
    """Read the examples of users for a round, each with the user, by ``prefetch``."""

    def read(user: int) -> tuple[int, Examples]:
        rng = stream(seed, Purpose.AUGMENTATION, round_index, user)
        with phase("decoding"):
            return user, split.read_user(user, rng)

    return prefetch((partial(read, user) for user in users), workers)
