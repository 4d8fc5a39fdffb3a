"""Partitions against the published algorithms, written again example by example."""

from __future__ import annotations

import gzip
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from pfl_bench.types import ConfigError
from tasks.common.partition.options import PartitionOptions, assign, by_writer
from tests.tasks.femnist_files import REAL_DATA

LABELS = np.random.default_rng(3).integers(0, 10, 3000)
MNIST_LABELS = REAL_DATA / "qmnist" / "train-labels-idx1-ubyte.gz"
PARSER: TypeAdapter[Any] = TypeAdapter(PartitionOptions)


def clients_of(labels: NDArray[np.int64], **options: Any) -> list[list[int]]:
    found = assign(PARSER.validate_python(options), labels)
    ends = zip(found.offsets, found.offsets[1:], strict=False)
    assert len(found.client_ids) == len(found.offsets) - 1
    return [found.order[start:stop].tolist() for start, stop in ends]


def places(labels: NDArray[np.int64], label: int) -> list[int]:
    return [place for place, one in enumerate(labels) if one == label]


GENERATORS: dict[str, Any] = {
    "default_rng": np.random.default_rng,
    "random_state": np.random.RandomState,
}


def published_dirichlet(labels: Any, count: int, alpha: float, rng: Any) -> list[list[int]]:
    while True:
        clients: list[list[int]] = [[] for _ in range(count)]
        for label in range(10):
            own = places(labels, label)
            rng.shuffle(own)
            shares = list(rng.dirichlet([alpha] * count))
            for client in range(count):
                if len(clients[client]) >= len(labels) / count:
                    shares[client] = 0.0
            total, start, running = float(np.sum(shares)), 0, 0.0
            for client in range(count):
                running += shares[client] / total
                stop = int(running * len(own)) if client < count - 1 else len(own)
                clients[client] += own[start:stop]
                start = stop
        if min(map(len, clients)) >= 10:
            return clients


def published_labels(labels: Any, count: int, each: int, rng: Any) -> list[list[int]]:
    has = []
    for client in range(count):
        own = {client % 10}
        while len(own) < each:
            is_old = isinstance(rng, np.random.RandomState)
            own.add(int(rng.randint(0, 10) if is_old else rng.choice(10, 1)[0]))
        has.append(own)
    clients: list[list[int]] = [[] for _ in range(count)]
    for label in range(10):
        own_places = places(labels, label)
        rng.shuffle(own_places)
        owners = [client for client in range(count) if label in has[client]]
        start = 0
        for place, client in enumerate(owners):
            # The first clients get one example more, as far as there is a remainder.
            size = len(own_places) // len(owners) + (place < len(own_places) % len(owners))
            clients[client] += own_places[start : start + size]
            start += size
    return clients


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize(("count", "alpha", "seed"), [(10, 0.5, 42), (10, 0.5, 7), (23, 0.2, 1)])
def test_dirichlet_clients_are_the_published_ones(
    count: int, alpha: float, seed: int, generator: str
) -> None:
    options = {"kind": "dirichlet", "num_clients": count, "alpha": alpha, "generator": generator}
    found = clients_of(LABELS, **options, seed=seed)
    assert found == published_dirichlet(LABELS, count, alpha, GENERATORS[generator](seed))


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize(("count", "each"), [(10, 1), (10, 2), (10, 3), (17, 2)])
def test_clients_of_few_labels_are_the_published_ones(
    count: int, each: int, generator: str
) -> None:
    options = {"num_clients": count, "labels_per_client": each, "generator": generator}
    found = clients_of(LABELS, kind="labels", **options, seed=42)
    assert found == published_labels(LABELS, count, each, GENERATORS[generator](42))
    assert all(len({LABELS[place] for place in client}) == each for client in found)


