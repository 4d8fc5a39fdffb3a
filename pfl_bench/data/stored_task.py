"""Shared by every task on a store: opening it, reading users, ranges and chosen examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_bench.data.in_memory import check_examples, user_range
from pfl_bench.data.reader import Store, StoreSplit
from pfl_bench.types import ConfigError, DataError, DataFacts, Examples

Convert = Callable[[Mapping[str, Any]], Examples]


class StoredSplit:
    """One split of a store, as trainers and evaluation read it.

    Args:
        stored: The store's split.
        fields: Names of the fields that ``convert`` takes.
        convert: Turns the fields of n examples (an array with n rows each; a list of n arrays for
            a ragged one) into what the model takes. It gives fresh tensors.
        max_examples_per_user: A user with more gives a random subset of this size, drawn anew at
            each read for training; None for no limit.

    Attributes:
        name: Name of the split.
        offsets: Shape (U + 1,): user u owns the examples ``offsets[u]:offsets[u + 1]``.
        num_users: Number of users, U.
        num_examples: Number of examples of all users.
    """

    def __init__(
        self,
        stored: StoreSplit,
        fields: Sequence[str],
        convert: Convert,
        max_examples_per_user: int | None = None,
    ) -> None:
        self._stored = stored
        self._fields = tuple(fields)
        self._convert = convert
        self._max_examples = max_examples_per_user
        self.name: str = stored.name
        self.offsets: NDArray[np.int64] = stored.offsets
        self.num_users: int = stored.num_users
        self.num_examples: int = stored.num_examples

    def client_ids(self) -> Sequence[str]:
        """The users' identifiers, in the order of ``offsets``."""
        return self._stored.client_ids()

    def read_user(self, user: int, rng: np.random.Generator) -> Examples:
        """Read a user's examples, or a fresh random subset if the user has too many.

        Args:
            user: Index of the user.
            rng: Draws the subset; untouched when all examples are read.

        Raises:
            IndexError: There is no such user.
        """
        start, stop = user_range(self, user)
        if self._max_examples is None or stop - start <= self._max_examples:
            return self.read_range(start, stop)
        chosen = np.sort(rng.choice(stop - start, self._max_examples, replace=False))
        return self._convert(
            {name: rows_at(self._stored.read(name, start, stop), chosen) for name in self._fields}
        )

    def read_range(self, start: int, stop: int) -> Examples:
        """Read the examples ``start:stop`` of all users; never subsampled.

        Raises:
            ValueError: The range is not within the split.
        """
        return self._convert({name: self._stored.read(name, start, stop) for name in self._fields})

    def read_examples(self, indices: NDArray[np.int64], rng: np.random.Generator) -> Examples:
        """Read chosen examples, in the order of ``indices``; ``rng`` stays untouched.

        Args:
            indices: Shape (n,), examples counted over all users; may repeat, may be empty.
            rng: Not used.

        Raises:
            IndexError: An index is outside the split.
        """
        return self._read(indices)

    def _read(self, indices: NDArray[np.int64]) -> Examples:
        return self._convert({name: self.gather(name, indices) for name in self._fields})

    def gather(self, field: str, indices: NDArray[np.int64]) -> Any:
        """Read one field of chosen examples, in the order of ``indices``.

        Args:
            field: Name of the field.
            indices: Shape (n,), examples counted over all users; may repeat, may be empty.

        Returns:
            Shape (n, *shape); a list of n arrays if the field is ragged.

        Raises:
            IndexError: An index is outside the split.
        """
        return gather(self._stored, field, indices)


def gather(stored: StoreSplit, field: str, indices: NDArray[np.int64]) -> Any:
    """Read one field of chosen examples of a split; shapes as of ``StoredSplit.gather``."""
    check_examples(stored.name, stored.num_examples, indices)
    order = np.argsort(indices, kind="stable")
    parts: list[Any] = []
    # One read a run of neighbours: a whole range in order costs one read.
    for run in np.split(order, np.flatnonzero(np.diff(indices[order]) != 1) + 1):
        start = int(indices[run[0]]) if len(run) else 0
        parts.append(stored.read(field, start, start + len(run)))
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    if isinstance(parts[0], list):
        return rows_at([row for part in parts for row in part], back)
    return np.concatenate(parts)[back]


def rows_at(rows: Any, chosen: NDArray[np.int64]) -> Any:
    """Rows at chosen places, shape (n,), of an array or a list."""
    if isinstance(rows, list):
        return [rows[place] for place in chosen]
    return rows[chosen]


class StoredTask:
    """The part of a task that its store gives; tasks add ``metrics``, ``loss`` and so on.

    The fact "artificial_users" in the store's ``extra`` says that examples were assigned to users
    who never had them.

    Examples can be told apart by each field of the store that holds one integer an example
    (``HasColumns``): a field "play" whose numbers the store's names "play" spell out.

    Args:
        store: An open store.
        fields: As for ``StoredSplit``.
        convert: As for ``StoredSplit``.
        max_examples_per_user: As for ``StoredSplit``.
        facts: Replacements of what the store knows, such as ``input_shape``.

    Attributes:
        store: The store.
        facts: What is known of the data.
        split_names: Splits that the store has.
    """

    def __init__(
        self,
        store: Store,
        fields: Sequence[str],
        convert: Convert,
        max_examples_per_user: int | None = None,
        **facts: Any,
    ) -> None:
        self.store = store
        self._fields = tuple(fields)
        self._convert = convert
        self._max_examples = max_examples_per_user
        artificial = bool(store.facts.extra.get("artificial_users", False))
        self.facts: DataFacts = replace(store.facts, artificial_users=artificial, **facts)
        self.split_names: tuple[str, ...] = store.split_names

    def split(self, name: str) -> StoredSplit:
        """Open one split.

        Raises:
            DataError: The store has no split of that name.
        """
        return StoredSplit(self.store.split(name), self._fields, self._convert, self._max_examples)

    @property
    def column_names(self) -> tuple[str, ...]:
        """Fields with one integer (or bool) an example."""
        return tuple(
            name
            for name, spec in self.store.fields.items()
            if not spec.ragged and not spec.shape and np.dtype(spec.dtype).kind in "biu"
        )

    def read_column(self, split: str, name: str, start: int, stop: int) -> NDArray[np.int64]:
        """Read a column of the examples ``start:stop`` of a split; shape (stop - start,).

        Raises:
            ConfigError: There is no such column.
        """
        if name not in self.column_names:
            raise ConfigError(
                f"column '{name}': the data have no such column of integers; there are: "
                f"{', '.join(self.column_names) or 'none'}"
            )
        values: NDArray[np.int64] = self.store.split(split).read(name, start, stop).astype(np.int64)
        return values

    def column_values(self, name: str) -> Sequence[str] | None:
        """Names of a column's values; None if they are numbers alone."""
        return self.store.names(name) if name in self.store.name_lists else None


def open_store(path: str | Path, task: str) -> Store:
    """Open the store that a task's options name; DataError if it is missing or another task's."""
    path = Path(path)
    if not path.is_file():
        raise DataError(
            f"task {task}: there is no file {path}; make it by "
            f"`pfl-bench data prepare {task} --source DIR --out {path}`, with the options that the "
            "first lines of the row give, if any (which public files DIR may hold: "
            f"tasks/{task}/README.md)"
        )
    store = Store(path)
    if store.task != task:
        store.close()
        raise DataError(
            f"task {task}: {path} was prepared for task {store.task!r}; give a store that "
            f"`pfl-bench data prepare {task}` wrote, or choose that task"
        )
    return store
