"""Scores, rates and the verdict of membership attacks, where the truth is known."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.stats import norm

from privacy.empirical.betting import Bets
from privacy.empirical.membership import (
    allowed_curve,
    area,
    bet,
    clopper_pearson,
    cross_fit,
    folds_of,
    judge,
    rate,
)
from privacy.empirical.membership_scores import lira, logit_of_loss, rmia
from privacy.empirical.trade_off import CurveTradeOff, GaussianTradeOff
from privacy.errors import PrivacyError


def released(
    rng: np.random.Generator, runs: int, users: int, mu: float, shared: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """What mu-GDP releases at most of each user, with noise in part shared by users of a run."""
    members = rng.random((runs, users)) < 0.5
    own = rng.standard_normal((runs, users))
    common = rng.standard_normal((runs, 1))
    # Adding what is independent of the coins only hides them: still mu-GDP.
    return members * mu + own + shared * common, members


def test_a_true_claim_is_seldom_refuted_and_a_false_one_nearly_always() -> None:
    rng = np.random.default_rng(1)
    folds = folds_of(4)
    outcomes = {}
    for true in (0.5, 3.0):
        found = []
        for _ in range(40):
            scores, members = released(rng, 4, 300, true, shared=0.5)
            claim = GaussianTradeOff(0.5)
            found.append(judge(scores, members, folds, claim, 1e-5).refuted)
        outcomes[true] = sum(map(bool, found))
    assert outcomes[0.5] == 0
    assert outcomes[3.0] >= 36


def test_bets_on_a_true_claim_seldom_win_and_on_a_false_one_nearly_always() -> None:
    """On the curve itself, with all users of a run shifted together."""
    claim = GaussianTradeOff(1.0)
    wealth = {}
    for true in (1.0, 2.0):
        rng = np.random.default_rng(6)
        wealth[true] = [
            bet(lambda target, *_: target, *released(rng, 60, 40, true, 0.2), claim, 0)
            for _ in range(100)
        ]
    assert np.mean(np.array(wealth[1.0]) >= 20.0) <= 0.05
    assert np.mean(np.array(wealth[2.0]) >= 600.0) >= 0.9


def test_a_bet_s_mean_is_at_most_1_where_all_users_of_a_run_are_told_apart_at_once() -> None:
    """With probability delta a run shows all: allowed by (0, delta), and no bet may gain by it."""
    rng, claim = np.random.default_rng(7), CurveTradeOff(np.zeros(1), np.full(1, 0.3))
    growth = []
    for _ in range(4000):
        members = rng.random(20) < 0.5
        shown = rng.random() < 0.3
        growth.append(Bets(claim).add(members + rng.random(20) * (0.1 if shown else 10.0), members))
    assert np.mean(growth) <= 1.0 + 4.0 * np.std(growth) / math.sqrt(len(growth))


def test_deltas_of_a_claim() -> None:
    gaussian = GaussianTradeOff(1.0)
    # Dong, Roth, Su 2022, corollary 2.13 at epsilon 0: 2 Phi(mu / 2) - 1.
    assert gaussian.delta_at(0.0) == pytest.approx(2.0 * norm.cdf(0.5) - 1.0)
    curve = CurveTradeOff(np.array([0.0, 1.0]), np.array([0.4, 0.1]))
    assert (curve.delta_at(0.9), curve.delta_at(1.0)) == (0.4, 0.1)


def test_without_a_claim_there_is_a_bound_and_no_verdict() -> None:
    scores, members = released(np.random.default_rng(2), 4, 200, 4.0)
    verdict = judge(scores, members, folds_of(4), None, 1e-5)
    assert verdict.refuted is None
    assert 1.0 < verdict.epsilon < 12.0
    with pytest.raises(PrivacyError, match="shape"):
        judge(scores, members[:2], folds_of(4), None, 1e-5)


def test_the_mixture_over_others_obeys_the_curve_that_one_of_its_parts_needs() -> None:
    """The argument of the module: means over parts of false rates obey a convex curve."""
    claim = GaussianTradeOff(1.5)
    thresholds = np.array([-1.0, 0.3, 2.0])
    false = norm.sf(thresholds)
    missed = norm.cdf(thresholds - 1.5)  # on the curve, each
    mixed = allowed_curve(claim, np.array([false.mean()]))[0]
    assert missed.mean() >= 1.0 - mixed
    assert missed == pytest.approx(1.0 - allowed_curve(claim, false), abs=1e-9)


def test_references_are_of_other_folds_and_no_coin_of_the_target_is_seen() -> None:
    numbers, members = released(np.random.default_rng(3), 10, 5, 1.0)
    seen: dict[int, set[int]] = {}

    def score(target: np.ndarray, others: np.ndarray, coins: np.ndarray) -> np.ndarray:
        place = int(np.flatnonzero((numbers == target).all(axis=1))[0])
        seen[place] = {int(np.flatnonzero((numbers == row).all(axis=1))[0]) for row in others}
        assert len(coins) == len(others)
        return target

    folds = folds_of(10)
    assert cross_fit(score, numbers, members, folds) == pytest.approx(numbers)
    assert sorted(itertools.chain(*folds)) == list(range(10))
    for fold in folds:
        for target in fold:
            assert seen[target] == set(range(10)) - set(fold)


def test_lira_is_the_likelihood_ratio_of_known_laws() -> None:
    rng = np.random.default_rng(4)
    members = rng.random((400, 3)) < 0.5
    centre = np.array([0.0, 5.0, -3.0])
    numbers = centre + np.where(members, 2.0, 0.0) + rng.standard_normal((400, 3))
    target = centre + 1.7
    found = lira(target, numbers, members)
    expected = norm.logpdf(1.7, 2.0) - norm.logpdf(1.7, 0.0)
    assert found == pytest.approx(expected, abs=0.5)
    assert lira(target, numbers, members, online=False) == pytest.approx(1.7, abs=0.3)


def test_a_user_who_is_in_all_references_or_in_none_has_a_score() -> None:
    rng = np.random.default_rng(5)
    members = rng.random((4, 30)) < 0.5
    members[:, 0], members[:, 1] = True, False
    numbers = members * 3.0 + rng.standard_normal((4, 30))
    inside, outside = np.full(30, 3.0), np.zeros(30)
    for score in (lira, rmia):
        found = score(inside, -np.abs(numbers), members)
        assert np.isfinite(found).all()
    scores = lira(inside, numbers, members), lira(outside, numbers, members)
    assert (scores[0] > scores[1]).mean() > 0.9


def test_a_logit_is_that_of_the_confidence_and_stays_finite() -> None:
    confidence = np.array([0.1, 0.5, 0.99])
    expected = np.log(confidence / (1.0 - confidence))
    assert logit_of_loss(-np.log(confidence)) == pytest.approx(expected)
    assert np.isfinite(logit_of_loss(np.array([0.0, 1e6]))).all()


def test_rates_and_area() -> None:
    scores = np.array([5.0, 4.0, 3.0, 3.0, 1.0])
    members = np.array([True, True, False, True, False])
    assert rate(scores, members, 0.0).true_positive_rate == pytest.approx(2 / 3)
    assert rate(scores, members, 0.5).true_positive_rate == 1.0
    pairs = [
        float(one > other) + 0.5 * float(one == other)
        for one in scores[members]
        for other in scores[~members]
    ]
    assert area(scores, members) == pytest.approx(np.mean(pairs))


@pytest.mark.parametrize(
    ("count", "trials", "interval"),
    # Exact: 1 - 0.025^(1/10), and R 4.3's binom.test(3, 20).
    [(0, 10, (0.0, 0.308497)), (3, 20, (0.032071, 0.378927)), (5, 5, (0.478176, 1.0))],
)
def test_clopper_pearson(count: int, trials: int, interval: tuple[float, float]) -> None:
    assert clopper_pearson(count, trials, 0.95) == pytest.approx(interval, abs=1e-6)
