"""Statistics of a store: sizes of users, labels and how unequally users have them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_bench.store import Store, StoreSplit
from pfl_bench.types import DataError

_PERCENTILES = (10, 25, 50, 75, 90)
_BLOCK_EXAMPLES = 1 << 17
_BLOCK_USERS = 1 << 14
_TABLE_LABELS = 20


def store_statistics(store: Store) -> dict[str, Any]:
    """Describe a store's users, examples and labels, JSON-serialisable.

    Labels are the elements of the field "targets" if it is of integer kind: one an example, or
    several for targets of a shape or ragged ones; every element counts.

    Args:
        store: An open store; read in blocks of whole users.

    Returns:
        "path", "task", "facts" (as ``DataFacts``) and "splits", which maps each split to:

        - "users", "examples";
        - "examples_per_user": "mean", "sd" (population: divided by U), "min", "max",
          "percentiles" (10, 25, 50, 75, 90; linear interpolation) and "skewness" (population:
          m3 / m2^1.5; None if all users are of one size);
        - "labels": None without integer targets, else "counts" (class to occurrences; classes
          that occur), "mean_distinct_per_user", and "mean_total_variation": the mean over users
          of TV(u) = 1/2 * sum over c of |p_u(c) - p(c)|, where p_u is the distribution of the
          user's labels and p that of all labels of the split; 0 when all users are alike, near 1
          when each has labels that others lack. Users without any label are left out of both
          means.

    Raises:
        DataError: The file is damaged, or was cut after it was opened.

    Source:
        Caldas et al. 2018 (LEAF), table 1, has users, examples, mean and standard deviation.
    """
    return {
        "path": str(store.path),
        "task": store.task,
        "facts": {**asdict(store.facts), "input_shape": list(store.facts.input_shape)},
        "splits": {
            name: _split_statistics(store.split(name), store.facts.num_classes)
            for name in store.split_names
        },
    }


def _split_statistics(split: StoreSplit, num_classes: int) -> dict[str, Any]:
    targets = split.fields.get("targets")
    labelled = targets is not None and targets.numpy_dtype.kind in "iu"
    return {
        "users": split.num_users,
        "examples": split.num_examples,
        "examples_per_user": _size_statistics(np.diff(split.offsets)),
        "labels": _label_statistics(split, num_classes) if labelled else None,
    }


def _size_statistics(sizes: NDArray[np.int64]) -> dict[str, Any]:
    mean, sd = float(sizes.mean()), float(sizes.std())
    percentiles = np.percentile(sizes, _PERCENTILES)
    return {
        "mean": mean,
        "sd": sd,
        "min": int(sizes.min()),
        "max": int(sizes.max()),
        "percentiles": {
            str(rank): float(value) for rank, value in zip(_PERCENTILES, percentiles, strict=True)
        },
        "skewness": float((((sizes - mean) / sd) ** 3).mean()) if sd > 0 else None,
    }


def _label_statistics(split: StoreSplit, num_classes: int) -> dict[str, Any]:
    pooled = np.zeros(num_classes, dtype=np.int64)
    for _, labels in _labels_by_user(split, num_classes):
        pooled += np.bincount(labels, minlength=num_classes)
    share = pooled / max(1, pooled.sum())
    users, distinct, variation = 0, 0, 0.0
    for owners, labels in _labels_by_user(split, num_classes):
        if not len(labels):
            continue
        totals = np.bincount(owners)
        pairs, counts = np.unique(owners * num_classes + labels, return_counts=True)
        classes = pairs % num_classes
        own = counts / totals[pairs // num_classes]
        present = int(np.count_nonzero(totals))
        users += present
        distinct += len(pairs)
        # Classes that a user lacks add their share, and all shares add up to one: so only the
        # classes that a user has are visited.
        variation += 0.5 * (present + float((np.abs(own - share[classes]) - share[classes]).sum()))
    return {
        "counts": {str(label): int(pooled[label]) for label in np.flatnonzero(pooled)},
        "mean_distinct_per_user": distinct / users if users else None,
        "mean_total_variation": variation / users if users else None,
    }


def _labels_by_user(
    split: StoreSplit, num_classes: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Blocks of whole users: for each label its user, counted within the block, and its class."""
    offsets, first = split.offsets, 0
    while first < split.num_users:
        limit = offsets[first] + _BLOCK_EXAMPLES
        last = int(np.searchsorted(offsets, limit, side="right")) - 1
        last = min(max(last, first + 1), first + _BLOCK_USERS)
        start, stop = int(offsets[first]), int(offsets[last])
        values = split.read("targets", start, stop)
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
        yield owners, labels.astype(np.int64)
        first = last


def format_statistics(statistics: Mapping[str, Any]) -> str:
    """Lay out what ``store_statistics`` gives as a plain text table.

    Args:
        statistics: The result of ``store_statistics``.

    Returns:
        Lines without a trailing newline: facts, a row a split, and the commonest labels.
    """
    facts = statistics["facts"]
    lines = [
        f"file      {statistics['path']}",
        f"task      {statistics['task']} ({facts['variant']}, {facts['num_classes']} classes, "
        f"split by {facts['split_by']})",
        f"source    {facts['source']}",
        f"checksum  {facts['checksum']}",
        "",
        "examples per user (sd: population)",
        *_table(
            ["split", "users", "examples", "mean", "sd", "min"]
            + [f"p{rank}" for rank in _PERCENTILES]
            + ["max", "skewness"],
            [_size_row(name, split) for name, split in statistics["splits"].items()],
        ),
    ]
    labelled = {
        name: split["labels"] for name, split in statistics["splits"].items() if split["labels"]
    }
    if labelled:
        lines += [
            "",
            "labels (TV: mean total-variation distance of a user's labels from the split's)",
            *_table(
                ["split", "labels", "classes", "distinct/user", "TV", "commonest class:count"],
                [_label_row(name, labels) for name, labels in labelled.items()],
            ),
        ]
    return "\n".join(lines)


def _size_row(name: str, split: Mapping[str, Any]) -> list[str]:
    sizes = split["examples_per_user"]
    percentiles = [f"{sizes['percentiles'][str(rank)]:g}" for rank in _PERCENTILES]
    return [
        name,
        f"{split['users']:,}",
        f"{split['examples']:,}",
        _decimal(sizes["mean"]),
        _decimal(sizes["sd"]),
        str(sizes["min"]),
        *percentiles,
        str(sizes["max"]),
        _decimal(sizes["skewness"]),
    ]


def _label_row(name: str, labels: Mapping[str, Any]) -> list[str]:
    counts: dict[str, int] = labels["counts"]
    commonest = sorted(counts, key=lambda label: (-counts[label], int(label)))
    shown = " ".join(f"{label}:{counts[label]}" for label in commonest[:_TABLE_LABELS])
    more = len(commonest) - _TABLE_LABELS
    return [
        name,
        f"{sum(counts.values()):,}",
        str(len(counts)),
        _decimal(labels["mean_distinct_per_user"]),
        _decimal(labels["mean_total_variation"]),
        shown + (f" and {more} more" if more > 0 else ""),
    ]


def _decimal(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _table(header: list[str], rows: list[list[str]]) -> list[str]:
    """Columns padded to their widest cell; the first and a last wordy one flush left."""
    cells = [header, *rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    wordy = {0} | ({len(header) - 1} if any(" " in row[-1] for row in cells) else set())
    return [
        "  ".join(
            cell.ljust(width) if column in wordy else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
