"""Plan of a partition: the kept users, and how many of whose examples go to which split.

All that is random is ranked by keyed digests instead of drawn from a generator: the rank of an
example depends on the seed, its user and its own content, that of a user on the seed and its name.
So a split does not depend on the order, number or names of the source files, and a user whose
examples are spread over files is split exactly as if they were together.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_bench.types import ConfigError, DataError, SplitBy
from tasks.common.leaf.options import OF_SPLIT, PartitionOptions
from tasks.common.options import refuse

UNSPLIT = "all"
SPLITS = ("train", "val", "test")


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan of what becomes of the gathered examples.

    Attributes:
        published: Whether they are the publisher's.
        order_by: Field that orders a user's examples; None for keyed digests.
        kept: Of each gathered split, which users are kept: ascending indices, shape (u,).
        pieces: Of each split to come, how many examples each kept user gives; shape (u,), in the
            order of ``kept`` of the gathered split that it is made from.
        artificial_users: Of each split to come, the first of its artificial users and the one
            after its last; empty if users are natural.
    """

    options: PartitionOptions
    split_by: SplitBy
    published: bool
    order_by: str | None
    kept: Mapping[str, NDArray[np.int64]]
    pieces: Mapping[str, NDArray[np.int64]]
    artificial_users: Mapping[str, tuple[int, int]]
    facts: Mapping[str, Any]


def bounds(count: int, train_fraction: float, val_fraction: float) -> tuple[int, int]:
    """Ends of train and of val among ``count`` ranked things, a <= b.

    The first a are train (at least one), those up to b val, the rest test.
    """
    train_end = max(1, min(count, int(train_fraction * count + 0.5)))
    # A hair above the product: 0.8 + 0.1 is a little less than 0.9 in binary.
    val_end = int((train_fraction + val_fraction) * count + 0.5 + 1e-9)
    return train_end, max(train_end, min(count, val_end))


def systematic_bounds(
    client_id: str, count: int, train_fraction: float, val_fraction: float, seed: int
) -> tuple[int, int]:
    """Ends of train and val among a user's ``count`` examples, by systematic rounding.

    Both ends are rounded down after one number of 0 to 1, the user's own, is added. So each split
    gets its fraction of the count, rounded up or down, and over many users exactly its fraction of
    all examples on average; were ends rounded to the nearest, users of 3 to 5 examples would never
    give one to the last split. What a user gives does not depend on other users.

    The first of them are train (at least one, which lifts its fraction over users of few examples),
    those from its end to val's are val, the rest test.

    Source: Madow 1949, systematic sampling, with one point a stratum.
    """
    digest = hashlib.sha256(f"{seed}\0rounding\0{client_id}".encode()).digest()
    # A hair above: 0.7 + 0.1 is a little less than 0.8 in binary.
    start = int.from_bytes(digest[:8], "little") / 2**64 + 1e-9
    train_end = max(1, min(count, int(train_fraction * count + start)))
    val_end = int((train_fraction + val_fraction) * count + start)
    return train_end, max(train_end, min(count, val_end))


def rank_users(client_ids: Sequence[str], seed: int, purpose: str = "") -> list[str]:
    """Order users by keyed digests of their names; other purposes give independent orders."""
    key = f"{seed}\0{purpose}\0" if purpose else f"{seed}\0"
    return sorted(client_ids, key=lambda name: hashlib.sha256(f"{key}{name}".encode()).digest())


