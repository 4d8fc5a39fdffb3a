"""The sum over rounds that shows best whether a canary was in: its weights, and how far it moves.

Guarantee: none; this is arithmetic. With S the covariance of a round's noise with those of others,
at noise multiplier 1, and a the participation that is expected of a canary that is in, the weights
are S^-1 a. The sum has standard deviation z (a S^-1 a)^(1/2) without the canary, and is moved by
a S^-1 a by one that takes part as expected: no other linear sum is moved further in its standard
deviations (the matched filter).

Covariances: the identity where noise is drawn anew; (C^T C)^-1, of the noise C^-1 Z, of a Toeplitz
strategy, banded or not; of trees, from the estimates that a round releases
(``privacy.noise.tree_factorization``), which say a little less than all nodes.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from privacy.description import FRESH, Buffers, Inverse, Tree
from privacy.noise.factorization import noise_coefficients
from privacy.noise.tree_factorization import tree_levels

Array = NDArray[np.float64]
Strategy = tuple[float, ...] | Tree | Inverse | Buffers

# A matrix of so many rounds squared is 128 MB.
MOST_ROUNDS = 4000


def noise_covariance(strategy: Strategy, rounds: int) -> Array:
    """Covariance of the noise of all rounds at noise multiplier 1: shape (T, T).

    T is at most ``MOST_ROUNDS`` where the noise of rounds goes together.
    """
    if isinstance(strategy, Tree):
        made_of = _tree_matrix(rounds, strategy.restart_every)
    else:
        from scipy.linalg import toeplitz

        first = np.array(strategy) if isinstance(strategy, tuple) else strategy.column(rounds)
        column = noise_coefficients(first, rounds)
        made_of = np.tril(toeplitz(column, np.zeros(rounds)))
    return np.asarray(made_of @ made_of.T)


def _tree_matrix(rounds: int, restart_every: int | None) -> Array:
    """Weight of each node's draw in each round's noise: shape (T, nodes)."""
    own, child = tree_levels()
    matrix = np.zeros((rounds, 2 * rounds))
    used, place = 0, 0
    # Estimates of the open nodes, of larger subtrees first: level, weights of the draws.
    nodes: list[tuple[int, Array]] = []
    for index in range(rounds):
        if place == (restart_every or rounds + 1):
            nodes, place = [], 0
        before = sum((weights for _, weights in nodes), np.zeros(2 * rounds))
        level, estimate = 0, np.zeros(2 * rounds)
        estimate[used] = 1.0
        used += 1
        while nodes and nodes[-1][0] == level:
            left = nodes.pop()[1]
            level += 1
            estimate = child[level] * (left + estimate)
            estimate[used] = own[level]
            used += 1
        nodes.append((level, estimate))
        matrix[index] = sum((weights for _, weights in nodes), np.zeros(2 * rounds)) - before
        place += 1
    return matrix


class MatchedSum:
    """Matched sums of canaries that can be in the rounds of one of several groups.

    ``expected``, shape (groups, T), is the participation of each group that is expected.

    Attributes:
        weights: Shape (groups, T): what a round's release counts; the sum then has standard
            deviation z without the canary.
        lengths: Shape (groups,): how far a canary moves its sum on average; 0 for a group that
            can be in no round.
    """

    def __init__(self, strategy: Strategy, expected: Array) -> None:
        if strategy == FRESH:
            solved: Array = expected
        else:
            covariance = noise_covariance(strategy, expected.shape[1])
            solved = np.asarray(np.linalg.solve(covariance, expected.T).T, dtype=np.float64)
        self._strategy, self._expected = strategy, expected
        self.lengths = np.sqrt(np.maximum((solved * expected).sum(axis=1), 0.0))
        self.weights = solved / np.where(self.lengths > 0.0, self.lengths, 1.0)[:, None]

    def after(self, rounds: int) -> tuple[Array, Array]:
        """Standard deviations and lengths where a run has ended after so many rounds, at most T.

        Shape (groups,) each: of the sum of these rounds without a canary, at z = 1; and how far a
        canary moves it on average, in such standard deviations (0 where there are none).
        """
        weights, expected = self.weights[:, :rounds], self._expected[:, :rounds]
        if self._strategy == FRESH:
            squares = (weights**2).sum(axis=1)
        else:
            covariance = noise_covariance(self._strategy, self._expected.shape[1])
            squares = ((weights @ covariance[:rounds, :rounds]) * weights).sum(axis=1)
        deviations = np.sqrt(np.maximum(squares, 0.0))
        moved = (weights * expected).sum(axis=1)
        return deviations, moved / np.where(deviations > 0.0, deviations, 1.0)


def is_small(strategy: Strategy | None, rounds: int) -> bool:
    """Whether sums can be matched: a Gaussian strategy is stated, and rounds are few enough."""
    return strategy is not None and (strategy == FRESH or rounds <= MOST_ROUNDS) and rounds > 0


def expected_participation(rate: float, separation: int, cap: int | None, rounds: int) -> Array:
    """Participation that is expected of each group: shape (separation, T).

    ``rate`` is the probability of an eligible user in a round; as many groups as the separation
    take turns; ``cap`` is the most rounds of a user, None for no limit.
    """
    turn, group = np.divmod(np.arange(rounds), separation)
    allowed = turn < (math.inf if cap is None else cap)
    can = (group == np.arange(separation)[:, None]) & allowed
    return np.where(can, rate, 0.0)
