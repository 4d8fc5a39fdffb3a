"""The statistics of a whole store, as one JSON-serialisable dictionary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_bench.data import Store, StoreSplit
from pfl_bench.types import DataError, DataFacts

PERCENTILES = (10, 25, 50, 75, 90)
_CURVE_POINTS = 100
_HISTOGRAM_BINS = 30
# From this ratio of the largest to the smallest user, bins grow with the size.
_WIDE = 20
_BLOCK_EXAMPLES = 1 << 17
_BLOCK_USERS = 1 << 14


def store_statistics(store: Store) -> dict[str, Any]:
    """Describe a store's users, examples and labels, JSON-serialisable.

    Labels are the elements of the field that ``label_field`` finds: one an example, or several for
    a field of a shape or a ragged one; every element counts that is not the fact "pad_id".

    Returns:
        "path", "task", "facts" (as ``DataFacts``); "size_histogram" (``size_histogram``, with
        "all" for all splits together where there are several); "all_users", the first three of
        what follows for users over all splits together, each counted once;
        "columns" (``column_statistics``); "name_lists", how many names each list has; "splits",
        which maps each split to what follows; and "all_splits", the same of all splits together,
        None when users may be in several of them:

        - "users", "examples";
        - "examples_per_user": "mean", "sd" (population: divided by U), "min", "max",
          "percentiles" (10, 25, 50, 75, 90; linear interpolation) and "skewness" (population:
          m3 / m2^1.5; None if all users are of one size);
        - "quantity_skew": as ``quantity_skew`` says;
        - "labels": None without such a field, else as ``label_statistics`` says.

    Source:
        Caldas et al. 2018 (LEAF), table 1, has users, examples, mean and standard deviation;
        Song et al. 2022 (FLAIR), section 4.2 and figure 2, left, the quantity skew.
    """
    splits = [store.split(name) for name in store.split_names]
    sizes = {split.name: np.diff(split.offsets) for split in splits}
    everyone = sizes_over_splits(splits)
    together = {"all": everyone} if len(splits) > 1 else {}
    facts = asdict(store.facts)
    return {
        "path": str(store.path),
        "task": store.task,
        # Lists, as JSON has no tuples.
        "facts": {key: list(v) if isinstance(v, tuple) else v for key, v in facts.items()},
        "size_histogram": size_histogram({**sizes, **together}),
        "all_users": _sizes(everyone),
        "columns": column_statistics(store),
        "name_lists": {name: len(store.names(name)) for name in store.name_lists},
        "splits": {split.name: _describe([split], store.facts) for split in splits},
        "all_splits": _describe(splits, store.facts) if store.facts.split_by == "user" else None,
    }


def _describe(splits: Sequence[StoreSplit], facts: DataFacts) -> dict[str, Any]:
    sizes = np.concatenate([np.diff(split.offsets) for split in splits])
    field = label_field(splits[0], facts)
    padding = given if isinstance(given := facts.extra.get("pad_id"), int) else None
    return {
        **_sizes(sizes),
        "quantity_skew": quantity_skew(sizes),
        "labels": label_statistics(splits, field, facts.num_classes, padding) if field else None,
    }


def _sizes(sizes: NDArray[np.int64]) -> dict[str, Any]:
    return {
        "users": len(sizes),
        "examples": int(sizes.sum()),
        "examples_per_user": size_statistics(sizes),
    }


def column_statistics(store: Store) -> dict[str, Any]:
    """Count the values of a store's columns: the strata by which results can be told apart.

    A column is a field with one integer or bool an example, other than "targets", that has a list
    of names or at most 256 values. ``DataError`` if a number has no name, or the file was cut.

    Returns:
        By column: "named", how many names its list has (None without one); and by split
        "splits": "distinct", how many values occur, and "counts", the examples of each value that
        occurs, by its name or number.
    """
    names = {name: store.names(name) for name in store.name_lists}
    result: dict[str, Any] = {}
    for column, spec in store.fields.items():
        dtype = np.dtype(spec.dtype)
        if spec.ragged or spec.shape or column == "targets" or dtype.kind not in "biu":
            continue
        if column not in names and dtype.itemsize > 1:
            continue
        result[column] = {
            "named": len(names[column]) if column in names else None,
            "splits": {
                name: _count(store.split(name), column, names.get(column))
                for name in store.split_names
            },
        }
    return result


def _count(split: StoreSplit, column: str, names: list[str] | None) -> dict[str, Any]:
    counts: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
    # Values without names may be below 0.
    is_signed = np.dtype(split.fields[column].dtype) == np.int8
    lowest = -128 if is_signed and names is None else 0
    for start in range(0, split.num_examples, _BLOCK_EXAMPLES):
        stop = min(start + _BLOCK_EXAMPLES, split.num_examples)
        values = split.read(column, start, stop).astype(np.int64)
        if names is not None and not 0 <= values.min() <= values.max() < len(names):
            raise DataError(
                f"split {split.name!r}, examples {start}:{stop}: {column} {values.min()} to "
                f"{values.max()} are not all within its {len(names)} names. The store is damaged; "
                "copy it again or prepare it again."
            )
        found = np.bincount(values - lowest, minlength=len(counts))
        found[: len(counts)] += counts
        counts = found
    occurring = np.flatnonzero(counts)
    labels = [str(value + lowest) if names is None else names[value] for value in occurring]
    return {
        "distinct": len(occurring),
        "counts": dict(zip(labels, counts[occurring].tolist(), strict=True)),
    }


def sizes_over_splits(splits: Sequence[StoreSplit]) -> NDArray[np.int64]:
    """Examples of each user over all splits, shape (U,), a user of several counted once."""
    if len(splits) == 1:
        return np.diff(splits[0].offsets)
    totals: Counter[str] = Counter()
    for split in splits:
        sizes = np.diff(split.offsets).tolist()
        for client_id, size in zip(split.client_ids(), sizes, strict=True):
            totals[client_id] += size
    return np.fromiter(totals.values(), dtype=np.int64, count=len(totals))


def size_statistics(sizes: NDArray[np.int64]) -> dict[str, Any]:
    """Mean, spread and percentiles of users' sizes, shape (U,); see ``store_statistics``."""
    mean, sd = float(sizes.mean()), float(sizes.std())
    percentiles = np.percentile(sizes, PERCENTILES)
    return {
        "mean": mean,
        "sd": sd,
        "min": int(sizes.min()),
        "max": int(sizes.max()),
        "percentiles": dict(zip(map(str, PERCENTILES), percentiles.tolist(), strict=True)),
        "skewness": float((((sizes - mean) / sd) ** 3).mean()) if sd > 0 else None,
    }


