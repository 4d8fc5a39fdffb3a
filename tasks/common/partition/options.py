"""Clients that a row asks for, and the assignment of a split's examples to them.

Each rule takes the examples' labels in their published order and a generator. It draws in the order
of the published code, so that the same generator gives the published clients.

Source: Li, Diao, Chen and He 2022, "Federated Learning on Non-IID Data Silos" (NIID-Bench), in the
    draws of Flower's baseline ``niid_bench``, whose first version draws by ``RandomState`` (commit
    91ba57f), and the last by ``default_rng`` (4facb3f).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from pfl_bench.types import ConfigError
from tasks.common.options import StrictOptions

Indices = NDArray[np.int64]
Draws = np.random.Generator | np.random.RandomState
_MOST_OF_RANDOM_STATE = 2**32 - 1

# A client with fewer is drawn again, with all others: NIID-Bench's bound.
FEWEST = 10
_MOST_TRIES = 200


def _cut(indices: Indices, parts: NDArray[np.float64]) -> list[Indices]:
    """Cut where the sums of ``parts``, which add up to 1, say."""
    return np.split(indices, (np.cumsum(parts) * len(indices)).astype(int)[:-1])


class Artificial(StrictOptions):
    """Clients that a rule makes.

    Attributes:
        kind: Name of the rule.
        num_clients: Clients.
        seed: Seed of the partition; the run's seed has no part in it.
        generator: The generator of NumPy that draws: "default_rng", or the older "random_state",
            whose seeds have 32 bits.
    """

    kind: str
    num_clients: int = Field(ge=1, le=100_000)
    seed: int = Field(default=42, ge=0)
    generator: Literal["default_rng", "random_state"] = "default_rng"

    @model_validator(mode="after")
    def _check_seed(self) -> Self:
        if self.generator == "random_state" and self.seed > _MOST_OF_RANDOM_STATE:
            raise ValueError(
                f"seed: {self.seed} is more than random_state takes; give {_MOST_OF_RANDOM_STATE} "
                "at most"
            )
        return self

    def draws(self) -> Draws:
        """The seeded generator."""
        if self.generator == "random_state":
            return np.random.RandomState(self.seed)
        return np.random.default_rng(self.seed)

    def divide(self, labels: Indices, rng: Draws) -> list[Indices]:
        """Examples of each client; here all shuffled, in parts that differ by one at most.

        ``labels``, shape (n,), are those of the examples in their published order.
        """
        return np.array_split(rng.choice(len(labels), len(labels), replace=False), self.num_clients)


class Iid(Artificial):
    """Examples in random order, in equal parts.

    Attributes:
        kind: "iid".
    """

    kind: Literal["iid"]


class Proportional(Artificial):
    """Clients by proportions that a symmetric Dirichlet distribution gives, drawn again and again.

    Attributes:
        alpha: Parameter of the distribution, above 0.
    """

    alpha: float = Field(gt=0, le=1e9)

    def _proportions(self, rng: Draws) -> NDArray[np.float64]:
        return rng.dirichlet(np.repeat(self.alpha, self.num_clients))

    def _tries(self, labels: Indices) -> range:
        """Draws: none where there are too few examples for so many clients."""
        return range(_MOST_TRIES if len(labels) >= self.num_clients * FEWEST else 0)

    def _too_few(self, labels: Indices) -> ConfigError:
        return ConfigError(
            f"task.partition: {_MOST_TRIES} tries of kind {self.kind} with alpha = {self.alpha:g} "
            f"gave some of {self.num_clients} clients fewer than {FEWEST} of {len(labels)} "
            "examples; take fewer clients or a larger alpha"
        )


class Dirichlet(Proportional):
    """Each class divided by proportions of a Dirichlet distribution; clients have 10 or more.

    Attributes:
        kind: "dirichlet".
        alpha: Parameter of the distribution; small values give clients of few classes.
    """

    kind: Literal["dirichlet"]

    def divide(self, labels: Indices, rng: Draws) -> list[Indices]:
        """Divide each class; of a client that has its equal part, the proportion becomes zero."""
        full = len(labels) / self.num_clients
        for _ in self._tries(labels):
            clients: list[list[Indices]] = [[] for _ in range(self.num_clients)]
            counts = np.zeros(self.num_clients, dtype=np.int64)
            for label in np.unique(labels):
                members = np.flatnonzero(labels == label)
                rng.shuffle(members)
                parts = self._proportions(rng) * (counts < full)
                if parts.sum() == 0:  # a small alpha rounds the proportions of all others to zero
                    break
                for client, indices in enumerate(_cut(members, parts / parts.sum())):
                    clients[client].append(indices)
                    counts[client] += len(indices)
            else:
                if counts.min() >= FEWEST:
                    return [np.concatenate(indices) for indices in clients]
        raise self._too_few(labels)


class Labels(Artificial):
    """Each client has examples of a few classes alone.

    Attributes:
        kind: "labels".
        labels_per_client: Classes of a client.
    """

    kind: Literal["labels"]
    labels_per_client: int = Field(ge=1)

    def divide(self, labels: Indices, rng: Draws) -> list[Indices]:
        """Give client i class i modulo the number of classes, and others that are drawn.

        A class is divided equally among the clients that have it.
        """
        num_classes = len(np.unique(labels))
        if self.labels_per_client > num_classes:
            raise ConfigError(
                f"task.partition.labels_per_client: {self.labels_per_client}, but the data have "
                f"{num_classes} classes; choose that many at most"
            )
        owned: list[list[int]] = []
        for client in range(self.num_clients):
            own = [client % num_classes]
            while len(own) < self.labels_per_client:
                drawn = int(rng.choice(num_classes, 1)[0])
                if drawn not in own:
                    own.append(drawn)
            owned.append(own)
        clients: list[list[Indices]] = [[] for _ in range(self.num_clients)]
        for label in range(num_classes):
            owners = [client for client, own in enumerate(owned) if label in own]
            if not owners:
                raise ConfigError(
                    f"task.partition: none of {self.num_clients} clients has class {label}, whose "
                    f"examples would be lost; take {num_classes} clients or more, or another seed"
                )
            members = np.flatnonzero(labels == label)
            rng.shuffle(members)
            for client, indices in zip(owners, np.array_split(members, len(owners)), strict=True):
                clients[client].append(indices)
        return [np.concatenate(indices) for indices in clients]


class Quantity(Proportional):
    """Examples in random order, in parts of unequal sizes; clients have 10 or more.

    Attributes:
        kind: "quantity".
        alpha: Parameter of the Dirichlet distribution of the sizes.
    """

    kind: Literal["quantity"]

    def divide(self, labels: Indices, rng: Draws) -> list[Indices]:
        """Shuffle all examples and cut them; small values of ``alpha`` give unequal sizes."""
        shuffled = rng.permutation(len(labels))
        for _ in self._tries(labels):
            clients = _cut(shuffled, self._proportions(rng))
            if min(map(len, clients)) >= FEWEST:
                return clients
        raise self._too_few(labels)


class FeatureNoise(Artificial):
    """As "iid"; the inputs of client i of N, from 1, have Gaussian noise, drawn once by the seed.

    Attributes:
        kind: "feature_noise".
        level: Standard deviation of client N's noise; client i's is i / N of it. Inputs are in
            0 to 1, and are not cut off there.
    """

    kind: Literal["feature_noise"]
    level: float = Field(ge=0, le=1e6)


class Writers(StrictOptions):
    """Each client is the person who wrote its examples.

    Attributes:
        kind: "writers".
    """

    kind: Literal["writers"]


PartitionOptions = Annotated[
    Iid | Dirichlet | Labels | Quantity | FeatureNoise | Writers, Field(discriminator="kind")
]


@dataclass(frozen=True, slots=True)
class Assignment:
    """Examples of each client.

    Attributes:
        order: Shape (n,): the examples of the first client, then those of the second, and so on.
        offsets: Shape (U + 1,): client u has ``order[offsets[u]:offsets[u + 1]]``.
        client_ids: The clients' U names.
    """

    order: NDArray[np.int64]
    offsets: NDArray[np.int64]
    client_ids: list[str]

    @classmethod
    def of(cls, clients: list[NDArray[np.int64]], client_ids: list[str]) -> Assignment:
        """From each client's examples and name."""
        offsets = np.cumsum([0, *map(len, clients)]).astype(np.int64)
        return cls(np.concatenate(clients).astype(np.int64), offsets, client_ids)


def assign(options: Artificial, labels: NDArray[np.int64]) -> Assignment:
    """Assign examples to artificial clients; refused if a client or class would get none.

    ``labels``, shape (n,), are the examples' classes in their published order.
    """
    number = options.num_clients
    clients = options.divide(labels, options.draws())
    empty = next((client for client, indices in enumerate(clients) if not len(indices)), None)
    if empty is not None:
        raise ConfigError(
            f"task.partition.num_clients: client {empty} of {number} would have none of the "
            f"{len(labels)} examples; take fewer clients"
        )
    digits = len(str(number - 1))
    return Assignment.of(clients, [f"client-{client:0{digits}d}" for client in range(number)])


def by_writer(writers: NDArray[np.int64], chosen: NDArray[np.int64]) -> Assignment:
    """Make each of the chosen writers a client; ``writers``, shape (n,), says who wrote what."""
    own = np.sort(chosen)
    clients = [np.flatnonzero(writers == writer) for writer in own]
    return Assignment.of(clients, [f"writer-{writer:04d}" for writer in own])


def pooled(num_examples: int, name: str) -> Assignment:
    """Give all examples, in their order, to one client of that name."""
    return Assignment.of([np.arange(num_examples, dtype=np.int64)], [name])
