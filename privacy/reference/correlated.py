"""Noise that is correlated over rounds: which draws make a round's noise, with what weights.

The noise of T rounds is C^-1 Z for a lower triangular C. Row t of Z are the first P draws of the
stream of round t. A user in one round moves C X by a column of C, so that z is the multiplier of
one round if no column has a norm above 1; numbers that are found by a search are taken as they
are recorded, and checked for that.

| mechanism | C |
|---|---|
| banded_matrix_factorization | the same ``bands`` coefficients in each column, of norm 1: the first of (1 - x)^(-1/2), or recorded ones |
| column_normalized_banded | ``bands`` recorded coefficients of its own in each column |
| buffered_toeplitz | in each column f, and then f times the sum over i of w_i q_i^(n - 1) |
| banded_inverse_square_root | C^-1 has the first ``bands`` coefficients of (1 - x)^(1/2) in each column, scaled so that the first column of C has norm 1 over T rounds |

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

from privacy.reference.noise import Gaussian, Setting
from privacy.reference.streams import NOISE, stream

Array = NDArray[np.float64]
# Of each draw of P numbers, by its round and its place in the round's stream.
Weights = dict[tuple[int, int], float]


def series(power: float, count: int) -> Array:
    """The first coefficients of (1 - x)^power, shape (count,)."""
    ratios = [1.0, *((n - 1 - power) / n for n in range(1, count))]
    return np.array(np.cumprod(ratios), dtype=np.float64)


def columns(setting: Setting) -> Array:
    """C, shape (T, bands): row s has C[s, s], C[s + 1, s], and so on."""
    rounds, options, strategy = setting.num_rounds, setting.options, setting.strategy
    if setting.name == "column_normalized_banded":
        return np.asarray(strategy, dtype=np.float64)
    if setting.name == "buffered_toeplitz":
        f, w, q = (np.array(strategy[key]) for key in ("first", "weights", "decays"))
        column = f * np.array([1.0, *(w @ q ** (n - 1) for n in range(1, rounds))])
    elif setting.name == "banded_inverse_square_root":
        inverse = np.broadcast_to(series(0.5, options["bands"]), (rounds, options["bands"]))
        column = inverse_row(inverse, rounds)[::-1]
        column /= np.linalg.norm(column)
    elif options["strategy"] == "square_root":
        column = series(-0.5, options["bands"])
        column /= np.linalg.norm(column)
    else:
        column = np.array(strategy, dtype=np.float64)
    return np.broadcast_to(column, (rounds, len(column)))


def inverse_row(c: Array, number: int) -> Array:
    """Row of C^-1, shape (number,), by substitution from its end."""
    bands = c.shape[1]
    row = np.zeros(number + bands)
    for s in reversed(range(number)):
        row[s] = (float(s == number - 1) - row[s + 1 : s + bands] @ c[s, 1:]) / c[s, 0]
    return row[:number]


def of_tree(size: int, number: int) -> Weights:
    """Of nodes, by the round that completes one and its level; trees of ``size`` rounds."""
    weights: Weights = defaultdict(float)

    def estimate(last: int, level: int, share: float) -> None:
        own = 1.0
        for _ in range(level):
            own = 1.0 / (1.0 + 0.5 / own)
        weights[last, level] += share * own
        if level:
            for child in (last - (1 << (level - 1)), last):
                estimate(child, level - 1, share * (1.0 - own))

    for prefix, sign in ((number, 1.0), (number - 1, -1.0)):
        at = (number - 1) // size * size
        while at < prefix:
            level = (prefix - at).bit_length() - 1
            at += 1 << level
            estimate(at, level, sign)
    return {node: weight for node, weight in weights.items() if weight}


class Correlated(Gaussian):
    """Adds the weighted draws of this round and of rounds before it."""

    def begin(self, number: int) -> None:
        """Find the round's weights; what substitution rounds from 0 is left out."""
        super().begin(number)
        if self.setting.name == "tree_aggregation":
            self.weights = of_tree(self.setting.options["restart_every"] or number, number)
        else:
            row = inverse_row(columns(self.setting), number)
            self.weights = {(s + 1, 0): w for s, w in enumerate(row.tolist()) if abs(w) > 1e-12}

    def flaw(self) -> str:
        """That a column has a norm above 1, an element below 0, or too many elements."""
        name, planned = self.setting.name, self.setting.num_rounds
        if name == "tree_aggregation":
            return ""
        c, most = columns(self.setting), planned
        if name in ("banded_matrix_factorization", "column_normalized_banded"):
            most = self.setting.options["bands"]
        if len(c) != planned or c.shape[1] > most or (c < 0.0).any() or (c[:, 0] <= 0.0).any():
            return f"the strategy is no matrix of {planned} columns and {most} bands from 0 on"
        norm = float(np.linalg.norm(c, axis=1).max())
        return f"a column of the strategy has norm {norm:.9g}, above 1" if norm > 1 + 1e-9 else ""

    @property
    def stddev(self) -> float:
        """That of all weighted draws together."""
        return super().stddev * math.hypot(*self.weights.values())

    def noise(self, rng: np.random.Generator) -> Tensor:
        """All weighted draws, each taken anew from the stream of its round; shape (P,)."""
        total = torch.zeros(self.setting.length, dtype=torch.float64)
        for number in {number for number, _ in self.weights}:
            source = stream(self.setting.seed, NOISE, number)
            for place in range(1 + max(j for t, j in self.weights if t == number)):
                draw = torch.from_numpy(source.standard_normal(self.setting.length))
                total += self.weights.get((number, place), 0.0) * draw
        return super().stddev * total
