"""Lower bounds of epsilon from scores that are not guesses, and the arithmetic of mu-GDP."""

from __future__ import annotations

import math
from typing import Any

import dp_accounting
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom, norm

from privacy.amplification import Composition, Participation, sampled_gaussian
from privacy.empirical.gaussian_dp import Normal, epsilon_of_mu, epsilon_of_normals
from privacy.empirical.membership import clopper_pearson
from privacy.empirical.one_shot import audit_final, audit_held_out
from privacy.empirical.per_round import (
    StepTrials,
    epsilon_of_run,
    mu_by_clopper_pearson,
    mu_by_normal,
)
from privacy.errors import PrivacyError

Array = NDArray[Any]

DELTA = 1e-5


# mu-GDP


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 16.0, 100.0])
def test_mu_and_epsilon_are_dp_accountings(epsilon: float) -> None:
    mu = 1.0 / dp_accounting.get_sigma_gaussian(epsilon, DELTA)
    assert epsilon_of_mu(mu, DELTA) == pytest.approx(epsilon, rel=1e-8)


def test_two_normals_of_one_spread_are_mu_gdp() -> None:
    for mu in (0.2, 1.0, 3.0):
        same = epsilon_of_normals(Normal(5.0, 0.1), Normal(5.0 + 0.1 * mu, 0.1), DELTA)
        assert same == pytest.approx(epsilon_of_mu(mu, DELTA), rel=1e-6)
    assert epsilon_of_normals(Normal(0.0, 1.0), Normal(0.0, 1.0), DELTA) == 0.0


@pytest.mark.parametrize("spread", [0.8, 1.3])
def test_two_normals_of_unlike_spread_by_integration(spread: float) -> None:
    null, canary, delta = Normal(0.0, 1.0), Normal(0.7, spread), 1e-3
    epsilon = epsilon_of_normals(null, canary, delta)
    x = np.linspace(-15.0, 15.0, 2_000_001)
    p, q = norm.pdf(x, *canary), norm.pdf(x, *null)
    step = x[1] - x[0]
    deltas = [
        float(np.maximum(a - math.exp(epsilon) * b, 0.0).sum() * step) for a, b in ((p, q), (q, p))
    ]
    assert max(deltas) == pytest.approx(delta, rel=1e-4)


def test_arguments_out_of_range_are_named() -> None:
    with pytest.raises(PrivacyError, match="delta"):
        epsilon_of_mu(1.0, 0.0)
    with pytest.raises(PrivacyError, match="mu is"):
        epsilon_of_mu(math.nan, DELTA)
    with pytest.raises(PrivacyError, match="vary"):
        epsilon_of_normals(Normal(0.0, 0.0), Normal(0.0, 1.0), DELTA)


# Andrew et al. 2024


def test_one_shot_without_effect_is_0_in_95_percent() -> None:
    rng = np.random.default_rng(8)
    above = [
        (
            audit_final(rng.standard_normal(20) / 50.0, 2500, DELTA).epsilon > 0.0,
            audit_held_out(rng.standard_normal(20), rng.standard_normal(20), DELTA).epsilon > 0.0,
        )
        for _ in range(300)
    ]
    final, held_out = np.sum(above, axis=0)
    assert final <= binom.ppf(0.999, 300, 0.05)
    assert held_out <= binom.ppf(0.999, 300, 0.025)


def test_one_shot_scales_by_the_null_law() -> None:
    scores = 2.0 + np.array([-1.0, -0.5, 0.0, 0.5, 1.0, 1.2, -1.2, 0.0])
    bound = audit_final(scores / 100.0, 10_000, DELTA)
    assert bound.canary.mean == pytest.approx(0.02)
    assert bound.null == Normal(0.0, 0.01)
    assert 1.0 < bound.mu < 2.0
    assert bound.epsilon == epsilon_of_mu(bound.mu, DELTA)
    with pytest.raises(PrivacyError, match="did not move"):
        audit_final(np.zeros(5), 100, DELTA)
    with pytest.raises(PrivacyError, match="two finite ones"):
        audit_final(np.ones(1), 100, DELTA)


# Nasr et al. 2023


def trials_of(mu: float, count: int, seed: int) -> StepTrials:
    rng = np.random.default_rng(seed)
    trials = StepTrials()
    coins = rng.random(count) < 0.5
    trials.add(coins + rng.standard_normal(count) / mu, coins)
    return trials


def test_clopper_pearson_is_exact() -> None:
    for count, trials in ((0, 10), (3, 10), (10, 10), (50, 400)):
        rate = clopper_pearson(count, trials, 0.9)[1]
        if count < trials:
            assert binom.cdf(count, trials, rate) == pytest.approx(0.05)
        else:
            assert rate == 1.0
    assert clopper_pearson(0, 0, 0.9)[1] == 1.0


def test_a_step_is_bounded_from_below_in_95_percent() -> None:
    for mu in (0.3, 2.0):
        bounds = np.array(
            [
                (mu_by_normal(t, 0.95), mu_by_clopper_pearson(t, 0.95))
                for t in (trials_of(mu, 300, seed) for seed in range(150))
            ]
        )
        above = (bounds > mu).sum(axis=0)
        assert (above <= binom.ppf(0.999, 150, 0.05)).all()
        # Exact: not far below its level either.
        assert above[0] >= binom.ppf(0.001, 150, 0.05)


def test_a_step_without_effect_or_trials_is_0() -> None:
    assert mu_by_normal(StepTrials(), 0.95) == mu_by_clopper_pearson(StepTrials(), 0.95) == 0.0
    rng = np.random.default_rng(3)
    trials = StepTrials()
    coins = rng.random(1000) < 0.5
    trials.add(rng.standard_normal(1000), coins)
    assert mu_by_clopper_pearson(trials, 0.95) == 0.0
    assert mu_by_normal(trials, 0.95) < 0.2
    with pytest.raises(PrivacyError, match="not finite"):
        trials.add(np.array([np.nan]), np.array([True]))


def test_without_noise_a_step_hides_nothing() -> None:
    trials = StepTrials()
    coins = np.arange(50) % 2 == 0
    trials.add(coins.astype(float), coins)
    assert trials.shift == mu_by_normal(trials, 0.95) == math.inf
    assert 2.0 < mu_by_clopper_pearson(trials, 0.95) < 5.0


def test_the_law_of_t_goes_over_into_the_normal_one() -> None:
    small = StepTrials(50_000, 49_000, 0, 0, 50_000.0, 0.0, 50_000 * 2.0, 49_000.0)
    large = StepTrials(50_000, 51_000, 0, 0, 50_000.0, 0.0, 50_000 * 2.0, 51_000.0)
    assert mu_by_normal(small, 0.95) == pytest.approx(mu_by_normal(large, 0.95), rel=2e-3)


def test_a_step_is_composed_as_the_sampler_says() -> None:
    participation = Participation.named("poisson", 1000, 20)

    def compose(noise: float, rounds: int) -> Composition:
        return sampled_gaussian(participation, noise, rounds)

    composed = epsilon_of_run(1.0, 100, DELTA, compose)
    single = epsilon_of_run(1.0, 1, DELTA, compose)
    assert composed is not None
    assert single is not None
    assert 0.0 < single < composed < epsilon_of_mu(10.0, DELTA)
    assert epsilon_of_run(0.0, 100, DELTA, compose) == 0.0

    def laplace(noise: float, rounds: int) -> Composition:
        return Composition(dp_accounting.LaplaceDpEvent(noise), rounds, "add-or-remove-one")

    # The mu of a step is no scale of a Laplace noise.
    assert epsilon_of_run(1.0, 100, DELTA, laplace) is None
