"""Partitions of flwr-datasets beside ours, example by example, on generated labels.

    python -m venv .venv-peers && .venv-peers/bin/pip install . flwr-datasets
    .venv-peers/bin/python scripts/peers/partitions.py

Nothing is downloaded. "shuffled" is the order in which ``FederatedDataset`` gives examples to a
partitioner unless told otherwise: ``Dataset.shuffle(seed=42)``.
"""

from __future__ import annotations

import datasets
import numpy as np
from flwr_datasets import partitioner as theirs
from pydantic import TypeAdapter

from tasks.common.partition.options import Assignment, PartitionOptions, assign, by_writer

EXAMPLES, CLASSES, CLIENTS, SEED = 6_000, 10, 20, 42
RNG = np.random.default_rng(3)
LABELS = RNG.integers(0, CLASSES, EXAMPLES)
WRITERS = RNG.integers(0, 50, EXAMPLES)
Clients = list[list[int]]


def of_theirs(partitioner: theirs.Partitioner, shuffled: bool = False) -> Clients:
    """Examples of each of their clients."""
    columns = {"label": LABELS, "writer": WRITERS, "index": np.arange(EXAMPLES)}
    data = datasets.Dataset.from_dict(columns)
    partitioner.dataset = data.shuffle(seed=SEED) if shuffled else data
    count = range(partitioner.num_partitions)
    return [list(partitioner.load_partition(client)["index"]) for client in count]


def of_ours(made: Assignment) -> Clients:
    """Examples of each of our clients."""
    return [part.tolist() for part in np.split(made.order, made.offsets[1:-1])]


def kind(**options: object) -> Clients:
    """Examples of each client of one of our kinds."""
    parser: TypeAdapter[PartitionOptions] = TypeAdapter(PartitionOptions)
    chosen = parser.validate_python({**options, "num_clients": CLIENTS, "seed": SEED})
    return of_ours(assign(chosen, LABELS))


def compared(one: Clients, other: Clients) -> str:
    """Say what two partitions have in common."""
    counts = [
        [np.bincount(LABELS[indices], minlength=CLASSES).tolist() for indices in clients]
        for clients in (one, other)
    ]
    classes = [[[n > 0 for n in client] for client in clients] for clients in counts]
    if one == other:
        return "equal, order included"
    if [set(indices) for indices in one] == [set(indices) for indices in other]:
        return "equal clients; the examples of a client in another order"
    if counts[0] == counts[1]:
        return "differs: the same counts of each class in each client, of other examples"
    if classes[0] == classes[1] and classes[0][0] != [True] * CLASSES:
        return "differs: the same classes in each client, in other numbers"
    if [*map(len, one)] == [*map(len, other)]:
        return "differs: the same number of examples in each client, of other examples"
    sizes = [f"{min(map(len, clients))} to {max(map(len, clients))}" for clients in (one, other)]
    return f"differs: clients have {sizes[0]} examples there, {sizes[1]} here"


def main() -> None:
    """Print the table."""
    by_label = {"partition_by": "label", "num_partitions": CLIENTS, "seed": SEED}
    iid, dirichlet = kind(kind="iid"), kind(kind="dirichlet", alpha=0.5)
    labels = kind(kind="labels", labels_per_client=2)
    writers = of_ours(by_writer(WRITERS, np.unique(WRITERS)))
    two = {"num_classes_per_partition": 2, **by_label}
    first = theirs.PathologicalPartitioner(class_assignment_mode="first-deterministic", **two)
    by_dirichlet = theirs.DirichletPartitioner
    balanced = by_dirichlet(alpha=0.5, self_balancing=True, **by_label)
    shards = theirs.ShardPartitioner(num_shards_per_partition=2, **by_label)
    by_writers = theirs.NaturalIdPartitioner("writer")
    rows = [
        ("`IidPartitioner`", "iid", of_theirs(theirs.IidPartitioner(CLIENTS)), iid),
        ("the same, shuffled", "iid", of_theirs(theirs.IidPartitioner(CLIENTS), True), iid),
        (
            "`DirichletPartitioner`",
            "dirichlet",
            of_theirs(by_dirichlet(alpha=0.5, **by_label)),
            dirichlet,
        ),
        ("the same, `self_balancing`", "dirichlet", of_theirs(balanced), dirichlet),
        (
            "`PathologicalPartitioner`",
            "labels",
            of_theirs(theirs.PathologicalPartitioner(**two)),
            labels,
        ),
        ("the same, `first-deterministic`", "labels", of_theirs(first), labels),
        ("`ShardPartitioner`, 2 shards a client", "labels", of_theirs(shards), labels),
        ("`NaturalIdPartitioner`", "writers", of_theirs(by_writers), writers),
    ]
    print("| flwr-datasets | here | clients of both |\n|---|---|---|")
    for name, own, one, other in rows:
        print(f"| {name} | `{own}` | {compared(one, other)} |")


if __name__ == "__main__":
    main()
