"""Factorisations of the prefix sums: sensitivities by enumeration, errors by dense matrices."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from dp_accounting import dp_event, rdp
from dp_accounting.privacy_accountant import NeighboringRelation

from privacy.errors import PrivacyError
from privacy.noise.factorization import (
    noise_coefficients,
    optimized_coefficients,
    prefix_errors,
    square_root_coefficients,
    squared_sensitivities,
    toeplitz_profile,
)
from privacy.noise.tree_factorization import (
    tree_levels,
    tree_noise_profile,
    tree_prefix_errors,
    tree_squared_sensitivity,
)

Matrix = np.ndarray[Any, Any]


def dense(coefficients: Matrix, rounds: int) -> Matrix:
    matrix = np.zeros((rounds, rounds))
    for column in range(rounds):
        length = min(len(coefficients), rounds - column)
        matrix[column : column + length, column] = coefficients[:length]
    return matrix


def patterns(rounds: int, separation: int) -> list[Matrix]:
    """Everything a user can do: for each group, in each round of it, -1, 0 or 1."""
    found = []
    for first in range(min(separation, rounds)):
        own = range(first, rounds, separation)
        for signs in itertools.product((-1.0, 0.0, 1.0), repeat=len(own)):
            pattern = np.zeros(rounds)
            pattern[list(own)] = signs
            found.append(pattern)
    return found


def tree_nodes(rounds: int, restart_every: int | None) -> Matrix:
    """A row a complete node, with 1 at its leaves: built from the definition, leaf by leaf."""
    rows = []
    size = restart_every or rounds
    for start in range(0, rounds, size):
        leaves = min(size, rounds - start)
        width = 1
        while width <= leaves:
            for first in range(0, leaves - width + 1, width):
                row = np.zeros(rounds)
                row[start + first : start + first + width] = 1.0
                rows.append(row)
            width *= 2
    return np.array(rows)


def test_the_square_root_is_one() -> None:
    coefficients = square_root_coefficients(40)
    matrix = dense(coefficients / coefficients[0], 40)
    assert np.allclose(matrix @ matrix, np.tri(40), atol=1e-12)
    assert np.linalg.norm(coefficients) == pytest.approx(1.0, abs=1e-15)


def test_max_error_of_the_square_root_is_the_papers() -> None:
    """Fichtenberger, Henzinger, Upadhyay 2022: sensitivity times error is the sum of f(k)^2."""
    rounds = 256
    coefficients = square_root_coefficients(rounds)
    wallis = [math.comb(2 * k, k) / 4**k for k in range(rounds)]
    largest = prefix_errors(coefficients, rounds).max()
    assert math.sqrt(largest) == pytest.approx(sum(value**2 for value in wallis), rel=1e-12)
    # Landau's constant G(T - 1), by Watson 1930.
    landau = (math.log(rounds) + np.euler_gamma + 4.0 * math.log(2.0)) / math.pi
    assert math.sqrt(largest) == pytest.approx(landau, abs=1e-3)


@pytest.mark.parametrize(("rounds", "bands"), [(1, 1), (7, 3), (20, 1), (20, 6), (20, 20)])
def test_noise_and_errors_are_those_of_the_dense_matrices(rounds: int, bands: int) -> None:
    coefficients = square_root_coefficients(bands)
    inverse = np.linalg.inv(dense(coefficients, rounds))
    covariance = inverse @ inverse.T
    stddevs = np.sqrt(np.diag(covariance))
    assert np.allclose(noise_coefficients(coefficients, rounds), inverse[:, 0])
    stated, lags = toeplitz_profile(noise_coefficients(coefficients, rounds))
    assert np.allclose(stated, stddevs)
    assert lags[0] == 0.0
    assert np.allclose(lags[1:], np.diag(covariance, 1) / (stddevs[1:] * stddevs[:-1]))
    sums = np.tri(rounds) @ inverse
    assert np.allclose(prefix_errors(coefficients, rounds), (sums**2).sum(axis=1))


def test_no_column_of_a_finite_matrix_is_longer_than_the_coefficients() -> None:
    for coefficients in (square_root_coefficients(5), optimized_coefficients(12, 5)):
        for rounds in range(1, 13):
            norms = np.linalg.norm(dense(coefficients, rounds), axis=0)
            assert norms.max() <= 1.0 + 1e-15
            assert rounds < 5 or norms[0] == pytest.approx(1.0)


@pytest.mark.parametrize("separation", [1, 2, 3, 5])
@pytest.mark.parametrize("coefficients", [[1.0], [0.8, 0.6], [0.2, 0.9, 0.1, 0.3], [0.5] * 4])
def test_banded_sensitivity_is_the_worst_of_all_patterns(
    coefficients: list[float], separation: int
) -> None:
    """Signs included, at every round at which a run may stop, and reached."""
    strategy = np.array(coefficients)
    claimed = squared_sensitivities(strategy, separation, 7)
    for rounds in range(1, 8):
        matrix = dense(strategy, rounds)
        worst = max(float(((matrix @ x) ** 2).sum()) for x in patterns(rounds, separation))
        assert claimed[rounds - 1] == pytest.approx(worst, rel=1e-12)


def test_falling_coefficients_are_worst_at_equal_distances() -> None:
    """Kalinin and Lampert 2024, theorem 2: patterns with larger distances cost no more."""
    rounds, separation, strategy = 10, 3, square_root_coefficients(6)
    matrix = dense(strategy, rounds)
    worst = 0.0
    for bits in itertools.product((0.0, 1.0), repeat=rounds):
        chosen = np.flatnonzero(bits)
        if (np.diff(chosen) >= separation).all():
            worst = max(worst, float(((matrix @ np.array(bits)) ** 2).sum()))
    assert squared_sensitivities(strategy, separation, rounds)[-1] == pytest.approx(worst)


def test_sensitivities_of_google_deepmind_jax_privacy() -> None:
    """jax_privacy's toeplitz_test: the identity, and all ones, in every round."""
    assert squared_sensitivities(np.ones(1), 1, 11)[-1] == 11.0
    ones = np.tri(11)
    assert squared_sensitivities(np.ones(11), 1, 11)[-1] == (ones.sum(axis=1) ** 2).sum() == 506.0
    # Its fixed-epoch case: 10 rounds in 5 epochs, 13 falling bands.
    falling = np.linspace(1.0, 0.001, num=13)
    epochs = dense(falling, 10)[:, ::2].sum(axis=1)
    assert squared_sensitivities(falling, 2, 10)[-1] == pytest.approx((epochs**2).sum())


