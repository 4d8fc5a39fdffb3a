"""The number of users is public: a probability that followed it would be another mechanism."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom, norm

from privacy.amplification import sampled_gaussian
from privacy.calibration import epsilon_of_rounds
from privacy.empirical.gaussian_dp import epsilon_of_mu
from privacy.sampling_scheme import Participation
from privacy.schemes.poisson import Poisson
from privacy.statement.statement import NOT_COVERED

USERS, COHORT, NOISE, ROUNDS, DELTA = 100, 10, 20.0, 1000, 1e-5
STEP = 0.05
SUMS = np.arange(-230.0, 250.0, STEP)


def density(rate: float, has_another: bool) -> NDArray[np.float64]:
    """Law of a round's noised sum on ``SUMS``: all but one send 1, that one -1 if it is there."""
    heads = np.arange(USERS)
    weights = binom.pmf(heads, USERS - 1, rate)
    present = norm.pdf(SUMS[:, None], heads, NOISE) @ weights
    if not has_another:
        return np.asarray(present)
    moved = norm.pdf(SUMS[:, None], heads - 1, NOISE) @ weights
    return np.asarray((1 - rate) * present + rate * moved)


def epsilon_between(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Of all rounds, each of which tells little, so that together they are a Gaussian mechanism."""
    loss = np.log(one / other)
    mean, square = (float((one * loss**power).sum() * STEP) for power in (1, 2))
    return epsilon_of_mu(float(np.sqrt((square - mean**2) * ROUNDS)), DELTA)


def test_a_probability_that_follows_the_number_of_users_is_not_what_is_stated() -> None:
    rate, of_fewer = COHORT / USERS, COHORT / (USERS - 1)
    users = Participation(Poisson(), USERS, COHORT)
    stated = epsilon_of_rounds(users, NOISE, ROUNDS, DELTA, "pld", sampled_gaussian)
    same = epsilon_between(density(rate, False), density(rate, True))
    own = epsilon_between(density(of_fewer, False), density(rate, True))
    assert 0.8 * stated < same <= 1.01 * stated
    assert own == pytest.approx(2.1 * stated, rel=0.02)
    assert any("compared at the same ones" in sentence for sentence in NOT_COVERED)
