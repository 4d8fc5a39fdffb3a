"""Bounds by matched sums: the noise that they suppose, what they show, and what they do not."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from pfl_bench.runs.runner import run
from privacy.description import FRESH, Buffers, Inverse, Tree
from privacy.empirical.gaussian_audit import shift_bound
from privacy.empirical.matched_sum import (
    MatchedSum,
    expected_participation,
    noise_covariance,
)
from privacy.mechanisms import gaussian
from privacy.noise.factorization import (
    noise_coefficients,
    square_root_coefficients,
    squared_sensitivities,
    toeplitz_profile,
)
from privacy.noise.tree_factorization import tree_noise_profile, tree_squared_sensitivity
from scripts.validation.trials import GAUSSIAN, TREE, Mechanism, matched_trial, run_trials
from tests.helpers import make_config

TRIALS = 40


def profile(covariance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    stddevs = np.sqrt(np.diag(covariance))
    lags = np.diag(covariance, -1) / (stddevs[1:] * stddevs[:-1])
    return stddevs, lags


@pytest.mark.parametrize("restart_every", [None, 1, 5, 8])
def test_covariance_of_a_tree_is_what_its_mechanism_states(restart_every: int | None) -> None:
    stddevs, lags = profile(noise_covariance(Tree(restart_every), 21))
    stated, correlations = tree_noise_profile(21, restart_every)
    assert stddevs == pytest.approx(stated)
    assert lags == pytest.approx(correlations[1:])


def test_covariance_of_bands_is_what_their_mechanism_states() -> None:
    coefficients = square_root_coefficients(4)
    stddevs, lags = profile(noise_covariance(tuple(coefficients), 20))
    stated, correlations = toeplitz_profile(noise_coefficients(coefficients, 20))
    assert stddevs == pytest.approx(stated)
    assert lags == pytest.approx(correlations[1:])


def test_covariance_of_a_toeplitz_strategy_without_bands_is_that_of_its_column() -> None:
    buffers = Buffers(0.8, (0.3, 0.2), (0.9, 0.5))
    inverse = Inverse((1.2, -0.5, -0.1))
    for strategy in (buffers, inverse):
        column = strategy.column(20)
        stddevs, lags = profile(noise_covariance(strategy, 20))
        stated, correlations = toeplitz_profile(noise_coefficients(column, 20))
        assert stddevs == pytest.approx(stated)
        assert lags == pytest.approx(correlations[1:])


def test_a_matched_sum_reaches_the_sensitivity_of_bands_and_no_more_than_that_of_trees() -> None:
    coefficients = square_root_coefficients(4)
    always = expected_participation(1.0, 4, None, 24)
    banded = MatchedSum(tuple(coefficients), always)
    most = squared_sensitivities(coefficients, 4, 24)[-1]
    assert banded.lengths.max() ** 2 == pytest.approx(most)
    tree = MatchedSum(Tree(None), always)
    assert 0.5 * tree_squared_sensitivity(24, 4, None) < tree.lengths.max() ** 2
    assert tree.lengths.max() ** 2 <= tree_squared_sensitivity(24, 4, None) * (1.0 + 1e-9)
    assert MatchedSum(FRESH, always).lengths.max() == pytest.approx(math.sqrt(6.0))


@pytest.mark.parametrize("strategy", [FRESH, (1.0, 0.5), Tree(None)])
def test_a_run_that_ends_early_has_its_own_lengths(strategy: Any) -> None:
    sums = MatchedSum(strategy, expected_participation(0.5, 2, None, 10))
    deviations, lengths = sums.after(10)
    assert deviations == pytest.approx(np.ones(2))
    assert lengths == pytest.approx(sums.lengths)
    deviations, lengths = sums.after(1)
    assert deviations[1] > 0.0 or strategy == FRESH
    assert lengths[0] < sums.lengths[0]
    assert sums.after(0)[1] == pytest.approx(np.zeros(2))


def test_participation_keeps_turns_and_caps() -> None:
    expected = expected_participation(0.3, 2, 2, 6)
    assert expected == pytest.approx(0.3 * np.array([[1, 0, 1, 0, 0, 0], [0, 1, 0, 1, 0, 0]]))


def test_a_shift_s_bound_covers_it_and_is_near() -> None:
    rng, true = np.random.default_rng(8), 2.0
    found = []
    for _ in range(400):
        included = rng.random(300) < 0.5
        scores = included * true * rng.exponential(1.0, 300) + rng.standard_normal(300)
        found.append(shift_bound(scores, included, 0.95))
    assert np.mean(np.array(found) > true) <= float(binom.ppf(0.999, 400, 0.05)) / 400
    assert np.median(found) > 1.5


@pytest.mark.parametrize("mechanism", [GAUSSIAN, TREE], ids=["gaussian", "tree"])
def test_bounds_are_below_the_truth_and_near_it(mechanism: Mechanism) -> None:
    trial = partial(matched_trial, count=1000)
    most = binom.ppf(0.999, TRIALS, 0.025)
    for effect in (True, False):
        found = run_trials(mechanism, trial, 8.0, effect, TRIALS, 3)
        for name, bounds in found.items():
            assert (bounds > (8.0 if effect else 0.0)).sum() <= most, name
            assert np.median(bounds) > 0.6 * 8.0 or not effect, name


def canaried(bound: str, noise_multiplier: float) -> Any:
    return make_config(
        "private_federated",
        federated__num_rounds=4,
        federated__sampling="full",
        federated__cohort_size=60,
        privacy__mechanism={"name": "gaussian", "clip_norm": 0.5},
        privacy__noise_cohort_size=None,
        privacy__epsilon=None,
        privacy__noise_multiplier=noise_multiplier,
        privacy__accountant="pld",
        privacy__audit={"kind": "one_run", "count": 300, "bound": bound},
    )


@pytest.mark.parametrize("bound", ["independent", "gaussian"])
def test_less_noise_than_is_claimed_lifts_a_run_s_bound_above_its_claim(
    bound: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = run(canaried(bound, 1.5), tmp_path / "true")["canaries"]
    assert 0.3 * true["upper_bound"] < true["lower_bound"] < true["upper_bound"]
    real = gaussian.noised_mean

    def third(total: Any, stddev: float, cohort: float, rng: Any) -> Any:
        return real(total, stddev / 3.0, cohort, rng)

    monkeypatch.setattr(gaussian, "noised_mean", third)
    planted = run(canaried(bound, 1.5), tmp_path / "planted")["canaries"]
    assert planted["lower_bound"] > planted["upper_bound"]


@pytest.mark.parametrize(
    ("confidence", "least", "most"), [(0.75, 0.27, 0.33), (0.975, 0.0, 0.0375)]
)
def test_of_few_canaries_the_shift_is_bounded_at_large_confidences_alone(
    confidence: float, least: float, most: float
) -> None:
    """Ten in and ten out, of normal scores, as the docstring of the bound says."""
    rng, included, trials = np.random.default_rng(0), np.arange(20) < 10, 2000
    above = sum(
        shift_bound(rng.normal(20.0 * included), included, confidence) > 20.0 for _ in range(trials)
    )
    assert least * trials <= above < most * trials
