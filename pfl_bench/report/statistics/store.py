"""The statistics of a whole store, as one JSON-serialisable dictionary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_bench.data import Store, StoreSplit
from pfl_bench.report.statistics.columns import column_statistics
from pfl_bench.report.statistics.labels import has_labels, label_statistics
from pfl_bench.report.statistics.sizes import (
    quantity_skew,
    size_histogram,
    size_statistics,
    sizes_over_splits,
)


def store_statistics(store: Store) -> dict[str, Any]:
    """Describe a store's users, examples and labels, JSON-serialisable.

    Labels are the elements of the field "targets" if it is of integer kind: one an example, or
    several for targets of a shape or ragged ones; every element counts.

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
        - "labels": None without integer targets, else as ``label_statistics`` says.

    Source:
        Caldas et al. 2018 (LEAF), table 1, has users, examples, mean and standard deviation;
        Song et al. 2022 (FLAIR), section 4.2 and figure 2, left, the quantity skew.
    """
    splits = [store.split(name) for name in store.split_names]
    num_classes = store.facts.num_classes
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
        "splits": {split.name: _describe([split], num_classes) for split in splits},
        "all_splits": _describe(splits, num_classes) if store.facts.split_by == "user" else None,
    }


def _describe(splits: Sequence[StoreSplit], num_classes: int) -> dict[str, Any]:
    sizes = np.concatenate([np.diff(split.offsets) for split in splits])
    return {
        **_sizes(sizes),
        "quantity_skew": quantity_skew(sizes),
        "labels": label_statistics(splits, num_classes) if has_labels(splits[0]) else None,
    }


def _sizes(sizes: NDArray[np.int64]) -> dict[str, Any]:
    return {
        "users": len(sizes),
        "examples": int(sizes.sum()),
        "examples_per_user": size_statistics(sizes),
    }