def test_wide_separation_costs_one_column_a_participation() -> None:
    strategy = optimized_coefficients(60, 6)
    claimed = squared_sensitivities(strategy, 6, 60)
    assert claimed[-1] == pytest.approx(10.0)
    assert (np.diff(claimed) >= 0.0).all()


@pytest.mark.parametrize(("rounds", "bands"), [(30, 2), (30, 7), (64, 64), (500, 20)])
def test_optimized_coefficients_are_at_a_minimum(rounds: int, bands: int) -> None:
    best = optimized_coefficients(rounds, bands)
    assert (best >= 0.0).all()
    assert np.linalg.norm(best) == pytest.approx(1.0)
    error = prefix_errors(best, rounds).mean()
    assert error < prefix_errors(square_root_coefficients(bands), rounds).mean()
    rng = np.random.default_rng(0)
    for size in (1e-1, 1e-2, 1e-3):
        for _ in range(20):
            other = np.maximum(best + size * rng.standard_normal(bands) / math.sqrt(bands), 0.0)
            other /= np.linalg.norm(other)
            assert prefix_errors(other, rounds).mean() >= error * (1.0 - 1e-9)


def test_two_bands_are_optimized_as_by_trying_all() -> None:
    tail = np.linspace(0.0, 1.0, 10_001)
    errors = [
        prefix_errors(np.array([1.0, value]), 30).mean() * (1.0 + value**2) for value in tail[::20]
    ]
    best = tail[::20][int(np.argmin(errors))]
    found = optimized_coefficients(30, 2)
    assert found[1] / found[0] == pytest.approx(best, abs=2e-3)


def test_more_bands_and_correlation_beat_independent_noise() -> None:
    """At one sensitivity, that of a column: what every z buys under wide separation."""
    rounds = 128
    errors = [
        prefix_errors(optimized_coefficients(rounds, bands), rounds).mean()
        for bands in (1, 2, 4, 16, 64)
    ]
    assert errors[0] == pytest.approx((rounds + 1) / 2)
    assert all(later < sooner for sooner, later in itertools.pairwise(errors))
    assert errors[-1] < errors[0] / 8


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(PrivacyError, match="bands is 9"):
        optimized_coefficients(8, 9)
    with pytest.raises(PrivacyError, match="bands is 0"):
        square_root_coefficients(0)
    with pytest.raises(PrivacyError, match="negative"):
        squared_sensitivities(np.array([1.0, -0.5]), 1, 4)
    with pytest.raises(PrivacyError, match="separation is 0"):
        tree_squared_sensitivity(4, 0, None)


