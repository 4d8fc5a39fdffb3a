"""How values spread over clients, and over the values of a column: sums by group, percentiles.

Percentiles in which each group weighs the same are linear between ranks (numpy's default). Where a
group weighs w, the percentile p is the inverse of the weighted distribution function: the smallest
mean m such that the groups with means up to m hold at least p percent of all weight. So it is some
group's mean, and a group of weight 3 counts as three groups of weight 1 do.

The standard deviation is that of the population: divided by the number of groups, or by the weight.
If a group's mean is not finite, neither spread nor percentiles are defined: they are NaN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_bench.types import DataError

PERCENTILES = (10, 25, 50, 75, 90)

Values = Mapping[str, NDArray[np.float64]]


class GroupSums:
    """Weighted sums of what examples have on their own, by group.

    Memory grows with the groups, not with the examples. Values of one instance share weights.

    Args:
        num_groups: Groups that there are; more are made room for as they come.
    """

    def __init__(self, num_groups: int = 0) -> None:
        self._num_groups = num_groups
        self._weights: NDArray[np.float64] = np.zeros(num_groups)
        self._sums: dict[str, NDArray[np.float64]] = {}

    def add(self, groups: NDArray[np.int64], values: Values, weights: NDArray[np.float64]) -> None:
        """Take examples in.

        Args:
            groups: Shape (n,), the group of each example.
            values: By name, of shape (n,); the same names at each call.
            weights: Shape (n,), at least 0; what weighs 0 is left out, whatever its values.
        """
        if len(groups):
            self._num_groups = max(self._num_groups, int(groups.max()) + 1)
        counted = weights > 0
        # Groups of a batch are few: summed among themselves, then added where they belong.
        present, places = np.unique(groups[counted], return_inverse=True)
        self._weights = _room(self._weights, self._num_groups)
        self._weights[present] += np.bincount(places, weights[counted], len(present))
        for name, column in values.items():
            sums = _room(self._sums.get(name, np.zeros(0)), self._num_groups)
            weighted = column[counted] * weights[counted]
            sums[present] += np.bincount(places, weighted, len(present))
            self._sums[name] = sums

    def merge(self, other: GroupSums, places: NDArray[np.int64] | None = None) -> None:
        """Take in what another instance has summed.

        Args:
            other: Not changed.
            places: Shape (G,), which of these groups each of the other's is; None for the same.
        """
        groups = np.arange(other._num_groups) if places is None else places
        if len(groups):
            self._num_groups = max(self._num_groups, int(groups.max()) + 1)
        self._weights = _room(self._weights, self._num_groups)
        self._weights[groups] += other.weights
        for name, column in other._sums.items():
            sums = _room(self._sums.get(name, np.zeros(0)), self._num_groups)
            sums[groups] += _room(column, other._num_groups)[: other._num_groups]
            self._sums[name] = sums

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the values."""
        return tuple(self._sums)

    @property
    def weights(self) -> NDArray[np.float64]:
        """Shape (G,): the weight of each group."""
        return self._weights[: self._num_groups]

    def means(self, name: str) -> NDArray[np.float64]:
        """Weighted mean of a value in each group, shape (G,); NaN where there is no weight."""
        weights = self.weights
        result: NDArray[np.float64] = np.full(len(weights), np.nan)
        sums = self._sums[name][: len(weights)]
        np.divide(sums, weights, out=result, where=weights > 0)
        return result


