"""Clients that a row asks for, and the assignment of a split's examples to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from pfl_bench.types import ConfigError
from tasks.common.options import StrictOptions
from tasks.common.partition import rules

NumClients = Annotated[int, Field(ge=1, le=100_000)]
Alpha = Annotated[float, Field(gt=0, le=1e9)]
Seed = Annotated[int, Field(ge=0)]


class Iid(StrictOptions):
    """Examples in random order, in equal parts.

    Attributes:
        kind: "iid".
        num_clients: Clients.
        seed: Seed of the partition; the run's seed has no part in it.
    """

    kind: Literal["iid"]
    num_clients: NumClients
    seed: Seed = 42


class Dirichlet(StrictOptions):
    """Each class divided by proportions of a Dirichlet distribution.

    Attributes:
        kind: "dirichlet".
        num_clients: Clients, each with at least 10 examples.
        alpha: Parameter of the distribution; small values give clients of few classes.
        seed: Seed of the partition.
    """

    kind: Literal["dirichlet"]
    num_clients: NumClients
    alpha: Alpha
    seed: Seed = 42


class Labels(StrictOptions):
    """Each client has examples of a few classes alone.

    Attributes:
        kind: "labels".
        num_clients: Clients.
        labels_per_client: Classes of a client.
        seed: Seed of the partition.
    """

    kind: Literal["labels"]
    num_clients: NumClients
    labels_per_client: Annotated[int, Field(ge=1)]
    seed: Seed = 42


class Quantity(StrictOptions):
    """Examples in random order, in parts of unequal sizes.

    Attributes:
        kind: "quantity".
        num_clients: Clients, each with at least 10 examples.
        alpha: Parameter of the Dirichlet distribution of the sizes.
        seed: Seed of the partition.
    """

    kind: Literal["quantity"]
    num_clients: NumClients
    alpha: Alpha
    seed: Seed = 42


class FeatureNoise(StrictOptions):
    """As "iid"; the inputs of client i of N, from 1, have Gaussian noise, drawn once.

    Attributes:
        kind: "feature_noise".
        num_clients: Clients, N.
        level: Standard deviation of client N's noise; client i's is i / N of it. Inputs are in
            0 to 1, and are not cut off there.
        seed: Seed of the partition and of the noise.
    """

    kind: Literal["feature_noise"]
    num_clients: NumClients
    level: Annotated[float, Field(ge=0, le=1e6)]
    seed: Seed = 42


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


def assign(
    options: Iid | Dirichlet | Labels | Quantity | FeatureNoise, labels: NDArray[np.int64]
) -> Assignment:
    """Assign examples to artificial clients; refused if a client or class would get none.

    ``labels``, shape (n,), are the examples' classes in their published order.
    """
    rng, number = np.random.default_rng(options.seed), options.num_clients
    if isinstance(options, Dirichlet):
        clients = rules.dirichlet(labels, number, options.alpha, rng)
    elif isinstance(options, Labels):
        clients = rules.labels_per_client(labels, number, options.labels_per_client, rng)
    elif isinstance(options, Quantity):
        clients = rules.quantity(labels, number, options.alpha, rng)
    else:
        clients = rules.iid(labels, number, rng)
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
