"""Banded strategies whose columns are optimized each for itself.

Golden values: jax-privacy 2.0.0 (jax_privacy.matrix_factorization.banded.optimize, 2,000 steps at
most, float64; mean of per_query_error).
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from privacy.amplification import Participation
from privacy.errors import PrivacyError
from privacy.mechanism import NoiseScale
from privacy.mechanisms import column_normalized_banded as mechanism
from privacy.noise.banded_columns import (
    LARGEST_ROUNDS,
    column_prefix_errors,
    matrix_of,
    noise_profile,
    optimized_columns,
)
from privacy.noise.factorization import optimized_coefficients, prefix_errors

JAX = {(64, 8): 6.867109187094037, (256, 32): 9.145504039353053}


@pytest.mark.parametrize("shape", JAX)
def test_columns_are_as_good_as_the_referee_s(shape: tuple[int, int]) -> None:
    rounds, bands = shape
    columns = optimized_columns(rounds, bands)
    error = float(column_prefix_errors(columns).mean())
    assert error == pytest.approx(JAX[shape], rel=1e-6)
    assert error < 0.98 * prefix_errors(optimized_coefficients(rounds, bands), rounds).mean()
    assert np.linalg.norm(columns, axis=1) == pytest.approx(1.0, rel=1e-12)
    assert (columns >= 0.0).all()


def test_no_rounds_of_a_user_show_more_than_their_number() -> None:
    rounds, bands = 14, 4
    matrix = matrix_of(optimized_columns(rounds, bands))
    for size in (1, 2, 3):
        for chosen in itertools.combinations(range(rounds), size):
            if any(b - a < bands for a, b in itertools.pairwise(chosen)):
                continue
            for signs in itertools.product((1.0, -1.0), repeat=size):
                moved = matrix[:, chosen] @ np.array(signs)
                assert moved @ moved == pytest.approx(size, rel=1e-12)


def test_the_profile_is_that_of_the_inverse() -> None:
    columns = optimized_columns(14, 4)
    inverse = np.linalg.inv(matrix_of(columns))
    covariance = inverse @ inverse.T
    stddevs, lags = noise_profile(columns)
    assert stddevs == pytest.approx(np.sqrt(np.diag(covariance)))
    assert lags[1:] == pytest.approx(np.diag(covariance, 1) / (stddevs[1:] * stddevs[:-1]))


def test_selected_users_cost_the_root_of_their_rounds() -> None:
    noise = NoiseScale(1.0, 10.0, 10.0, num_rounds=60, separation=20)
    built = mechanism.build(mechanism.Options(clip_norm=1.0, bands=20), noise)
    users = Participation.named("selected", 10_000, 10, 20, 2)
    composed = built.composition(users, 3.0, 60)
    assert composed.event.noise_multiplier == pytest.approx(3.0 / np.sqrt(2.0))
    assert (composed.count, composed.adjacency) == (1, "zero-out")


def test_too_many_rounds_are_refused() -> None:
    with pytest.raises(PrivacyError, match="banded_matrix_factorization"):
        optimized_columns(LARGEST_ROUNDS + 1, 4)


def test_another_strategy_s_state_is_refused() -> None:
    noise = NoiseScale(1.0, 10.0, 10.0, num_rounds=12, separation=6)
    state = mechanism.build(mechanism.Options(clip_norm=1.0, bands=4), noise).state_dict()
    other = mechanism.build(mechanism.Options(clip_norm=1.0, bands=5), noise)
    with pytest.raises(PrivacyError, match="saved strategy"):
        other.load_state_dict(state)