class Stratum:
    """One column of the data, such as play: what the examples of each of its values come to.

    Args:
        column: Name of the column.
    """

    def __init__(self, column: str) -> None:
        self.column = column
        self._slots: dict[int, int] = {}
        self._families: list[GroupSums] = []
        self._examples: NDArray[np.int64] = np.zeros(0, np.int64)
        self._clients: NDArray[np.int64] = np.zeros(0, np.int64)
        self._last_client = -1
        self._seen: set[int] = set()

    def add(
        self,
        numbers: NDArray[np.int64],
        clients: NDArray[np.int64],
        families: Sequence[tuple[Values, NDArray[np.float64]]],
    ) -> None:
        """Take examples in.

        Args:
            numbers: Shape (n,), the column.
            clients: Shape (n,), ascending, and none below those of the call before.
            families: Values and weights of each family of metrics, each of shape (n,).
        """
        present, places = np.unique(numbers, return_inverse=True)
        slots = np.array(
            [self._slots.setdefault(int(value), len(self._slots)) for value in present], np.int64
        )
        groups = slots[places]
        self._examples = _room(self._examples, len(self._slots))
        self._examples[slots] += np.bincount(places, minlength=len(present))
        self._count_clients(groups, clients)
        if not self._families:
            self._families = [GroupSums() for _ in families]
        for sums, (values, weights) in zip(self._families, families, strict=True):
            sums.add(groups, values, weights)

    def _count_clients(self, groups: NDArray[np.int64], clients: NDArray[np.int64]) -> None:
        """Count each pair of client and value once, though a client may go on in the next batch."""
        self._clients = _room(self._clients, len(self._slots))
        pairs = np.unique(np.stack([clients, groups], axis=1), axis=0)
        if not len(pairs):
            return
        going_on = pairs[:, 0] == self._last_client
        known = going_on & np.isin(pairs[:, 1], np.fromiter(self._seen, np.int64, len(self._seen)))
        new = pairs[~known]
        np.add.at(self._clients, new[:, 1], 1)
        last = int(pairs[-1, 0])
        if last != self._last_client:
            self._seen = set()
            self._last_client = last
        self._seen.update(pairs[pairs[:, 0] == last, 1].tolist())

    def merge(self, other: Stratum) -> None:
        """Take in what another instance has seen of the same column, of other clients.

        Args:
            other: Not changed.
        """
        numbers = list(other._slots)
        places = np.array([self._slots.setdefault(n, len(self._slots)) for n in numbers], np.int64)
        self._examples = _room(self._examples, len(self._slots))
        self._clients = _room(self._clients, len(self._slots))
        self._examples[places] += _room(other._examples, len(numbers))[: len(numbers)]
        self._clients[places] += _room(other._clients, len(numbers))[: len(numbers)]
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
                result[f"{stem}_mean"] = _mean(means)
                result |= {f"{stem}_{key}": value for key, value in spread(means).items()}
        return result

    def table(self, names: Sequence[str] | None) -> dict[str, dict[str, Any]]:
        """What the examples of each of the column's values come to.

        Args:
            names: What the column's numbers are called; None if they are just numbers.

        Returns:
            By name of the column's value, in the order of their numbers: "examples", "clients"
            (that have at least one of them), and the mean of each example's values, NaN where
            nothing counts.

        Raises:
            DataError: A number of the column has no name.
        """
        means = {name: sums.means(name) for sums in self._families for name in sums.names}
        table: dict[str, dict[str, Any]] = {}
        for number, slot in sorted(self._slots.items()):
            row = {"examples": int(self._examples[slot]), "clients": int(self._clients[slot])}
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


def over_clients(sums: GroupSums) -> dict[str, float]:
    """How each value spreads over clients that have weight.

    Returns:
        For each value v: "v_by_client" (mean over clients, all alike), "client_v_sd" and
        "client_v_p10" to "_p90" (all alike), and "client_v_weighted_sd" and
        "client_v_weighted_p10" to "_p90" (each client by its weight). NaN without any client.
    """
    weights = sums.weights
    counted = weights > 0
    result: dict[str, float] = {}
    for name in sums.names:
        means = sums.means(name)[counted]
        result[f"{name}_by_client"] = _mean(means)
        plain, weighted = spread(means), weighted_spread(means, weights[counted])
        result |= {f"client_{name}_{key}": value for key, value in plain.items()}
        result |= {f"client_{name}_weighted_{key}": value for key, value in weighted.items()}
    return result


def spread(means: NDArray[np.float64]) -> dict[str, float]:
    """Standard deviation ("sd") and percentiles ("p10" to "p90") of means that weigh the same."""
    if not _is_defined(means):
        return _undefined()
    points = np.percentile(means, PERCENTILES)
    named = {f"p{p}": float(point) for p, point in zip(PERCENTILES, points, strict=True)}
    return {"sd": float(means.std()), **named}


def weighted_spread(means: NDArray[np.float64], weights: NDArray[np.float64]) -> dict[str, float]:
    """Standard deviation ("sd") and percentiles ("p10" to "p90") of means that have weights.

    Args:
        means: Shape (G,).
        weights: Shape (G,), above 0.
    """
    if not _is_defined(means):
        return _undefined()
    middle = np.average(means, weights=weights)
    result = {"sd": float(np.sqrt(np.average((means - middle) ** 2, weights=weights)))}
    order = np.argsort(means, kind="stable")
    held = np.cumsum(weights[order])
    for p in PERCENTILES:
        # Whole weights stay whole numbers, so that the comparison has no rounding in it.
        place = np.searchsorted(held * 100.0, p * held[-1], side="left")
        result[f"p{p}"] = float(means[order[place]])
    return result


def _mean(means: NDArray[np.float64]) -> float:
    return float(means.mean()) if len(means) else float("nan")


def _is_defined(means: NDArray[np.float64]) -> bool:
    return len(means) > 0 and bool(np.isfinite(means).all())


def _undefined() -> dict[str, float]:
    return dict.fromkeys(["sd", *(f"p{p}" for p in PERCENTILES)], float("nan"))


def _room(array: NDArray[Any], size: int) -> NDArray[Any]:
    """The array, or a copy with zeros behind it, so that it holds ``size`` elements at least."""
    if len(array) >= size:
        return array
    # Growing by a factor keeps the copying linear in the end.
    grown = np.zeros(max(size, 2 * len(array)), array.dtype)
    grown[: len(array)] = array
    return grown
