"""The statistics of features: what one example moves, and how much noise hides it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import stats

from privacy.errors import PrivacyError
from privacy.noise.feature_statistics import FeatureStatistics, StatisticsSums, StatisticsWatch

REQUEST = FeatureStatistics(noise_multiplier=2.0, mean_clip_norm=0.5, square_clip_norm=0.25)
CHANNELS = 2000


def release(means: np.ndarray, squares: np.ndarray, seed: int = 0) -> list[np.ndarray]:
    """Both sums after the noise; of a seed, that is the same whatever the examples."""
    sums = StatisticsSums(REQUEST)
    sums.add(means, squares)
    released = sums.release(1, np.random.default_rng(seed))
    return [released.mean, released.square]


@given(
    arrays.arrays(
        np.float64, (2, 1, 7), elements=st.floats(allow_nan=True, allow_infinity=True, width=64)
    )
)
def test_one_example_moves_each_sum_by_its_bound_at_most(example: np.ndarray) -> None:
    others = np.full((3, 7), 0.2)
    without = release(others, others)
    with_it = release(*(np.concatenate([others, part]) for part in example))
    for before, after, bound in zip(without, with_it, REQUEST.bounds, strict=True):
        assert np.linalg.norm(after - before) <= bound * (1 + 1e-9)


def test_within_the_bounds_nothing_is_changed_and_beyond_them_the_direction_stays() -> None:
    small, large = np.array([[0.3, 0.0]]), np.array([[30.0, 40.0]])
    noise = release(np.zeros((1, 2)), np.zeros((1, 2)))
    for rows, wanted in ((small, [[0.3, 0.0]] * 2), (large, [[0.3, 0.4], [0.15, 0.2]])):
        found = release(rows, rows)
        for place in range(2):
            limit = min(1.0, REQUEST.bounds[place] / np.linalg.norm(rows))
            np.testing.assert_allclose(found[place] - noise[place], rows[0] * limit)
            if rows is large:
                np.testing.assert_allclose(rows[0] * limit, wanted[place])


@pytest.mark.parametrize("place", [0, 1])
def test_the_noise_is_gaussian_of_the_claimed_size(place: int) -> None:
    zeros = np.zeros((5, CHANNELS))
    noise = release(zeros, zeros)[place]
    scale = REQUEST.noise_multiplier * REQUEST.bounds[place]
    assert stats.kstest(noise, stats.norm(0.0, scale).cdf).pvalue > 1e-3
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(noise, stats.norm(0.0, wrong * scale).cdf).pvalue < 1e-6
    assert not np.array_equal(*release(zeros, zeros))


def test_variance_is_never_negative_and_the_watch_measures_the_noise() -> None:
    rng = np.random.default_rng(1)
    means, squares = rng.random((50, CHANNELS)) / 30, rng.random((50, CHANNELS)) / 100
    sums, watch = StatisticsSums(REQUEST), StatisticsWatch(REQUEST)
    for part in range(0, 50, 20):
        sums.add(means[part : part + 20], squares[part : part + 20])
        watch.add(means[part : part + 20], squares[part : part + 20])
    released = sums.release(50, rng)
    assert released.variance.min() == 0.0 < released.variance.max()
    record = watch.record(released, 50)
    for name in ("mean", "square"):
        assert record[name]["count"] == CHANNELS
        assert record[name]["sum_squares"] / CHANNELS == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.inf, math.nan])
@pytest.mark.parametrize("name", ["noise_multiplier", "mean_clip_norm", "square_clip_norm"])
def test_bounds_and_noise_must_be_positive(name: str, wrong: float) -> None:
    numbers = {"noise_multiplier": 8.0, "mean_clip_norm": 1.0, "square_clip_norm": 1.0}
    with pytest.raises(PrivacyError, match=f"{name} is .*must be positive"):
        FeatureStatistics(**{**numbers, name: wrong})
