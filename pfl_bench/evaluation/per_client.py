"""Distributions of values over clients, and over a column's values: sums by group, percentiles.

Percentiles in which each group weighs the same are linear between ranks (numpy's default). Where a
group weighs w, the percentile p is the inverse of the weighted distribution function: the smallest
mean m such that the groups with means up to m hold at least p percent of all weight. So it is some
group's mean, and a group of weight 3 counts as three groups of weight 1 do.

The standard deviation is that of the population: divided by the number of groups, or by the weight.
If a group's mean is not finite, neither spread nor percentiles are defined: they are NaN.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

PERCENTILES = (10, 25, 50, 75, 90)

Values = Mapping[str, NDArray[np.float64]]


class GroupSums:
    """Weighted sums of what examples have on their own, by group.

    Memory grows with the groups, not with the examples; room is made for more groups as they come.
    Values of one instance share weights.
    """

    def __init__(self, num_groups: int = 0) -> None:
        self._num_groups = num_groups
        self._weights: NDArray[np.float64] = np.zeros(num_groups)
        self._sums: dict[str, NDArray[np.float64]] = {}

    def add(self, groups: NDArray[np.int64], values: Values, weights: NDArray[np.float64]) -> None:
        """Take in n examples: groups, weights, and values by name, the same names at each call.

        All have shape (n,). Weights are at least 0; what weighs 0 is left out, whatever its values.
        """
        self._make_room(groups, values)
        counted = weights > 0
        # Groups of a batch are few: summed among themselves, then added where they belong.
        present, places = np.unique(groups[counted], return_inverse=True)
        self._weights[present] += np.bincount(places, weights[counted], len(present))
        for name, column in values.items():
            weighted = column[counted] * weights[counted]
            self._sums[name][present] += np.bincount(places, weighted, len(present))

    def merge(self, other: GroupSums, places: NDArray[np.int64] | None = None) -> None:
        """Take in what another instance has summed, of groups that are ``places``, shape (G,).

        None stands for the same groups.
        """
        groups = np.arange(other._num_groups) if places is None else places
        self._make_room(groups, other._sums)
        self._weights[groups] += other.weights
        for name, column in other._sums.items():
            self._sums[name][groups] += column[: other._num_groups]

    def _make_room(self, groups: NDArray[np.int64], names: Iterable[str]) -> None:
        """Make room for groups, shape (n,), in the weights and in the sums of some names."""
        self._num_groups = max(self._num_groups, int(groups.max(initial=-1)) + 1)
        self._weights = _room(self._weights, self._num_groups)
        for name in names:
            self._sums[name] = _room(self._sums.get(name, np.zeros(0)), self._num_groups)

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
        np.divide(self._sums[name][: len(weights)], weights, out=result, where=weights > 0)
        return result


def over_clients(sums: GroupSums) -> dict[str, float]:
    """Distribution of each value over the clients that have weight; NaN without any client.

    For each value v: "v_by_client" (mean over clients, all alike), "client_v_sd" and "client_v_p10"
    to "_p90" (all alike), and "client_v_weighted_sd" and "client_v_weighted_p10" to "_p90" (each
    client by its weight).
    """
    weights = sums.weights
    counted = weights > 0
    result: dict[str, float] = {}
    for name in sums.names:
        means = sums.means(name)[counted]
        result[f"{name}_by_client"] = mean_of(means)
        plain, weighted = spread(means), weighted_spread(means, weights[counted])
        result |= {f"client_{name}_{key}": value for key, value in plain.items()}
        result |= {f"client_{name}_weighted_{key}": value for key, value in weighted.items()}
    return result


def spread(means: NDArray[np.float64]) -> dict[str, float]:
    """Standard deviation "sd" and percentiles "p10" to "p90" of means, shape (G,), all alike."""
    if not _is_defined(means):
        return _undefined()
    points = np.percentile(means, PERCENTILES)
    named = {f"p{p}": float(point) for p, point in zip(PERCENTILES, points, strict=True)}
    return {"sd": float(means.std()), **named}


def weighted_spread(means: NDArray[np.float64], weights: NDArray[np.float64]) -> dict[str, float]:
    """As ``spread``, of means that have weights above 0, shape (G,) each."""
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


def mean_of(means: NDArray[np.float64]) -> float:
    """Mean of means, shape (G,), that weigh the same; NaN of none."""
    return float(means.mean()) if len(means) else float("nan")


def _is_defined(means: NDArray[np.float64]) -> bool:
    return len(means) > 0 and bool(np.isfinite(means).all())


def _undefined() -> dict[str, float]:
    return dict.fromkeys(["sd", *(f"p{p}" for p in PERCENTILES)], float("nan"))


def _room(array: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """The array, of shape (n,), or a copy with zeros behind it: at least ``size`` elements."""
    if len(array) >= size:
        return array
    # Growing by a factor keeps the copying linear in the end.
    grown = np.zeros(max(size, 2 * len(array)))
    grown[: len(array)] = array
    return grown
