"""Results told apart by a column of the data, such as the play that a line is from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_bench.evaluation.per_client import GroupSums, Values, mean_of, spread
from pfl_bench.types import ConfigError, DataError, HasColumns, Task

# One integer an example of each stratum's column, for a range of a split's examples.
Columns = list[NDArray[np.int64]]


class Stratum:
    """One column of the data, such as play: what the examples of each of its values come to."""

    def __init__(self, column: str) -> None:
        self.column = column
        # Of each value: its place in the families, its examples and its clients.
        self._slots: dict[int, int] = {}
        self._examples: Counter[int] = Counter()
        self._clients: Counter[int] = Counter()
        self._families: list[GroupSums] = []
        # The values that the last client has had: it may go on in the next batch.
        self._last: set[tuple[int, int]] = set()

    def add(
        self,
        numbers: NDArray[np.int64],
        clients: NDArray[np.int64],
        families: Sequence[tuple[Values, NDArray[np.float64]]],
    ) -> None:
        """Take examples in: the column's numbers, clients, and values and weights of each family.

        All have shape (n,). Clients ascend, and none is below those of the call before.
        """
        present, places = np.unique(numbers, return_inverse=True)
        groups = self._places(present.tolist())[places]
        self._examples.update(numbers.tolist())
        pairs = set(zip(clients.tolist(), numbers.tolist(), strict=True))
        self._clients.update(number for _, number in pairs - self._last)
        self._last = {pair for pair in pairs | self._last if pair[0] == clients[-1]}
        if not self._families:
            self._families = [GroupSums() for _ in families]
        for sums, (values, weights) in zip(self._families, families, strict=True):
            sums.add(groups, values, weights)

    def _places(self, numbers: Iterable[int]) -> NDArray[np.int64]:
        """Places of values of the column in the families, new ones behind the others."""
        return np.array([self._slots.setdefault(n, len(self._slots)) for n in numbers], np.int64)

    def merge(self, other: Stratum) -> None:
        """Take in what another instance has seen of the same column, of other clients."""
        places = self._places(other._slots)
        self._examples.update(other._examples)
        self._clients.update(other._clients)
        if not self._families:
            self._families = [GroupSums() for _ in other._families]
        for sums, more in zip(self._families, other._families, strict=False):
            # The last values of a column may have come without weight.
            sums.merge(more, places[: len(more.weights)])

    def scalars(self) -> dict[str, float]:
        """Mean, spread and percentiles of each value over the column's values, all alike.

        Each is named "stratum_<column>_<value>_mean" and so on.
        """
        result: dict[str, float] = {}
        for sums in self._families:
            for name in sums.names:
                means = sums.means(name)[sums.weights > 0]
                stem = f"stratum_{self.column}_{name}"
                result[f"{stem}_mean"] = mean_of(means)
                result |= {f"{stem}_{key}": value for key, value in spread(means).items()}
        return result

    def table(self, names: Sequence[str] | None) -> dict[str, dict[str, Any]]:
        """Metrics of the examples of each of the column's values, by its name or as a mere number.

        In the order of their numbers: "examples", "clients" (that have at least one of them), and
        the mean of each example's values, NaN where nothing counts. DataError if a number of the
        column has no name in ``names``.
        """
        means = {name: sums.means(name) for sums in self._families for name in sums.names}
        table: dict[str, dict[str, Any]] = {}
        for number, slot in sorted(self._slots.items()):
            row = {"examples": self._examples[number], "clients": self._clients[number]}
            called = self._called(number, names)
            # Two numbers may be called alike; neither is to hide the other.
            key = called if called not in table else f"{called} ({number})"
            table[key] = row | {name: float(column[slot]) for name, column in means.items()}
        return table

    def _called(self, number: int, names: Sequence[str] | None) -> str:
        if names is None:
            return str(number)
        if not 0 <= number < len(names):
            raise DataError(
                f"column '{self.column}': an example has {number}, but the data name the values 0 "
                f"to {len(names) - 1}; prepare the data anew"
            )
        return names[number]


class Strata:
    """Empty accumulators of the columns by whose values results are told apart, of one evaluation.

    ConfigError if the data have no such column.
    """

    def __init__(self, task: Task, columns: Sequence[str]) -> None:
        self._task: HasColumns | None = task if isinstance(task, HasColumns) else None
        there = () if self._task is None else self._task.column_names
        for name in columns:
            if name not in there:
                raise ConfigError(
                    f"evaluation.strata: the data have no column '{name}' to tell results apart "
                    f"by; there are: {', '.join(there) or 'none'}"
                )
        self.parts = [Stratum(name) for name in columns]

    def read(self, split: str, start: int, stop: int) -> Columns:
        """Read the columns of the examples ``start:stop`` of a split."""
        if self._task is None:
            return []
        return [self._task.read_column(split, s.column, start, stop) for s in self.parts]

    def add(
        self,
        columns: Columns,
        clients: NDArray[np.int64],
        families: Sequence[tuple[Values, NDArray[np.float64]]],
    ) -> None:
        """Take a batch in; see ``Stratum.add``."""
        for stratum, column in zip(self.parts, columns, strict=True):
            stratum.add(column, clients, families)

    def tables(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Metrics of the examples of each value of each column, by the names of both."""
        if self._task is None:
            return {}
        return {s.column: s.table(self._task.column_values(s.column)) for s in self.parts}
