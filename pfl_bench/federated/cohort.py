"""From a round's clients to the sums of their updates: what each process of a run does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from pfl_bench.client.costs import BYTES_PER_PARAMETER
from pfl_bench.federated.parts import FederatedParts
from pfl_bench.federated.shards import Node, PairwiseReduction
from pfl_bench.federated.state_watch import ClientWatch
from pfl_bench.profiling import phase, timed
from pfl_bench.rng import Purpose, stream
from pfl_bench.types import (
    ClientUpload,
    ConfigError,
    Engine,
    LocalResult,
    PluginError,
    RoundStatistics,
    is_of_user,
    place_of,
    returned,
)
from privacy.aggregate import Aggregate
from privacy.clipping import ClipOutcome
from privacy.errors import PlanError
from privacy.mechanism import Mechanism, MovesBound
from privacy.recording.observation import Observer
from privacy.recording.shard_observation import ShardObservation

if TYPE_CHECKING:
    from pfl_bench.federated.personal import PersonalTraining


class UpdateAggregator:
    """Takes clients' updates into the sum, by a mechanism and under an observer's eyes.

    ``seed`` is the private one, of which clients' own noise is drawn. Runs without a plan have no
    observer.
    """

    def __init__(self, mechanism: Mechanism, seed: int, observer: Observer | None) -> None:
        self.mechanism = mechanism
        self.observer = observer
        self._seed = seed

    def add(
        self, aggregate: Aggregate, update: torch.Tensor, weight: float, index: int, client: int
    ) -> ClipOutcome:
        """Add the update, shape (P,), of a user in a round, from 1, to the sum in place.

        Canaries are numbered behind all users.
        """
        if self.observer is None:
            return self.mechanism.accumulate(aggregate, update, weight)
        clip_norm = self.mechanism.clip_norm
        self.observer.before(aggregate, update)
        outcome = self.mechanism.accumulate(
            aggregate, update, weight, self._client_noise(index, client)
        )
        # The mechanism none clips nothing.
        self.observer.after(aggregate, math.inf if clip_norm is None else clip_norm)
        return outcome

    def _client_noise(self, index: int, client: int) -> np.random.Generator | None:
        if not self.mechanism.description.randomizes_clients:
            return None
        return stream(self._seed, Purpose.CLIENT_NOISE, index, client)


@dataclass(slots=True)
class ShardResult:
    """Statistics of a trained shard without its sum; and what the observer saw, if there is one."""

    counted: RoundStatistics
    seen: ShardObservation | None


class CohortTraining:
    """Trains shards of clients and sums what they send; a process that ``is_alone`` trains all."""

    def __init__(
        self, parts: FederatedParts, engine: Engine, aggregator: UpdateAggregator, is_alone: bool
    ) -> None:
        self._transforms = list(parts.transforms.values())
        self._named = ", ".join(parts.name_of(key) for key in parts.transforms)
        resizes = any(transform.expected_bytes is not None for transform in self._transforms)
        if aggregator.mechanism.description.randomizes_clients and resizes:
            raise ConfigError(
                f"federated.compression: under the mechanism {aggregator.mechanism.name} clients "
                "add noise to what they send, which fills a compressed update again; leave "
                "compression out, or choose a mechanism whose noise the centre adds, such as "
                "gaussian"
            )
        self.aggregator = aggregator
        self.tree = PairwiseReduction()
        self._model = parts.model
        self._engine = engine
        self._options = parts.options
        self._fixed = parts.model.fixed()
        self._personal: PersonalTraining | None = None
        if parts.algorithm.personal_training is not None:
            from pfl_bench.federated.personal import PersonalTraining

            self._personal = PersonalTraining(parts)
        self._watch = _client_watch(parts, aggregator.mechanism, is_alone)

    def train(
        self,
        shards: Sequence[NDArray[np.int64]],
        first: int,
        index: int,
        central: torch.Tensor,
        probed: int,
    ) -> list[ShardResult]:
        """Train neighbouring shards from the central parameters; ``tree`` then has their sums.

        Args:
            shards: Indices into the training split.
            first: Number of the first of them among the round's shards.
            index: The round, from 1.
            central: Shape (P,).
            probed: Which of the clients, counted through these shards, is probed where not all are;
                negative or too large for none.
        """
        self.tree.clear()
        self._watch.begin()
        results = []
        # Read at the end: the host waits for a GPU once, and not for each shard.
        losses = torch.zeros(len(shards), device=self._model.device)
        for place, users in enumerate(shards, start=first):
            result, aggregate = ShardResult(RoundStatistics(), None), None
            if len(users):
                model = self._model
                aggregate = self.tree.zeros(
                    model.num_parameters, model.device, self._options.cohort_size
                )
                loss = losses[place - first]
                result = self._train_shard(users, index, central, aggregate, probed, loss)
            probed -= len(users)
            results.append(result)
            with phase("aggregation"):
                self.tree.push(Node(0, place, aggregate))
        self._check_fixed()
        self._watch.check()
        for result, loss in zip(results, losses.tolist(), strict=True):
            result.counted.loss = loss
        observer = self.aggregator.observer
        if observer is not None:
            watched = [result for result in results if result.seen is not None]
            seen = observer.settle(result.seen for result in watched if result.seen is not None)
            for result, settled in zip(watched, seen, strict=True):
                result.seen = settled
        return results

    def _train_shard(
        self,
        users: NDArray[np.int64],
        index: int,
        central: torch.Tensor,
        aggregate: Aggregate,
        probed: int,
        loss: torch.Tensor,
    ) -> ShardResult:
        """Train a shard into its sum; its clients' losses are added to ``loss``, a scalar."""
        observer = self.aggregator.observer
        if observer is not None:
            observer.begin(probed)
        counted = RoundStatistics()
        for result in timed("local training", self._engine.train(users, index, central)):
            counted.steps += result.num_steps
            counted.processed += result.num_processed
            upload = self._outgoing(result, index)
            counted.bytes_up += upload.num_bytes
            counted.users.append(result.user)
            if self._options.selection is not None:
                counted.clients.append((result.user, float(result.loss), result.num_examples))
            with phase("clipping"):
                outcome = self.aggregator.add(
                    aggregate, upload.update, upload.weight, index, result.user
                )
            outcome = returned(self.aggregator.mechanism, "accumulate", outcome, ClipOutcome)
            if outcome.finite:
                loss += result.loss
                counted.num_examples += result.num_examples
                counted.num_steps += result.num_steps
                counted.weight += upload.weight
                counted.scalar += upload.weight * upload.scalar
            else:
                counted.lost.append(result.user)
        if self._personal is not None:
            for own in timed("personal training", self._personal.train(users, index, central)):
                counted.steps += own.num_steps
                counted.processed += own.num_processed
        return ShardResult(counted, None if observer is None else observer.seen(aggregate))

    def _outgoing(self, result: LocalResult, index: int) -> ClientUpload:
        by_examples = self._options.weighting == "examples"
        weight = float(result.num_examples) if by_examples else 1.0
        size = float(result.update.numel() * BYTES_PER_PARAMETER)
        upload = ClientUpload(result.update, weight, size)
        for transform in self._transforms:
            # Of ours, the largest finite updates may overflow, and are left out then.
            is_watched = is_of_user(type(transform)) and _is_finite(upload.update)
            upload = transform.send(upload, result, index)
            if is_watched and not _is_finite(upload.update):
                method = "compress" if hasattr(transform, "compress") else "send"
                raise PluginError(
                    f"{place_of(transform, method)} makes NaN or infinity of a client's finite "
                    "update, but must send finite numbers; look for a division by zero, such as "
                    "by the norm of an update that is zero"
                )
        if self.aggregator.mechanism.is_private and (upload.weight, upload.scalar) != (weight, 0.0):
            raise PlanError(
                f"{self._named}: a client sends the weight {upload.weight:g} and the scalar "
                f"{upload.scalar:g} beside its update, and in a private run nothing clips or "
                "noises these: leave the weight at 1 and the scalar at 0 (of FedNova, set "
                "effective_steps), or remove the section 'privacy'"
            )
        return upload

    def _check_fixed(self) -> None:
        """Refuse a model whose buffers or frozen weights training moves: no update carries them.

        Nothing of the round has been released when this is called.
        """
        moved = self._model.moved(self._fixed)
        if moved is not None:
            raise ConfigError(
                f"model: training changed its {moved}, which would leave the clients "
                "outside the update, neither averaged nor protected; use layers without "
                "running statistics, such as GroupNorm"
            )


def _client_watch(parts: FederatedParts, mechanism: Mechanism, is_alone: bool) -> ClientWatch:
    """Watch what clients' updates go through: of several processes, and of a private run."""
    transforms = {parts.name_of(key): part for key, part in parts.transforms.items()}
    # Its transform has its name.
    clients = {**transforms, f"{parts.name_of('algorithm')} itself": parts.algorithm}
    private = f"privacy.mechanism '{mechanism.name}'"
    label = private if mechanism.is_private else parts.name_of("aggregation")
    summing = {label: mechanism} if is_of_user(type(mechanism).accumulate) else {}
    if is_alone:
        return ClientWatch(
            clients | summing if mechanism.is_private else {},
            {},
            "so that what a client sends may rest on other clients, or on rounds before, which no "
            "mechanism covers; let it keep nothing, or remove the section 'privacy'",
        )
    return ClientWatch(
        clients | summing,
        transforms | ({} if isinstance(mechanism, MovesBound) else summing),
        "which the other processes of the run do not see: their clients would go on with another "
        "value; set federated.workers: 1 (and in a transform keeps_state to True, so that auto "
        "takes one process)",
    )


def _is_finite(vector: torch.Tensor) -> bool:
    return bool(vector.isfinite().all())
