"""Messages between the lead of a run and its workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pfl_bench.client.machine import differences
from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.federated.cohort import CohortTraining, ShardResult
from pfl_bench.federated.parts import FederatedParts
from pfl_bench.federated.shards import (
    Node,
    PairwiseReduction,
    assign_clients,
    expected_costs,
    shards_of_rank,
)
from pfl_bench.profiling import phase
from pfl_bench.types import (
    ConfigError,
    RoundStatistics,
    UserInputError,
    WorkerError,
    WorkerGroup,
)
from privacy.aggregate import Aggregate
from privacy.errors import PrivacyError
from privacy.mechanism import NoiseScale


@dataclass(frozen=True)
class Begin:
    """Build what the run needs, for the model and data of these digests.

    ``noise`` is None for a run without a plan; ``seed`` is that of clients' own noise.
    """

    resolved: ResolvedConfig
    noise: NoiseScale | None
    seed: int
    model_digest: str
    data_checksum: str


@dataclass(frozen=True)
class Train:
    """Train a round's clients from the vector that comes along.

    Attributes:
        index: The round, from 1.
        shards: The users of each shard.
        probed: Which of the users, counted through the shards, is probed; -1 for none.
        clip_norm: The bound of the round; None without clipping.
    """

    index: int
    shards: list[NDArray[np.int64]]
    probed: int
    clip_norm: float | None

    def train(
        self, own: CohortTraining, rank: int, size: int, central: torch.Tensor
    ) -> list[ShardResult]:
        """Train the shards of one of the processes; see ``CohortTraining.train``."""
        mine = shards_of_rank(rank, size, len(self.shards))
        before = sum(len(shard) for shard in self.shards[: mine.start])
        shards = self.shards[mine.start : mine.stop]
        return own.train(shards, mine.start, self.index, central, self.probed - before)


@dataclass(frozen=True)
class Trained:
    """A rank's results of training: of its shards, and the nodes of its tree, without vectors."""

    results: list[ShardResult]
    nodes: list[Node]


@dataclass(frozen=True)
class Built:
    """A rank's answer when it has built what ``Begin`` asks for.

    The ``engine`` is described as far as it decides the rounding of results. Of private runs the
    ``identity`` is code, versions and processor (``pfl_bench.client.machine``).
    """

    engine: str
    identity: Mapping[str, Any] | None


def await_workers(group: WorkerGroup, own: Built) -> None:
    """Wait until all have built what ``Begin`` asks for; so what is wrong is said before round 1.

    A ConfigError where another trains by another engine; where, in a private run, it computes by
    other code, versions or instructions, which the seed of the noise does not cover; or where data
    or model are wrong there.
    """
    for rank in range(1, group.size):
        built: Built
        built, _ = group.receive(rank)
        theirs, engine = built.engine, own.engine
        if theirs != engine:
            raise ConfigError(
                f"federated.engine: process {rank} trains by '{theirs}', this one by '{engine}': "
                "their updates would differ in the last bits, as machines do, which a private "
                "run's noise belongs to; name the engine (and federated.engine_lanes), or take "
                "machines of one kind"
            )
        if own.identity is not None and built.identity is not None:
            changed = differences(own.identity, built.identity)
            if changed:
                raise ConfigError(
                    f"federated: process {rank} computes otherwise than this one "
                    f"({'; '.join(changed)}): the sums of a private run would have other last bits "
                    "than its seed says, beside the same noise; give all processes one version of "
                    "the code and its libraries, on machines of one kind"
                )


def bring(group: WorkerGroup, tree: PairwiseReduction, results: list[ShardResult]) -> None:
    """Bring the lead what it did not train itself; see ``SharedTraining``."""
    vectors = []
    nodes = []
    for node in tree.nodes:
        numbers = None
        if node.aggregate is not None:
            total, clipped = node.aggregate.total, node.aggregate.clipped_total
            # The sum before clients' own noise, of mechanisms that have one, comes second.
            vectors += [total] if clipped is None else [total, clipped]
            numbers = replace(node.aggregate, total=total[:0].clone(), clipped_total=None)
        nodes.append(Node(node.level, node.place, numbers))
    group.send(Trained(results, nodes), vectors)


class SharedTraining:
    """The lead's view of training: deals clients to all processes, and adds up what comes back."""

    def __init__(
        self, group: WorkerGroup, own: CohortTraining, parts: FederatedParts, shards: int
    ) -> None:
        self._group = group
        self._own = own
        self._sizes = np.diff(parts.split.offsets)
        self._local = parts.algorithm.local_training
        self._shards = shards
        self._cohort_size = parts.options.cohort_size

    def train(
        self, users: NDArray[np.int64], index: int, central: torch.Tensor, probed: int
    ) -> tuple[Aggregate, RoundStatistics]:
        """Train a round's users; the sum of what they sent is valid until the next round.

        ``central`` has shape (P,). Of the users, counted through the shards, one is ``probed``; -1
        for none.
        """
        aggregator, tree = self._own.aggregator, self._own.tree
        shards = assign_clients(
            users, expected_costs(self._sizes[users], self._local), self._shards
        )
        message = Train(index, shards, probed, aggregator.mechanism.clip_norm)
        self._group.broadcast(message, central)
        results = message.train(self._own, 0, self._group.size, central)
        for rank in range(1, self._group.size):
            part: Trained
            with phase("waiting for processes"):
                part, vectors = self._group.receive(rank)
            results += part.results
            with phase("aggregation"):
                self._take_sums(part.nodes, vectors)
        counted = RoundStatistics()
        for result in results:
            counted.merge(result.counted)
        aggregate = tree.sum()
        if aggregate is None:
            aggregate = tree.zeros(central.numel(), central.device, self._cohort_size)
        if aggregator.observer is not None:
            seen = [result.seen for result in results if result.seen is not None]
            aggregator.observer.merge(seen, aggregate)
        return aggregate, counted

    def _take_sums(self, nodes: Sequence[Node], vectors: Iterator[torch.Tensor]) -> None:
        tree = self._own.tree
        for node in nodes:
            if node.aggregate is not None:
                node.aggregate.total = tree.hold(next(vectors))
                if self._own.aggregator.mechanism.description.randomizes_clients:
                    node.aggregate.clipped_total = next(vectors).clone()
            tree.push(node)


class Failure:
    """Answer of a rank that cannot go on: the user's error as it is, one of ours with its rank."""

    def __init__(self, rank: int, error: Exception) -> None:
        if not isinstance(error, (UserInputError, PrivacyError)):
            # In words: not every exception can be pickled, nor made again from what was.
            error = WorkerError(
                f"rank {rank} of the run stopped with {type(error).__name__}: {error}; the run can "
                "be resumed with --resume"
            )
        self.error = error
