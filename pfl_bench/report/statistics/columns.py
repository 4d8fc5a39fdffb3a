"""Distribution of examples over the values of a column: play, subreddit, attribute."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_bench.data import Store, StoreSplit
from pfl_bench.types import DataError

_BLOCK_EXAMPLES = 1 << 20


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