@pytest.mark.parametrize("restart_every", [None, 1, 3, 4])
@pytest.mark.parametrize("separation", [1, 2, 3, 7])
def test_tree_sensitivity_is_the_worst_of_all_patterns(
    separation: int, restart_every: int | None
) -> None:
    last = 0.0
    for rounds in range(1, 9):
        nodes = tree_nodes(rounds, restart_every)
        worst = max(float(((nodes @ x) ** 2).sum()) for x in patterns(rounds, separation))
        claimed = tree_squared_sensitivity(rounds, separation, restart_every)
        assert claimed == worst
        assert claimed >= last
        last = claimed
    assert tree_squared_sensitivity(0, separation, restart_every) == 0.0


@pytest.mark.parametrize(
    ("rounds", "separation", "zcdp"), [(4, 2, 4.0), (5, 2, 4.5), (7, 2, 5.5), (7, 3, 4.5)]
)
def test_tree_zcdp_by_hand(rounds: int, separation: int, zcdp: float) -> None:
    """Golden: accounting_test of google-parfait/confidential-federated-compute, z = 1."""
    assert tree_squared_sensitivity(rounds, separation, None) / 2.0 == zcdp


def test_gboards_first_model() -> None:
    """Golden: google-research/federated, dp_ftrl/blogpost_supplemental_privacy_accounting.ipynb.

    z = 7, 2,000 rounds, 313 rounds between two of a user (so 314 apart), at most 6 of them:
    zCDP 0.81, epsilon 8.90 at delta 1e-10. A user of ours may be in the seventh round too.
    """
    nodes = tree_nodes(2000, None)

    def worst(most: int) -> float:
        matrix = np.zeros((2000, 314))
        for first in range(314):
            matrix[range(first, 2000, 314)[:most], first] = 1.0
        return float(((nodes @ matrix) ** 2).sum(axis=0).max())

    assert round(worst(6) / (2 * 7.0**2), 2) == 0.81
    accountant = rdp.RdpAccountant([1 + x / 10 for x in range(1, 100)] + list(range(12, 64)))
    accountant.compose(dp_event.GaussianDpEvent(7.0 / math.sqrt(worst(6))))
    assert round(accountant.get_epsilon(1e-10), 2) == 8.90
    assert tree_squared_sensitivity(2000, 314, None) == worst(7)


@pytest.mark.parametrize("rounds", [1, 2, 3, 7, 8, 100, 1600])
def test_one_participation_is_dp_accountings_single_epoch_tree(rounds: int) -> None:
    theirs = rdp.RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_SPECIAL)
    theirs.compose(dp_event.SingleEpochTreeAggregationDpEvent(3.0, rounds))
    ours = rdp.RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_SPECIAL)
    squared = tree_squared_sensitivity(rounds, rounds, None)
    ours.compose(dp_event.GaussianDpEvent(3.0 / math.sqrt(squared)))
    assert ours.get_epsilon(1e-6) == pytest.approx(theirs.get_epsilon(1e-6), rel=1e-9)


def test_a_node_is_estimated_with_the_least_variance() -> None:
    """Least squares over the draws below a node, the reference, gives the same variance."""
    own, child = tree_levels()
    for level in range(5):
        nodes = tree_nodes(2**level, None)
        # Variance of the best linear unbiased estimate of the sum of all leaves.
        least = np.ones(2**level) @ np.linalg.inv(nodes.T @ nodes) @ np.ones(2**level)
        assert own[level] == pytest.approx(least)
    # Its own sum and its children's add up to one estimate of the sum: unbiased.
    assert np.allclose(own + child, 1.0)


@pytest.mark.parametrize("restart_every", [None, 8, 5])
def test_tree_beats_independent_noise(restart_every: int | None) -> None:
    """At one sensitivity over all rounds, for a user in every 32nd of 512 rounds."""
    rounds, separation = 512, 32
    error = tree_prefix_errors(rounds, restart_every).mean()
    error *= tree_squared_sensitivity(rounds, separation, restart_every)
    independent = (rounds + 1) / 2 * rounds / separation
    assert error < independent / (2.5 if restart_every is None else 1.0)


def test_the_first_rounds_of_a_tree_have_the_noise_of_a_leaf() -> None:
    stddevs, correlations = tree_noise_profile(9, 4)
    assert np.allclose(stddevs[[0, 2, 4, 6, 8]], 1.0)
    assert np.allclose(correlations[[0, 2, 4, 6, 8]], 0.0)
    # Round 2: 2/3 node + 1/3 right leaf - 2/3 left leaf.
    assert stddevs[1] == pytest.approx(1.0)
    assert correlations[1] == pytest.approx(-2.0 / 3.0)
