"""Assignment of a round's clients to shards, and the order in which shards' sums are added.

How clients are assigned and in which order sums are added depends on the round's users alone, not
on how many processes train them: float addition is not associative, and a private run's noise must
never stand beside two sums of one round that differ. So a run gives the same bits with one process
and with sixty-four.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pfl_bench.client.batches import examples_processed
from pfl_bench.types import LocalTraining
from privacy.aggregate import Aggregate

# At most so many processes can share a round out.
MAX_SHARDS = 64
# A shard costs one more addition of P elements, which two clients pay for; but a few processes
# are to have a shard each, however small the cohort.
_CLIENTS_PER_SHARD = 2
_MIN_SHARDS = 8


def num_shards(cohort_size: int) -> int:
    """Shards of a round: a power of two, about one for two clients of the expected cohort."""
    wanted = max(cohort_size // _CLIENTS_PER_SHARD, min(cohort_size, _MIN_SHARDS))
    return int(min(MAX_SHARDS, 1 << (wanted - 1).bit_length()))


def shards_of_rank(rank: int, size: int, shards: int) -> range:
    """The shards of one of ``size`` processes; none for one too many."""
    return range(rank * shards // size, (rank + 1) * shards // size)


def expected_costs(sizes: NDArray[np.int64], local: LocalTraining) -> NDArray[np.float64]:
    """Expected time of training clients of n ``sizes``, in examples: shape (n,), positive.

    A step costs its examples and half a batch more, for what does not depend on their number; a
    client, two batches more, to be read, reset and clipped.
    """
    batch = local.batch_size
    costs: NDArray[np.float64]
    if local.batch_fraction is not None:
        costs = np.ceil(sizes * local.batch_fraction) + 1.0
        return costs
    steps, _ = expected_work(sizes, local)
    # As if batches were whole where steps are limited: who shares a shard decides sums' last bits.
    most = np.inf if local.max_steps is None else steps * batch
    examples = np.minimum(sizes * local.epochs, most)
    costs = examples + steps * (batch / 2) + 2 * batch
    return costs


def expected_work(
    sizes: NDArray[np.int64], local: LocalTraining
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Steps of clients of n ``sizes`` in a round, and examples in all of them: shapes (n,)."""
    batch = local.batch_size
    examples = examples_processed(sizes, local)
    if local.batch_fraction is not None:
        return np.ones(len(sizes)), examples
    if local.batches_across_epochs:
        steps = np.ceil(sizes.astype(np.float64) * local.epochs / batch)
    else:
        steps = np.ceil(sizes / batch) * local.epochs
    if local.max_steps is not None:
        steps = np.minimum(steps, local.max_steps)
    return steps, examples


def assign_clients(
    users: NDArray[np.int64], costs: NDArray[np.float64], shards: int
) -> list[NDArray[np.int64]]:
    """Assign clients so that neighbouring shards, which one process trains, have equal costs.

    Between the halves of the shards first, then within each half, and so on: the most expensive
    client first, each to the side that has less so far for a shard. Then 2, 4, 8 or more processes
    with equally many shards have balanced costs, however skewed the clients' costs (shape (n,),
    positive) are. A shard may be empty; its users are in the order of ``users``.

    Source: Graham 1969, longest processing time first: at most 4/3 of the best possible time.
    """
    assigned = np.zeros(len(users), dtype=np.int64)
    waiting = [(np.argsort(-costs, kind="stable").tolist(), 0, shards)]
    while waiting:
        places, start, stop = waiting.pop()
        middle = (start + stop) // 2
        if middle == start:
            assigned[places] = start
            continue
        sides: tuple[list[int], list[int]] = ([], [])
        loads = [0.0, 0.0]
        for place in places:
            side = int(loads[0] > loads[1])
            sides[side].append(place)
            loads[side] += float(costs[place]) / ((middle - start), (stop - middle))[side]
        waiting += [(sides[0], start, middle), (sides[1], middle, stop)]
    return [users[assigned == shard] for shard in range(shards)]


@dataclass(slots=True)
class Node:
    """The sum of 2^level neighbouring shards, the first ``place * 2^level``; None without users."""

    level: int
    place: int
    aggregate: Aggregate | None


class PairwiseReduction:
    """Adds shards' sums pairwise, neighbours first, as soon as both are there.

    At most one sum a level waits, so that memory grows with the logarithm of the shards.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._free: list[Tensor] = []

    def push(self, node: Node) -> None:
        """Take in, and own, the shard or shards that follow those that are there."""
        while node.place % 2 and self.nodes and self.nodes[-1].level == node.level:
            left = self.nodes.pop()
            node = Node(node.level + 1, node.place // 2, self._add(left, node))
        self.nodes.append(node)

    def sum(self) -> Aggregate | None:
        """The sum of all shards, once the last was taken in; None if nobody was assigned.

        Shards that are a power of two have come to one node; others are added from the first on.
        """
        for node in self.nodes[1:]:
            first = self.nodes[0]
            self.nodes[0] = Node(first.level, first.place, self._add(first, node))
        del self.nodes[1:]
        return self.nodes[0].aggregate

    def hold(self, vector: Tensor) -> Tensor:
        """Copy a vector, shape (P,), that is about to go, into free memory if there is some."""
        if not self._free or self._free[-1].dtype != vector.dtype:
            return vector.clone()
        return self._free.pop().copy_(vector)

    def zeros(self, num_parameters: int, device: torch.device, cohort_size: int) -> Aggregate:
        """An empty aggregate, in memory that was used before where there is some."""
        if not self._free:
            return Aggregate.zeros(num_parameters, device, cohort_size)
        return Aggregate(self._free.pop().zero_())

    def clear(self) -> None:
        """Forget what is there, so that its memory serves the next round."""
        for node in self.nodes:
            if node.aggregate is not None:
                self._free.append(node.aggregate.total)
        self.nodes = []

    def _add(self, left: Node, right: Node) -> Aggregate | None:
        if left.aggregate is None or right.aggregate is None:
            return left.aggregate or right.aggregate
        left.aggregate.merge(right.aggregate)
        self._free.append(right.aggregate.total)
        return left.aggregate