@pytest.mark.parametrize("generator", GENERATORS)
def test_iid_clients_are_the_published_ones(generator: str) -> None:
    options = {"num_clients": 10, "seed": 42, "generator": generator}
    found = clients_of(LABELS[:103], kind="iid", **options)
    drawn = GENERATORS[generator](42).choice(103, 103, replace=False).tolist()
    assert [len(client) for client in found] == [11] * 3 + [10] * 7
    assert [place for client in found for place in client] == drawn
    # Noise has no part in who has what.
    noisy = clients_of(LABELS[:103], kind="feature_noise", level=0.1, **options)
    assert noisy == found


def test_sizes_of_skewed_quantity_follow_the_drawn_proportions() -> None:
    found = clients_of(LABELS, kind="quantity", num_clients=8, alpha=0.5, seed=5)
    rng = np.random.default_rng(5)
    shuffled = rng.permutation(3000).tolist()
    assert [place for client in found for place in client] == shuffled
    while True:
        ends = [int(end * 3000) for end in np.cumsum(rng.dirichlet([0.5] * 8))[:-1]] + [3000]
        sizes = np.diff([0, *ends])
        if sizes.min() >= 10:
            break
    assert [len(client) for client in found] == sizes.tolist()
    assert max(sizes) > 3 * min(sizes)


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "iid", "num_clients": 7},
        {"kind": "dirichlet", "num_clients": 7, "alpha": 0.3},
        {"kind": "labels", "num_clients": 12, "labels_per_client": 4},
        {"kind": "quantity", "num_clients": 7, "alpha": 1.0},
    ],
    ids=lambda options: options["kind"],
)
def test_each_example_has_one_client_and_a_seed_decides_which(options: dict[str, Any]) -> None:
    found = clients_of(LABELS, **options, seed=1)
    assert sorted(place for client in found for place in client) == list(range(3000))
    assert clients_of(LABELS, **options, seed=1) == found
    assert clients_of(LABELS, **options, seed=2) != found


def test_writers_keep_their_examples_in_order() -> None:
    writers = np.array([7, 3, 7, 5, 3, 7])
    found = by_writer(writers, np.array([7, 3]))
    assert found.client_ids == ["writer-0003", "writer-0007"]
    assert found.order.tolist() == [1, 4, 0, 2, 5]
    assert found.offsets.tolist() == [0, 2, 5]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kind": "iid", "num_clients": 3001}, "client 3000 of 3001 would have none"),
        ({"kind": "dirichlet", "num_clients": 400, "alpha": 0.5}, "fewer than 10 of 3000"),
        ({"kind": "dirichlet", "num_clients": 100, "alpha": 1e-3}, "larger alpha"),
        ({"kind": "quantity", "num_clients": 300, "alpha": 0.5}, "take fewer clients"),
        ({"kind": "labels", "num_clients": 9, "labels_per_client": 1}, "has class 9"),
        ({"kind": "labels", "num_clients": 10, "labels_per_client": 11}, "have 10 classes"),
    ],
)
def test_what_cannot_be_assigned_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        clients_of(LABELS, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "shards", "num_clients": 10},
        {"kind": "iid"},
        {"kind": "iid", "num_clients": 0},
        {"kind": "iid", "num_clients": 10, "alpha": 0.5},
        {"kind": "dirichlet", "num_clients": 10, "alpha": 0.0},
        {"kind": "writers", "num_clients": 10},
        {"kind": "iid", "num_clients": 10, "generator": "philox"},
        {"kind": "iid", "num_clients": 10, "generator": "random_state", "seed": 2**32},
    ],
)
def test_options_that_a_kind_does_not_have_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        PARSER.validate_python(options)