def quantity_skew(sizes: NDArray[np.int64]) -> dict[str, Any]:
    """Quantity skew: shares of all examples that the largest users hold; sizes of shape (U,), >= 1.

    Returns:
        - "largest_users": the smallest number k of largest users who hold at least as many
          examples as all others, and "largest_share": k / U ("the largest 2.3% of users
          collectively have as many images as the bottom 97.7%");
        - "curve": "users" and "examples", shares from 0 to 1: the largest users and the share of
          the examples that they hold. Every user is a point if there are few, else some 200
          points, dense where the curve is steep.

    Source:
        Song et al. 2022 (FLAIR), section 4.2 and figure 2, left.
    """
    held = np.cumsum(np.sort(sizes)[::-1])
    users, total = len(held), int(held[-1])
    largest = int(np.searchsorted(2 * held, total)) + 1
    points = np.arange(users + 1)
    if users > 2 * _CURVE_POINTS:
        even = np.linspace(0, users, _CURVE_POINTS + 1)
        dense = np.geomspace(1, users, _CURVE_POINTS)
        points = np.unique(np.rint(np.concatenate([even, dense])).astype(np.int64))
    shares = np.concatenate([[0], held])[points] / total
    return {
        "largest_users": largest,
        "largest_share": largest / users,
        "curve": {"users": (points / users).tolist(), "examples": shares.tolist()},
    }