def make_plan(
    clients: Mapping[str, Sequence[str]],
    sizes: Mapping[str, NDArray[np.int64]],
    options: PartitionOptions,
    order_by: str | None,
    published_as: SplitBy | None,
) -> Plan:
    """Decide what becomes of examples; see ``Gathering.partition``.

    ``sizes`` are the examples of each of the ``clients`` of a gathered split, shape (U,).
    """
    if not clients:
        raise DataError(
            "the files of --source hold no examples (they are empty, or have a head alone); check "
            "that they are complete"
        )
    published = UNSPLIT not in clients
    if not published and len(clients) > 1:
        raise ValueError(f"both split and unsplit examples were gathered: {list(clients)}")
    if published and "train" not in clients:
        raise DataError(f"the source has splits {list(clients)}, but no 'train' among them")
    split_by = (published_as or published_split_by(clients)) if published else options.split_by
    check_options(options, split_by, published, order_by)
    chosen, dropping = _choose_users(clients, sizes, options)
    kept: dict[str, NDArray[np.int64]] = {}
    for name, own in clients.items():
        users = np.arange(len(own))
        if chosen is not None:
            users = np.flatnonzero(np.fromiter((user in chosen for user in own), bool, len(own)))
        if len(users):
            kept[name] = users
    if published and "train" not in kept:
        raise ConfigError(
            "of the users who are kept none is in the published split train, so there is nobody to "
            "train on; lower min_examples or keep more users"
        )
    pieces = {name: sizes[name][users] for name, users in kept.items()}
    if not published:
        names = [clients[UNSPLIT][user] for user in kept[UNSPLIT].tolist()]
        pieces = _divide(names, pieces[UNSPLIT], options, order_by)
    split = {"by": split_by, "as": "published"} if published else _split_facts(options, order_by)
    facts: dict[str, Any] = {"split": split, **dropping}
    artificial: dict[str, tuple[int, int]] = {}
    if options.partition == "iid":
        everyone = set().union(*clients.values()) if chosen is None else chosen
        artificial = _artificial_users(pieces, len(everyone), split_by, options)
        facts["artificial_users"] = True
        facts["partition"] = {
            "as": "iid",
            "users": {name: stop - start for name, (start, stop) in artificial.items()},
            "split_seed": options.split_seed,
        }
    return Plan(options, split_by, published, order_by, kept, pieces, artificial, facts)


def _split_facts(options: PartitionOptions, order_by: str | None) -> dict[str, Any]:
    """Facts of a split that the publisher has not made."""
    facts: dict[str, Any] = {"by": options.split_by, "as": "prepared here"}
    facts |= {"train_fraction": options.train_fraction, "val_fraction": options.val_fraction}
    facts |= {"order_by": order_by} if order_by else {}
    facts["rounding"] = "systematic" if _is_systematic(options, order_by) else "nearest"
    if not (order_by and options.split_by == "example"):
        facts["split_seed"] = options.split_seed
    return facts


def published_split_by(clients: Mapping[str, Sequence[str]]) -> SplitBy:
    """Whether published splits divide users or their examples, from who is where."""
    train = set(clients["train"])
    everyone = train.union(*clients.values())
    if len(everyone) == sum(map(len, clients.values())):
        return "user"
    strangers = sorted(everyone - train)
    if not strangers:
        return "example"
    times = Counter(user for own in clients.values() for user in own)
    shared = sorted(user for user, number in times.items() if number > 1)
    raise DataError(
        f"the splits {', '.join(clients)} share some users but not all: {len(shared)} users are in "
        f"several splits, such as {shared[0]!r}, and {len(strangers)} are not in train, such as "
        f"{strangers[0]!r}; splits must divide users (no user twice) or each user's examples "
        "(every user in train): split the whole data anew"
    )


def check_options(
    options: PartitionOptions, split_by: SplitBy, published: bool, order_by: str | None
) -> None:
    """Refuse what would have no effect on these data."""
    unused = [] if options.draws else ["split_seed"]
    if published:
        unused = [*OF_SPLIT, *unused]
        why = (
            f"the source is split by its publisher, by {split_by}; leave these options out, or "
            "give data that are not split"
        )
    elif order_by and split_by == "example":
        why = (
            f"each user's examples are split in the order of '{order_by}' and no user is drawn, so "
            "nothing depends on a seed; leave it out"
        )
    else:
        return
    refuse(options.given(*unused), why)


def _choose_users(
    clients: Mapping[str, Sequence[str]],
    sizes: Mapping[str, NDArray[np.int64]],
    options: PartitionOptions,
) -> tuple[set[str] | None, dict[str, Any]]:
    """Drop users with few examples, then sample; returns users and the facts of it.

    Of millions of users a set of names is dear: None for all there are.
    """
    if not options.min_examples and not options.samples_users:
        return None, {"min_examples": 0, "users_dropped": 0}
    users, totals = totals_by_user(clients, sizes)
    enough = np.flatnonzero(totals >= options.min_examples)
    dropped = len(users) - len(enough)
    facts: dict[str, Any] = {"min_examples": options.min_examples, "users_dropped": dropped}
    if not len(enough):
        raise DataError(
            f"min_examples = {options.min_examples} drops all {dropped} users; the largest has "
            f"{totals.max()} examples: choose a smaller number"
        )
    if not dropped and not options.samples_users:
        return None, facts
    left = [users[place] for place in enough.tolist()]
    if not options.samples_users:
        return set(left), facts
    ranked = rank_users(left, options.split_seed, "sample")
    count = options.num_users or max(1, int(options.user_fraction * len(left) + 0.5))
    if options.data_fraction < 1:
        total_of = dict(zip(left, totals[enough].tolist(), strict=True))
        held = np.cumsum([total_of[user] for user in ranked])
        count = int(np.searchsorted(held, options.data_fraction * held[-1])) + 1
    if count > len(left):
        raise ConfigError(
            f"num_users {count}: there are only {len(left)} users with at least "
            f"{options.min_examples} examples; choose at most that many"
        )
    facts["users_sampled"] = {"kept": count, "of": len(left), "split_seed": options.split_seed}
    return set(ranked[:count]), facts


