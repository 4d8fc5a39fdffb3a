"""Split data that its publisher did not split, inside each writer or between writers.

Both ways rank by a keyed digest instead of drawing from a generator: the rank of an example
depends on the seed, its writer and its own content, that of a writer on the seed and its name. So
the split does not depend on the order, number or names of the source files, and a writer whose
examples are spread over files is split exactly as if they were together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from pfl_bench.types import SplitBy
from tasks.femnist.spool import ExampleSpool

UNSPLIT = "all"
Part = tuple[str, str, NDArray[np.uint8], NDArray[np.uint8]]


def bounds(count: int, train_fraction: float, val_fraction: float) -> tuple[int, int]:
    """Where train ends and where val ends among ``count`` ranked things.

    Returns:
        Two numbers a <= b: the first a are train (at least one), those up to b val, the rest test.
    """
    train_end = max(1, min(count, int(train_fraction * count + 0.5)))
    # A hair above the product: 0.8 + 0.1 is a little less than 0.9 in binary.
    val_end = int((train_fraction + val_fraction) * count + 0.5 + 1e-9)
    return train_end, max(train_end, min(count, val_end))


def rank_examples(
    images: NDArray[np.uint8], labels: NDArray[np.uint8], client_id: str, seed: int
) -> NDArray[np.int64]:
    """Order a writer's examples by keyed digests of their content.

    Args:
        images: Shape (n, 28, 28).
        labels: Shape (n,).
        client_id: The writer.
        seed: Seed of the split.

    Returns:
        Shape (n,), a permutation of 0..n - 1; equal examples stay neighbours.
    """
    key = hashlib.sha256(f"{seed}\0{client_id}".encode()).digest()
    digests = [
        hashlib.blake2b(image.tobytes() + label.tobytes(), digest_size=16, key=key).digest()
        for image, label in zip(images, labels, strict=True)
    ]
    return np.array(sorted(range(len(digests)), key=digests.__getitem__), dtype=np.int64)


def rank_users(client_ids: list[str], seed: int) -> list[str]:
    """Order writers by keyed digests of their names."""
    return sorted(client_ids, key=lambda name: hashlib.sha256(f"{seed}\0{name}".encode()).digest())


def divide(
    spool: ExampleSpool,
    split_by: SplitBy,
    train_fraction: float,
    val_fraction: float,
    seed: int,
) -> Iterator[Part]:
    """Split what the spool holds under ``UNSPLIT``, one writer in memory at a time.

    Args:
        spool: The examples.
        split_by: "example" divides each writer's examples, "user" deals whole writers.
        train_fraction: Fraction for train; a writer (or the set of writers) gives at least one.
        val_fraction: Fraction for val; what is left is test.
        seed: Seed of the split.

    Yields:
        Split, writer, images and labels; never empty.
    """
    users = rank_users(spool.clients(UNSPLIT), seed)
    user_ends = bounds(len(users), train_fraction, val_fraction)
    for rank, user in enumerate(users):
        images, labels = spool.read(UNSPLIT, user)
        order = rank_examples(images, labels, user, seed)
        if split_by == "user":
            yield _name(rank, user_ends), user, images[order], labels[order]
            continue
        train_end, val_end = bounds(len(order), train_fraction, val_fraction)
        pieces = (order[:train_end], order[train_end:val_end], order[val_end:])
        for name, piece in zip(("train", "val", "test"), pieces, strict=True):
            if len(piece):
                yield name, user, images[piece], labels[piece]


def _name(rank: int, ends: tuple[int, int]) -> str:
    if rank < ends[0]:
        return "train"
    return "val" if rank < ends[1] else "test"