def size_histogram(sizes: Mapping[str, NDArray[np.int64]]) -> dict[str, Any]:
    """Count users by size (arrays of shape (U,), at least 1 each), in the same bins for all splits.

    Returns:
        "edges", B + 1 integers: bin b has the sizes ``edges[b]`` to ``edges[b + 1] - 1``; the bins
        are of one width, or grow geometrically ("logarithmic" is then true) where the largest user
        has at least 20 times as much as the smallest; and "users", B counts for each split.
    """
    together = np.concatenate(list(sizes.values()))
    low, high = int(together.min()), int(together.max()) + 1
    wide = high - 1 >= _WIDE * low
    if wide:
        edges = np.unique(np.rint(np.geomspace(low, high, _HISTOGRAM_BINS + 1)).astype(np.int64))
    else:
        width = -(-(high - low) // _HISTOGRAM_BINS)
        edges = np.arange(low, high + width, width)
    return {
        "edges": edges.tolist(),
        "logarithmic": wide,
        # The last bin of np.histogram is closed; no size reaches its upper edge.
        "users": {name: np.histogram(own, edges)[0].tolist() for name, own in sizes.items()},
    }


def label_field(split: StoreSplit, facts: DataFacts) -> str | None:
    """The field of integer kind with the labels: "targets", or one whose classes have names.

    Such names are a fact of ``extra``: "coarse_labels" has those of the field "coarse".
    """
    for name, spec in split.fields.items():
        names = facts.extra.get(f"{name}_labels")
        is_named = isinstance(names, list) and len(names) == facts.num_classes
        if (name == "targets" or is_named) and spec.numpy_dtype.kind in "iu":
            return name
    return None


def label_statistics(
    splits: Sequence[StoreSplit], field: str, num_classes: int, padding: int | None = None
) -> dict[str, Any]:
    """Count labels of splits of different users, and say how unequally users have them.

    A label outside 0 to ``num_classes`` - 1 is a ``DataError``, and so is a file that was cut.
    That of ``padding`` does not count.

    Returns:
        - "counts": class to occurrences, for classes that occur;
        - "share_of_users": class to the share, of all users, of those who have it at least once;
        - "mean_distinct_per_user";
        - "mean_total_variation": the mean over users of
          TV(u) = 1/2 * sum over c of |p_u(c) - p(c)|, where p_u is the distribution of the user's
          labels and p that of all labels; 0 when all users are alike, near 1 when each has labels
          that others lack.

        Users without any label are left out of both means, which are None if all users are.
    """
    pooled = np.zeros(num_classes, dtype=np.int64)
    blocks = [partial(_blocks, split, field, num_classes, padding) for split in splits]
    for _, labels in chain.from_iterable(block() for block in blocks):
        pooled += np.bincount(labels, minlength=num_classes)
    share = pooled / max(1, pooled.sum())
    having = np.zeros(num_classes, dtype=np.int64)
    users, variation = 0, 0.0
    for owners, labels in chain.from_iterable(block() for block in blocks):
        if not len(labels):
            continue
        totals = np.bincount(owners)
        pairs, counts = np.unique(owners * num_classes + labels, return_counts=True)
        classes = pairs % num_classes
        having += np.bincount(classes, minlength=num_classes)
        own = counts / totals[pairs // num_classes]
        present = int(np.count_nonzero(totals))
        users += present
        # Classes that a user lacks add their share, and all shares add up to one: so only the
        # classes that a user has are visited.
        variation += 0.5 * (present + float((np.abs(own - share[classes]) - share[classes]).sum()))
    everyone = sum(split.num_users for split in splits)
    found = np.flatnonzero(pooled)
    return {
        "counts": {str(label): int(pooled[label]) for label in found},
        "share_of_users": {str(label): float(having[label] / everyone) for label in found},
        "mean_distinct_per_user": int(having.sum()) / users if users else None,
        "mean_total_variation": variation / users if users else None,
    }


def _blocks(
    split: StoreSplit, field: str, num_classes: int, padding: int | None
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Blocks of whole users: for each label its user, counted within the block, and its class."""
    offsets, first = split.offsets, 0
    while first < split.num_users:
        limit = offsets[first] + _BLOCK_EXAMPLES
        last = int(np.searchsorted(offsets, limit, side="right")) - 1
        last = min(max(last, first + 1), first + _BLOCK_USERS)
        start, stop = int(offsets[first]), int(offsets[last])
        values = split.read(field, start, stop)
        owners = np.repeat(np.arange(last - first), np.diff(offsets[first : last + 1]))
        if isinstance(values, list):
            owners = np.repeat(owners, [len(value) for value in values])
            labels = np.concatenate(values)
        else:
            owners = np.repeat(owners, values.size // len(values))
            labels = values.reshape(-1)
        if labels.size and not 0 <= labels.min() <= labels.max() < num_classes:
            raise DataError(
                f"split {split.name!r}, examples {start}:{stop}: labels {labels.min()} to "
                f"{labels.max()} are not all within 0..{num_classes - 1}. The store is damaged; "
                "copy it again or prepare it again."
            )
        counted = slice(None) if padding is None else labels != padding
        yield owners[counted], labels[counted].astype(np.int64)
        first = last