def totals_by_user(
    clients: Mapping[str, Sequence[str]], sizes: Mapping[str, NDArray[np.int64]]
) -> tuple[Sequence[str], NDArray[np.int64]]:
    """Each user once, in the order in which they came, with its examples over all splits.

    ``sizes`` are the examples of each of the ``clients`` of a split, shape (U,).
    """
    if len(clients) == 1:
        (name, users), *_ = clients.items()
        return users, sizes[name]
    numbers: dict[str, int] = {}
    places = [
        np.fromiter((numbers.setdefault(user, len(numbers)) for user in own), np.int64, len(own))
        for own in clients.values()
    ]
    totals = np.zeros(len(numbers), np.int64)
    np.add.at(totals, np.concatenate(places), np.concatenate([sizes[name] for name in clients]))
    return list(numbers), totals


def _divide(
    clients: Sequence[str],
    counts: NDArray[np.int64],
    options: PartitionOptions,
    order_by: str | None,
) -> dict[str, NDArray[np.int64]]:
    """Examples that each of the kept users gives to each split that gets any."""
    ends = (options.train_fraction, options.val_fraction)
    pieces = np.zeros((len(SPLITS), len(counts)), dtype=np.int64)
    if options.split_by == "example":
        systematic = _is_systematic(options, order_by)
        for user, count in enumerate(counts.tolist()):
            if systematic:
                client_id = clients[user]
                train_end, val_end = systematic_bounds(client_id, count, *ends, options.split_seed)
            else:
                train_end, val_end = bounds(count, *ends)
            pieces[:, user] = train_end, val_end - train_end, count - val_end
    else:
        places = {user: rank for rank, user in enumerate(rank_users(clients, options.split_seed))}
        ranks = np.array([places[user] for user in clients])
        split = np.searchsorted(bounds(len(counts), *ends), ranks, side="right")
        pieces[split, np.arange(len(counts))] = counts
    return {name: row for name, row in zip(SPLITS, pieces, strict=True) if row.any()}


def _is_systematic(options: PartitionOptions, order_by: str | None) -> bool:
    """Whether remainders are drawn: where nothing is, as in a split in time, ends are rounded."""
    return options.split_by == "example" and order_by is None


def _artificial_users(
    pieces: Mapping[str, NDArray[np.int64]],
    num_natural: int,
    split_by: SplitBy,
    options: PartitionOptions,
) -> dict[str, tuple[int, int]]:
    """Ranges of artificial users by split: the same ones everywhere, or disjoint ones."""
    wanted = options.iid_users or num_natural
    examples = {name: int(row.sum()) for name, row in pieces.items()}
    shares = dict.fromkeys(pieces, wanted)
    if split_by == "user":
        natural = {name: np.count_nonzero(row) for name, row in pieces.items()}
        scale = wanted / sum(natural.values())
        shares = {name: max(1, round(number * scale)) for name, number in natural.items()}
        shares["train"] = wanted - sum(shares.values()) + shares["train"]
    if not 1 <= shares["train"] <= examples["train"]:
        raise ConfigError(
            f"iid_users {wanted}: leaves {shares['train']} users to split train, which has "
            f"{examples['train']} examples; each needs one to train on, and each split that "
            "divides users needs a user: choose another number"
        )
    starts = dict.fromkeys(pieces, 0)
    if split_by == "user":
        ends = np.cumsum(list(shares.values())).tolist()
        starts = dict(zip(pieces, [0, *ends[:-1]], strict=True))
    # A split with fewer examples than users has users of one example each, and not all users.
    return {n: (starts[n], starts[n] + min(shares[n], examples[n])) for n in pieces}
