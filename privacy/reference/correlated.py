"""Noise that is correlated over rounds: which draws make a round's noise, with what weights.

The noise X of T rounds is C^-1 Z for a lower triangular C. Row t of Z are the first P draws of the
stream of round t. Rounds are solved one after another: row t of X from row t of C X = Z. A user in
one round moves C X by a column of C, so that z is the multiplier of one round if no column has a
norm above 1; numbers that are found by a search are taken as they are recorded, and checked for
that.

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

import itertools
import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privacy.reference.noise import Gaussian, Setting
from privacy.reference.streams import NOISE, stream

Array = NDArray[np.float64]
# Vectors that the noise of coming rounds is made with, until the next of them is drawn.
Kept = Sequence[Array]


def series(power: float, count: int) -> Array:
    """The first coefficients of (1 - x)^power, shape (count,)."""
    ratios = [1.0, *((n - 1 - power) / n for n in range(1, count))]
    return np.array(np.cumprod(ratios), dtype=np.float64)


def columns(setting: Setting) -> Array:
    """C, shape (T, bands): row s has C[s, s], C[s + 1, s], and so on; not of an inverse."""
    rounds, options, strategy = setting.num_rounds, setting.options, setting.strategy
    if setting.name == "column_normalized_banded":
        return np.asarray(strategy, dtype=np.float64)
    if setting.name == "buffered_toeplitz":
        f, w, q = (np.array(strategy[key]) for key in ("first", "weights", "decays"))
        column = f * np.array([1.0, *(w @ q ** (n - 1) for n in range(1, rounds))])
    elif options["strategy"] == "square_root":
        column = series(-0.5, options["bands"])
        column /= np.linalg.norm(column)
    else:
        column = np.array(strategy, dtype=np.float64)
    return np.broadcast_to(column, (rounds, len(column)))


def banded(c: Array, draws: Iterable[Any]) -> Iterator[tuple[Any, Kept]]:
    """X of a banded C, shape (T, bands); kept are the last rows of X, the latest first."""
    before: deque[Any] = deque(maxlen=c.shape[1] - 1)
    for t, draw in enumerate(draws):
        x = (draw - sum(c[t - k, k] * old for k, old in enumerate(before, start=1))) / c[t, 0]
        before.appendleft(x)
        yield x, before


def inverse_banded(
    column: Array, rounds: int, draws: Iterable[Array]
) -> Iterator[tuple[Array, Kept]]:
    """X where a multiple of C^-1 has these coefficients in each column, shape (bands,).

    Kept are the last draws, the latest first.
    """
    one = [1.0] + [0.0] * (rounds - 1)
    of_one = banded(np.broadcast_to(column, (rounds, len(column))), one)
    norm = math.hypot(*(x for x, _ in of_one))
    recent: deque[Array] = deque(maxlen=len(column))
    for draw in draws:
        recent.appendleft(draw)
        kept = list(recent)[: len(column) - 1]
        yield norm * sum(a * z for a, z in zip(column, recent, strict=False)), kept


def buffered(f: float, w: Array, q: Array, draws: Iterable[Array]) -> Iterator[tuple[Array, Kept]]:
    """X where buffer i has the sum over n of q_i^(n - 1) times the row n rounds before."""
    buffers = np.zeros((len(w), 1))
    for draw in draws:
        x = draw / f - w @ buffers
        buffers = q[:, None] * buffers + x
        yield x, list(buffers)


def tree(size: int, draws: Iterable[Iterator[Array]]) -> Iterator[tuple[Array, float, Kept]]:
    """Noise of trees of ``size`` rounds, of each round's draws, and its standard deviation.

    Kept are the nodes of a prefix, the highest first.
    """
    nodes: list[Array] = []
    for t, of_round in enumerate(draws):
        if t % size == 0:
            nodes, before = [], np.zeros(1)
        node, own, completed = next(of_round), 1.0, t % size + 1
        # Variance of the nodes that this one replaces, and their covariance with it.
        replaced = shared = 0.0
        while completed % 2 == 0:
            child, own, completed = own, 1.0 / (1.0 + 0.5 / own), completed // 2
            node = own * next(of_round) + (1.0 - own) * (nodes.pop() + node)
            replaced, shared = replaced + child, (1.0 - own) * (shared + child)
        nodes.append(node)
        prefix = sum(nodes[1:], nodes[0])
        yield prefix - before, math.sqrt(own + replaced - 2.0 * shared), nodes
        before = prefix


def noises(setting: Setting) -> Iterator[tuple[Array, float, Kept]]:
    """Noise of each round of a run, shape (P,), at a draw's standard deviation of 1, and its own.

    With what is kept for the coming rounds, of which each is at least as long.

    A matrix is solved for its inverse's columns beside the noise: the first, if all are alike.
    """
    name, rounds, options = setting.name, setting.num_rounds, setting.options
    sources = (stream(setting.seed, NOISE, number) for number in range(1, rounds + 1))
    if name == "tree_aggregation":
        normals = (
            map(source.standard_normal, itertools.repeat(setting.length)) for source in sources
        )
        yield from tree(options["restart_every"] or rounds, normals)
        return
    width = rounds if name == "column_normalized_banded" else 1
    draws = (
        np.append(source.standard_normal(setting.length), np.arange(width) == t)
        for t, source in enumerate(sources)
    )
    if name == "banded_inverse_square_root":
        made = inverse_banded(series(0.5, options["bands"]), rounds, draws)
    elif name == "buffered_toeplitz":
        f, w, q = (np.array(setting.strategy[key]) for key in ("first", "weights", "decays"))
        made = buffered(float(f), w, q, draws)
    else:
        made = banded(columns(setting), draws)
    squares = 0.0
    for x, kept in made:
        noise, weights = np.split(x, [setting.length])
        squares = float(weights @ weights) + (squares if width == 1 else 0.0)
        yield noise, math.sqrt(squares), kept


class Noises:
    """Noise of the round that was asked for last; a later one goes on from there."""

    def __init__(self, setting: Setting) -> None:
        self._setting, self._number = setting, 0

    def at(self, number: int) -> tuple[Array, float, Kept]:
        """That of a round, from 1, as ``noises`` has it."""
        if not 0 < self._number <= number:
            self._made, self._number = noises(self._setting), 0
        while self._number < number:
            self._last, self._number = next(self._made), self._number + 1
        return self._last


class Correlated(Gaussian):
    """Adds the weighted draws of this round and of rounds before it; copies share the draws."""

    is_fresh = False

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._noises = Noises(setting)

    def begin(self, number: int) -> None:
        """Begin a round, from 1 to T."""
        super().begin(number)
        self._unit, self._of_unit, kept = self._noises.at(number)
        self._kept = [vector[: self.setting.length] for vector in kept]

    def flaw(self) -> str:
        """That a column has a norm above 1, an element below 0, or too many elements."""
        name, planned = self.setting.name, self.setting.num_rounds
        if name in ("tree_aggregation", "banded_inverse_square_root"):
            return ""
        c, most = columns(self.setting), planned
        if name in ("banded_matrix_factorization", "column_normalized_banded"):
            most = self.setting.options["bands"]
        if len(c) != planned or c.shape[1] > most or (c < 0.0).any() or (c[:, 0] <= 0.0).any():
            return f"the strategy is no matrix of {planned} columns and {most} bands from 0 on"
        norm = float(np.linalg.norm(c, axis=1).max())
        return f"a column of the strategy has norm {norm:.9g}, above 1" if norm > 1 + 1e-9 else ""

    def state(self) -> dict[str, Any]:
        """The rounds so far, and what later ones take back of their noise."""
        return {"rounds": self.number, "noise": self._kept if self.setting.multiplier else []}

    @property
    def stddev(self) -> float:
        """That of all weighted draws together."""
        return super().stddev * self._of_unit

    def noise(self, rng: np.random.Generator) -> Tensor:
        """All weighted draws; shape (P,)."""
        return super().stddev * torch.from_numpy(self._unit)