# Seed 42 on MNIST's real labels: by client, the examples of each class, as Flower's baseline
# niid_bench (dataset_preparation.py) gives them: default_rng in its last version, random_state in
# its first.
GOLDEN: dict[tuple[str, str], list[list[int]]] = {
    ("default_rng", "dirichlet"): [
        [244, 1510, 1007, 122, 942, 776, 2030, 0, 0, 0],
        [30, 76, 30, 45, 248, 24, 678, 3988, 520, 3836],
        [1453, 438, 1064, 124, 226, 342, 542, 1660, 250, 0],
        [2530, 2598, 555, 313, 8, 0, 0, 0, 0, 0],
        [53, 53, 714, 583, 359, 1172, 1045, 71, 801, 223],
        [433, 301, 169, 1183, 447, 471, 154, 159, 984, 805],
        [631, 109, 2243, 1286, 3128, 0, 0, 0, 0, 0],
        [204, 883, 18, 1634, 103, 1, 177, 162, 553, 7],
        [20, 97, 122, 837, 222, 2400, 1288, 94, 972, 0],
        [325, 677, 36, 4, 159, 235, 4, 131, 1771, 1078],
    ],
    ("default_rng", "labels"): [
        [1975, 0, 0, 0, 0, 0, 0, 2089, 0, 0],
        [0, 6742, 0, 0, 0, 0, 2959, 0, 0, 0],
        [0, 0, 2979, 0, 1948, 0, 0, 0, 0, 0],
        [0, 0, 0, 6131, 1947, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 1947, 0, 0, 0, 2926, 0],
        [1974, 0, 0, 0, 0, 2711, 0, 0, 0, 0],
        [0, 0, 2979, 0, 0, 0, 2959, 0, 0, 0],
        [1974, 0, 0, 0, 0, 0, 0, 2088, 0, 0],
        [0, 0, 0, 0, 0, 2710, 0, 0, 2925, 0],
        [0, 0, 0, 0, 0, 0, 0, 2088, 0, 5949],
    ],
    ("random_state", "dirichlet"): [
        [8, 4, 802, 221, 2606, 55, 1406, 125, 367, 150],
        [93, 57, 129, 1764, 1557, 6, 105, 1759, 2324, 0],
        [230, 1027, 1774, 586, 33, 430, 16, 300, 239, 32],
        [442, 197, 1, 0, 571, 430, 531, 33, 604, 128],
        [174, 2219, 1029, 278, 753, 478, 10, 777, 34, 1786],
        [1213, 633, 3, 64, 201, 3589, 434, 0, 0, 0],
        [422, 2177, 11, 1633, 31, 32, 853, 1, 1041, 0],
        [1086, 48, 383, 1452, 4, 165, 165, 333, 53, 3510],
        [1251, 347, 3, 95, 17, 3, 656, 2674, 52, 343],
        [1004, 33, 1823, 38, 69, 233, 1742, 263, 1137, 0],
    ],
    ("random_state", "labels"): [
        [5923, 0, 0, 0, 0, 0, 1480, 0, 0, 0],
        [0, 6742, 0, 3066, 0, 0, 0, 0, 0, 0],
        [0, 0, 2979, 0, 0, 0, 0, 2089, 0, 0],
        [0, 0, 0, 3065, 1948, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 1947, 0, 1480, 0, 0, 0],
        [0, 0, 0, 0, 0, 5421, 0, 0, 0, 2975],
        [0, 0, 2979, 0, 0, 0, 1479, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 1479, 2088, 0, 0],
        [0, 0, 0, 0, 0, 0, 0, 2088, 5851, 0],
        [0, 0, 0, 0, 1947, 0, 0, 0, 0, 2974],
    ],
}


@pytest.mark.parametrize(("generator", "kind"), GOLDEN)
def test_mnist_has_the_published_clients(generator: str, kind: str) -> None:
    if not MNIST_LABELS.is_file():
        pytest.skip(f"real data not there: {MNIST_LABELS}")
    labels = np.frombuffer(gzip.decompress(MNIST_LABELS.read_bytes())[8:], np.uint8).astype(int)
    option = {"alpha": 0.5} if kind == "dirichlet" else {"labels_per_client": 2}
    options = {"kind": kind, "num_clients": 10, "generator": generator, **option}
    found = clients_of(labels, **options, seed=42)
    counts = [np.bincount(labels[client], minlength=10).tolist() for client in found]
    assert counts == GOLDEN[generator, kind]
