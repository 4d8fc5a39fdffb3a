"""The statistics of a whole store, as one JSON-serialisable dictionary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_bench.data import Store, StoreSplit
from pfl_bench.report.statistics.labels import has_labels, label_statistics
from pfl_bench.report.statistics.sizes import (
    quantity_skew,
    size_histogram,
    size_statistics,
    sizes_over_splits,
)
from pfl_bench.types import DataError

_BLOCK_EXAMPLES = 1 << 20


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
    lowest = 0
    if np.dtype(split.fields[column].dtype) == np.int8:
        lowest = -128
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
