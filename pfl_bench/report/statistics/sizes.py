"""Numbers of examples of users, and how unequal they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_bench.data import StoreSplit

PERCENTILES = (10, 25, 50, 75, 90)
_CURVE_POINTS = 100
_HISTOGRAM_BINS = 30
# From this ratio of the largest to the smallest user, bins grow with the size.
_WIDE = 20


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
        "percentiles": {
            str(rank): float(value) for rank, value in zip(PERCENTILES, percentiles, strict=True)
        },
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
