"""Noise that is correlated over rounds: which draws make a round's noise, with what weights.

The noise of T rounds is C^-1 Z for a lower triangular C. Row t of Z are the first P draws of the
stream of round t. A user in one round moves C X by a column of C, so that z is the multiplier of
one round if no column has a norm above 1; numbers that are found by a search are taken as they
are recorded, and checked for that.

| mechanism | C |
|---|---|
| banded_matrix_factorization | each column has the same ``bands`` coefficients, of norm 1: the first of (1 - x)^(-1/2), or recorded ones |
| column_normalized_banded | each column has ``bands`` recorded coefficients of its own |
| buffered_toeplitz | each column has f, and then f times the sum over i of w_i q_i^(n - 1) |
| banded_inverse_square_root | C^-1 has the first ``bands`` coefficients of (1 - x)^(1/2), scaled so that the first column of C has norm 1 over T rounds |

A tree has the rounds' sums as leaves. The round that completes a node of level j draws the node's
noise: draws jP to (j + 1)P of its stream. A node's estimate, of variance v_j, is v_j times its own
noisy sum and 1 - v_j times its children's: v_0 = 1, 1 / v_j = 1 + 1 / (2 v_(j-1)). A prefix of
rounds is the sum of the fewest nodes under it; a round's noise is that of two prefixes, subtracted.

Source: Choquette-Choo et al. 2023, algorithm 1; Dvijotham et al. 2024 (buffers); Kalinin et al.
2025 (inverse square root); Kairouz et al. 2021, appendix B.1; Honaker 2015 (estimates of nodes).
"""  # noqa: E501

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privacy.reference.noise import Gaussian
from privacy.reference.streams import NOISE, stream

Array = NDArray[np.float64]


def series(first: float, power: float, count: int) -> Array:
    """Coefficients of (1 - x)^power from ``first`` on, shape (count,)."""
    out = [first]
    for n in range(1, count):
        out.append(out[-1] * (n - 1 - power) / n)
    return np.array(out)


def inverse_row(columns: Array, row: int) -> Array:
    """Row of C^-1, shape (row,), by substitution from its end.

    Args:
        columns: Shape (T, bands): C[s + lag, s].
        row: From 1.
    """
    bands = columns.shape[1]
    out = np.zeros(row + bands)
    for s in reversed(range(row)):
        below = out[s + 1 : s + bands] @ columns[s, 1:]
        out[s] = (float(s == row - 1) - below) / columns[s, 0]
    return out[:row]


class Correlated(Gaussian):
    """Adds the weighted draws of this round and of rounds before it."""

    def weights(self) -> dict[tuple[int, int], float]:
        """Weight of each draw of P numbers, by its round and its place in the round's stream."""
        row = inverse_row(self.columns(), self.number)
        return {(s + 1, 0): float(weight) for s, weight in enumerate(row) if weight}

    def columns(self) -> Array:
        """C, shape (T, bands), as ``inverse_row`` takes it."""
        raise NotImplementedError

    def flaw(self) -> str:
        """That a column has a norm above 1, an element below 0, or too many elements."""
        columns, (rounds, bands) = self.columns(), self.columns().shape
        norm, most = float(np.linalg.norm(columns, axis=1).max()), self.setting.options.get("bands")
        if rounds != self.setting.num_rounds or bands > (most or bands) or (columns < 0.0).any():
            return f"the strategy has {rounds} columns of {bands} bands, or an element below 0"
        return f"a column of the strategy has norm {norm:.9g}, above 1" if norm > 1 + 1e-9 else ""

    @property
    def stddev(self) -> float:
        """That of all weighted draws together."""
        return super().stddev * math.hypot(*self.weights().values())

    def noise(self, rng: np.random.Generator) -> Tensor:
        """All weighted draws, each taken anew from the stream of its round."""
        weights, total = self.weights(), np.zeros(self.setting.length)
        places: dict[int, int] = defaultdict(int)
        for number, place in weights:
            places[number] = max(places[number], place)
        for number, last in places.items():
            source = stream(self.setting.seed, NOISE, number)
            for place in range(last + 1):
                draw = source.standard_normal(self.setting.length)
                total += weights.get((number, place), 0.0) * draw
        return super().stddev * torch.from_numpy(total)


class Banded(Correlated):
    """The same coefficients in each column."""

    def columns(self) -> Array:
        """C, of norm 1 where it is not recorded."""
        column = np.array(self.setting.strategy)
        if self.setting.options["strategy"] == "square_root":
            column = series(1.0, -0.5, self.setting.options["bands"])
            column /= np.linalg.norm(column)
        return np.broadcast_to(column, (self.setting.num_rounds, len(column)))


class OwnColumns(Correlated):
    """Each column has its own coefficients."""

    def columns(self) -> Array:
        """C, recorded."""
        return np.asarray(self.setting.strategy, dtype=np.float64)


class Buffered(Correlated):
    """A column is the sum of geometric series."""

    def columns(self) -> Array:
        """C, of recorded f, w and q."""
        f, w, q = (np.array(self.setting.strategy[key]) for key in ("first", "weights", "decays"))
        rounds = self.setting.num_rounds
        column = f * np.array([1.0, *(w @ q ** (n - 1) for n in range(1, rounds))])
        return np.broadcast_to(column, (rounds, rounds))


class InverseSquareRoot(Correlated):
    """The inverse of C is banded."""

    def weights(self) -> dict[tuple[int, int], float]:
        """Of the last ``bands`` rounds."""
        bands, rounds = self.setting.options["bands"], self.setting.num_rounds
        inverse, column = series(1.0, 0.5, bands), np.zeros(rounds + bands)
        for n in range(rounds):
            column[n + bands - 1] = float(n == 0) - inverse[:0:-1] @ column[n : n + bands - 1]
        inverse *= np.linalg.norm(column)
        return {(self.number - n, 0): float(w) for n, w in enumerate(inverse[: self.number])}

    def flaw(self) -> str:
        """None: nothing is recorded."""
        return ""


class Tree(Correlated):
    """Nodes of binary trees."""

    def weights(self) -> dict[tuple[int, int], float]:
        """Of nodes, by the round that completes one and its level."""
        weights: dict[tuple[int, int], float] = defaultdict(float)

        def estimate(last: int, level: int, share: float) -> None:
            own = 1.0
            for _ in range(level):
                own = 1.0 / (1.0 + 0.5 / own)
            weights[last, level] += share * own
            if level:
                for child in (last - (1 << (level - 1)), last):
                    estimate(child, level - 1, share * (1.0 - own))

        size = self.setting.options["restart_every"] or self.number
        for prefix, sign in ((self.number, 1.0), (self.number - 1, -1.0)):
            at = (self.number - 1) // size * size
            while at < prefix:
                level = (prefix - at).bit_length() - 1
                at += 1 << level
                estimate(at, level, sign)
        return {node: weight for node, weight in weights.items() if weight}

    def flaw(self) -> str:
        """None: nothing is recorded."""
        return ""


CORRELATED: dict[str, type[Correlated]] = {
    "banded_matrix_factorization": Banded,
    "column_normalized_banded": OwnColumns,
    "buffered_toeplitz": Buffered,
    "banded_inverse_square_root": InverseSquareRoot,
    "tree_aggregation": Tree,
}
