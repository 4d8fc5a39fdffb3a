"""Split a pool of examples in memory, inside each user or between users; partition it evenly."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pfl_bench.types import ConfigError, SplitBy
from tasks.common.leaf.plan import SPLITS
from tasks.synthetic.generator import Pool

_NOTHING = 1e-9  # what is left of 1 after fractions that sum to 1 in decimal


@dataclass(frozen=True, slots=True)
class Subset:
    """Part of a pool that one split has.

    Attributes:
        names: Its users.
        places: Shape (n,), int64: examples of the pool, user by user.
        offsets: Shape (U + 1,), int64: user u has ``places[offsets[u]:offsets[u + 1]]``.
    """

    names: list[str]
    places: NDArray[np.int64]
    offsets: NDArray[np.int64]


def counts(total: int, train_fraction: float, val_fraction: float) -> tuple[int, int, int]:
    """Numbers, of ``total`` examples or users, at least 1, that go to train, val and test.

    Train and val get their fraction rounded down (LEAF's rule for train), and each split that is to
    have anything at least one, while there are enough: train first, then test, then val.
    """
    with_test = 1 - train_fraction - val_fraction > _NOTHING
    test_least = int(with_test and total >= 2)
    val_least = int(val_fraction > 0 and total >= 2 + with_test)
    val = max(val_least, min(int(val_fraction * total + _NOTHING), total - 1 - test_least))
    train = max(1, min(int(train_fraction * total + _NOTHING), total - val - test_least))
    if not with_test:
        train = total - val
    return train, val, total - train - val


def divide(
    pool: Pool, split_by: SplitBy, train_fraction: float, val_fraction: float, seed: int
) -> dict[str, Subset]:
    """Split a pool as ``counts`` says; splits that get nothing are left out.

    A user's examples are shuffled by a stream of that user's name.
    """
    users: dict[str, list[tuple[str, NDArray[np.int64]]]] = {name: [] for name in SPLITS}
    if split_by == "user":
        order = np.random.default_rng(seed).permutation(len(pool.names))
        ends = np.cumsum(counts(len(order), train_fraction, val_fraction))[:-1]
        for split, chosen in zip(SPLITS, np.split(order, ends), strict=True):
            users[split] = [(pool.names[user], _own(pool, user)) for user in np.sort(chosen)]
    else:
        for user, name in enumerate(pool.names):
            word = hashlib.sha256(name.encode()).digest()[:8]
            rng = np.random.default_rng([seed, int.from_bytes(word, "little")])
            own = rng.permutation(_own(pool, user))
            ends = np.cumsum(counts(len(own), train_fraction, val_fraction))[:-1]
            for split, piece in zip(SPLITS, np.split(own, ends), strict=True):
                if len(piece):
                    users[split].append((name, piece))
    return {split: _subset(own) for split, own in users.items() if own}


def drop_small(pools: Mapping[str, Pool], min_examples: int) -> tuple[dict[str, Pool], int]:
    """Drop and count users with too few examples over all splits; each split must keep somebody."""
    totals: Counter[str] = Counter()
    for pool in pools.values():
        totals.update(dict(zip(pool.names, np.diff(pool.offsets).tolist(), strict=True)))
    small = {name for name, count in totals.items() if count < min_examples}
    if not small:
        return dict(pools), 0
    kept: dict[str, Pool] = {}
    for split, pool in pools.items():
        stay = [user for user, name in enumerate(pool.names) if name not in small]
        if not stay:
            raise ConfigError(
                f"min_examples {min_examples}: leaves no user in split '{split}'; the largest user "
                f"has {max(totals.values())} examples: choose a smaller number"
            )
        share = _subset([(pool.names[user], _own(pool, user)) for user in stay])
        kept[split] = Pool(
            share.names,
            pool.inputs[share.places],
            pool.targets[share.places],
            share.offsets,
            None if pool.clusters is None else pool.clusters[stay],
        )
    return kept, len(small)


def whole(pool: Pool) -> Subset:
    """All that a pool has."""
    return Subset(pool.names, np.arange(len(pool.targets), dtype=np.int64), pool.offsets)


def partition_evenly(
    share: Subset, num_users: int, seed: int, split: str, first: int = 0
) -> Subset:
    """Assign a split's examples to artificial users, in shares that differ by one.

    Only as many users get something as there are examples; ``first`` is the number of the first.
    Each ``split`` has draws of its own.
    """
    rng = np.random.default_rng([seed, SPLITS.index(split)])
    pieces = np.array_split(rng.permutation(share.places), num_users)
    return _subset([(f"iid-{user:06d}", own) for user, own in enumerate(pieces, first) if len(own)])


def _own(pool: Pool, user: int) -> NDArray[np.int64]:
    return np.arange(pool.offsets[user], pool.offsets[user + 1], dtype=np.int64)


def _subset(users: list[tuple[str, NDArray[np.int64]]]) -> Subset:
    sizes = [len(places) for _, places in users]
    return Subset(
        [name for name, _ in users],
        np.concatenate([places for _, places in users]),
        np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
    )
