"""Frequency of labels, in all and over users, and how much users differ in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_bench.data import StoreSplit
from pfl_bench.types import DataError

_BLOCK_EXAMPLES = 1 << 17
_BLOCK_USERS = 1 << 14


def has_labels(split: StoreSplit) -> bool:
    """Whether the split has a field "targets" of integer kind."""
    targets = split.fields.get("targets")
    return targets is not None and targets.numpy_dtype.kind in "iu"


def label_statistics(splits: Sequence[StoreSplit], num_classes: int) -> dict[str, Any]:
    """Count labels of splits of different users, and say how unequally users have them.

    A label outside 0 to ``num_classes`` - 1 is a ``DataError``, and so is a file that was cut.

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
    for _, labels in chain.from_iterable(_blocks(split, num_classes) for split in splits):
        pooled += np.bincount(labels, minlength=num_classes)
    share = pooled / max(1, pooled.sum())
    having = np.zeros(num_classes, dtype=np.int64)
    users, variation = 0, 0.0
    for owners, labels in chain.from_iterable(_blocks(split, num_classes) for split in splits):
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
