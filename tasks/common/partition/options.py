"""Clients that a row asks for, and the assignment of a split's examples to them.

Each rule takes the examples' labels in their published order and a generator. It draws in the order
of the published code, so that ``numpy.random.default_rng(seed)`` gives the published clients.

Source: Li, Diao, Chen and He 2022, "Federated Learning on Non-IID Data Silos" (NIID-Bench), in the
    draws of Flower's baseline ``niid_bench``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from pfl_bench.types import ConfigError
from tasks.common.options import StrictOptions

Indices = NDArray[np.int64]

# A client with fewer is drawn again, with all others: NIID-Bench's bound.
FEWEST = 10
_MOST_TRIES = 200


def iid(labels: Indices, num_clients: int, rng: np.random.Generator) -> list[Indices]:
    """Shuffle all examples and cut them into parts that differ by one example at most."""
    shuffled = rng.choice(len(labels), len(labels), replace=False)
    return np.array_split(shuffled, num_clients)


def dirichlet(
    labels: Indices, num_clients: int, alpha: float, rng: np.random.Generator
) -> list[Indices]:
    """Divide each class by proportions of a symmetric Dirichlet distribution.

    Of a client that has its equal part of all examples, the proportion is set to zero. All is drawn
    again until each client has ``FEWEST`` examples.

    Small values of ``alpha``, which is above 0, give clients of few classes.
    """
    full = len(labels) / num_clients
    for _ in range(_tries(labels, num_clients)):
        clients: list[list[Indices]] = [[] for _ in range(num_clients)]
        counts = np.zeros(num_clients, dtype=np.int64)
        for label in np.unique(labels):
            members = np.flatnonzero(labels == label)
            rng.shuffle(members)
            parts = rng.dirichlet(np.repeat(alpha, num_clients)) * (counts < full)
            if parts.sum() == 0:  # a small alpha rounds the proportions of all others to zero
                break
            for client, indices in enumerate(_cut(members, parts / parts.sum())):
                clients[client].append(indices)
                counts[client] += len(indices)
        else:
            if counts.min() >= FEWEST:
                return [np.concatenate(indices) for indices in clients]
    raise _too_few("dirichlet", len(labels), num_clients, alpha)


def labels_per_client(
    labels: Indices, num_clients: int, labels_each: int, rng: np.random.Generator
) -> list[Indices]:
    """Give each client examples of ``labels_each`` classes alone.

    Client i has class i modulo the number of classes; its others are drawn. A class is divided
    equally among the clients that have it.
    """
    num_classes = len(np.unique(labels))
    if labels_each > num_classes:
        raise ConfigError(
            f"task.partition.labels_per_client: {labels_each}, but the data have {num_classes} "
            "classes; choose that many at most"
        )
    owned: list[list[int]] = []
    for client in range(num_clients):
        own = [client % num_classes]
        while len(own) < labels_each:
            drawn = int(rng.choice(num_classes, 1)[0])
            if drawn not in own:
                own.append(drawn)
        owned.append(own)
    clients: list[list[Indices]] = [[] for _ in range(num_clients)]
    for label in range(num_classes):
        owners = [client for client, own in enumerate(owned) if label in own]
        if not owners:
            raise ConfigError(
                f"task.partition: none of {num_clients} clients has class {label}, whose examples "
                f"would be lost; take {num_classes} clients or more, or another seed"
            )
        members = np.flatnonzero(labels == label)
        rng.shuffle(members)
        for client, indices in zip(owners, np.array_split(members, len(owners)), strict=True):
            clients[client].append(indices)
    return [np.concatenate(indices) for indices in clients]


def quantity(
    labels: Indices, num_clients: int, alpha: float, rng: np.random.Generator
) -> list[Indices]:
    """Shuffle all examples and cut them by proportions of a symmetric Dirichlet distribution.

    The proportions are drawn again until each client has ``FEWEST`` examples.

    Small values of ``alpha``, which is above 0, give unequal sizes.
    """
    shuffled = rng.permutation(len(labels))
    for _ in range(_tries(labels, num_clients)):
        clients = _cut(shuffled, rng.dirichlet(np.repeat(alpha, num_clients)))
        if min(map(len, clients)) >= FEWEST:
            return clients
    raise _too_few("quantity", len(labels), num_clients, alpha)


def _tries(labels: Indices, num_clients: int) -> int:
    """Number of draws: none where there are too few examples for so many clients."""
    return _MOST_TRIES if len(labels) >= num_clients * FEWEST else 0


def _cut(indices: Indices, parts: NDArray[np.float64]) -> list[Indices]:
    """Cut where the sums of ``parts``, which add up to 1, say."""
    return np.split(indices, (np.cumsum(parts) * len(indices)).astype(int)[:-1])


def _too_few(kind: str, num_examples: int, num_clients: int, alpha: float) -> ConfigError:
    return ConfigError(
        f"task.partition: {_MOST_TRIES} tries of kind {kind} with alpha = {alpha:g} gave some of "
        f"{num_clients} clients fewer than {FEWEST} of {num_examples} examples; take fewer clients "
        "or a larger alpha"
    )


NumClients = Annotated[int, Field(ge=1, le=100_000)]
Alpha = Annotated[float, Field(gt=0, le=1e9)]
Seed = Annotated[int, Field(ge=0)]


class Artificial(StrictOptions):
    """Clients that a rule makes.

    Attributes:
        kind: Name of the rule.
        num_clients: Clients.
        seed: Seed of the partition; the run's seed has no part in it.
    """

    kind: str
    num_clients: NumClients
    seed: Seed = 42


class Iid(Artificial):
    """Examples in random order, in equal parts.

    Attributes:
        kind: "iid".
    """

    kind: Literal["iid"]


class Dirichlet(Artificial):
    """Each class divided by proportions of a Dirichlet distribution; clients have 10 or more.

    Attributes:
        kind: "dirichlet".
        alpha: Parameter of the distribution; small values give clients of few classes.
    """

    kind: Literal["dirichlet"]
    alpha: Alpha


class Labels(Artificial):
    """Each client has examples of a few classes alone.

    Attributes:
        kind: "labels".
        labels_per_client: Classes of a client.
    """

    kind: Literal["labels"]
    labels_per_client: Annotated[int, Field(ge=1)]


class Quantity(Artificial):
    """Examples in random order, in parts of unequal sizes; clients have 10 or more.

    Attributes:
        kind: "quantity".
        alpha: Parameter of the Dirichlet distribution of the sizes.
    """

    kind: Literal["quantity"]
    alpha: Alpha


class FeatureNoise(Artificial):
    """As "iid"; the inputs of client i of N, from 1, have Gaussian noise, drawn once by the seed.

    Attributes:
        kind: "feature_noise".
        level: Standard deviation of client N's noise; client i's is i / N of it. Inputs are in
            0 to 1, and are not cut off there.
    """

    kind: Literal["feature_noise"]
    level: Annotated[float, Field(ge=0, le=1e6)]


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
    rng, number = np.random.default_rng(options.seed), options.num_clients
    if isinstance(options, Dirichlet):
        clients = dirichlet(labels, number, options.alpha, rng)
    elif isinstance(options, Labels):
        clients = labels_per_client(labels, number, options.labels_per_client, rng)
    elif isinstance(options, Quantity):
        clients = quantity(labels, number, options.alpha, rng)
    else:
        clients = iid(labels, number, rng)
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
