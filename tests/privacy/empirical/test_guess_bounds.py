"""Lower bounds from guesses: closed forms, a linear programme, and published values."""

from __future__ import annotations

import math
from typing import Any

import dp_accounting
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.special import expit, logit
from scipy.stats import beta, binom, norm

from privacy.amplification import Composition, Participation, sampled_gaussian
from privacy.empirical import f_dp, one_run
from privacy.empirical.gaussian_audit import shift_bound
from privacy.empirical.gaussian_dp import epsilon_of_mu
from privacy.empirical.one_run import Guesses, count_correct, guess_grid
from privacy.empirical.trade_off import GaussianTradeOff, sure_epsilon, trade_off_of
from privacy.errors import PrivacyError

Array = NDArray[Any]

DELTA = 1e-5


def mu_lower_bound(canaries: int, guesses: int, right: int, confidence: float) -> float:
    """Largest mu whose mu-GDP so many correct guesses refute."""
    counts = canaries, guesses, right
    return one_run.largest_refuted(
        lambda mu: f_dp.refutes(GaussianTradeOff(mu), *counts, 1.0 - confidence)
    )


def test_correct_guesses_are_counted() -> None:
    scores = np.array([5.0, 1.0, 4.0, 2.0, 3.0])
    included = np.array([True, True, False, False, True])
    assert count_correct(scores, included, Guesses(2, 0)) == 1
    assert count_correct(scores, included, Guesses(1, 2)) == 2
    assert count_correct(scores, included, Guesses(0, 0)) == 0
    for wrong in (Guesses(3, 3), Guesses(-1, 1)):
        with pytest.raises(PrivacyError, match="cannot be made"):
            count_correct(scores, included, wrong)
    with pytest.raises(PrivacyError, match="not finite"):
        count_correct(scores * np.nan, included, Guesses(1, 1))


def test_scores_that_do_not_belong_to_the_coins_are_refused() -> None:
    scores, coins = np.zeros(40), np.arange(40) % 2 == 0
    with pytest.raises(PrivacyError, match=r"scores have shape \(40,\) and coins \(39,\)"):
        count_correct(scores, coins[1:], Guesses(1, 1))
    scores[3] = np.nan
    with pytest.raises(PrivacyError, match="must be finite, one for each coin"):
        shift_bound(scores, coins, 0.95)


def test_the_grid_depends_on_the_number_of_canaries_alone() -> None:
    assert guess_grid(1) == (Guesses(1, 0),)
    assert guess_grid(100) == (
        Guesses(50, 50),
        Guesses(25, 25),
        Guesses(13, 12),
        Guesses(25, 0),
    )


# Steinke et al. 2023


def naive_p_value(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    """Theorem 5.2 term by term."""
    right = expit(epsilon)
    mass = [binom.pmf(k, r, right) for k in range(r + 1)]
    best = max((sum(mass[v - i : v]) / i for i in range(1, v + 1)), default=0.0)
    return min(1.0, sum(mass[v:]) + 2 * m * delta * best)


@given(
    st.integers(1, 40).flatmap(lambda m: st.tuples(st.just(m), st.integers(1, m))),
    st.floats(0.0, 1.0),
    st.floats(0.0, 3.0),
    st.sampled_from([0.0, 1e-5, 0.01, 1.0]),
)
@settings(max_examples=60, deadline=None)
def test_p_value_is_theorem_5_2(
    sizes: tuple[int, int], part: float, epsilon: float, delta: float
) -> None:
    m, r = sizes
    v = round(part * r)
    expected = naive_p_value(m, r, v, epsilon, delta)
    assert one_run.p_value(m, r, v, epsilon, delta) == pytest.approx(expected, abs=1e-9)


def test_all_right_has_a_closed_form() -> None:
    bound = one_run.epsilon_lower_bound(1000, 100, 100, 0.0, 0.95)
    assert bound == pytest.approx(float(logit(0.05 ** (1 / 100))), abs=2e-6)
    # Abstaining costs nothing without delta, and something with it.
    assert bound == one_run.epsilon_lower_bound(100, 100, 100, 0.0, 0.95)
    assert one_run.epsilon_lower_bound(1000, 100, 100, 1e-5, 0.95) < bound


def test_half_right_shows_nothing() -> None:
    assert one_run.epsilon_lower_bound(1000, 200, 110, DELTA, 0.95) == 0.0
    assert mu_lower_bound(1000, 200, 110, 0.95) == 0.0
    with pytest.raises(PrivacyError, match="cannot be"):
        one_run.epsilon_lower_bound(10, 5, 6, DELTA, 0.95)


def test_a_choice_of_guesses_is_paid_for() -> None:
    rng = np.random.default_rng(5)
    included = rng.random(400) < 0.5
    scores = included + 0.3 * rng.standard_normal(400)
    best = one_run.audit_scores(scores, included, DELTA)
    fixed = one_run.audit_scores(scores, included, DELTA, guesses=best.guesses)
    assert best.num_hypotheses == len(guess_grid(400)) > 1
    assert fixed.num_hypotheses == 1
    assert 0.0 < best.epsilon < fixed.epsilon


# Mahloujifar et al. 2024


def most_likely_tail(mu: float, m: int, made: int, right: int) -> float:
    """Largest P[so many correct or more] that theorem 3.2 allows, by a linear programme.

    1 - f is concave: it lies below each of its tangents, and the programme has many of them.
    """
    index = np.arange(made + 1)
    rows, limits = [], []
    for x in norm.cdf(np.linspace(-6.0, 4.0, 400)):
        slope = norm.pdf(norm.ppf(x) + mu) / norm.pdf(norm.ppf(x))
        height = norm.cdf(norm.ppf(x) + mu) - slope * x
        for start in range(1, made + 1):
            gain = np.where(index >= start, index / m, 0.0)
            loss = np.where(index >= start - 1, (made - index) / m, 0.0)
            rows.append(gain - slope * loss)
            limits.append(height)
    goal = -(index >= right).astype(float)
    found = linprog(goal, np.array(rows), np.array(limits), np.ones((1, made + 1)), [1.0])
    assert found.success
    return float(-found.fun)


@pytest.mark.parametrize(
    ("mu", "m", "made", "right"), [(0.5, 8, 8, 7), (1.0, 6, 6, 6), (1.0, 12, 8, 7), (2.0, 9, 6, 6)]
)
def test_the_recursion_is_what_a_linear_programme_finds(
    mu: float, m: int, made: int, right: int
) -> None:
    likely = most_likely_tail(mu, m, made, right)
    claim = GaussianTradeOff(mu)
    assert not f_dp.refutes(claim, m, made, right, likely * 0.995)
    assert f_dp.refutes(claim, m, made, right, likely * 1.01)


@given(st.floats(0.01, 4.0), st.integers(1, 30), st.integers(0, 30))
@settings(max_examples=60, deadline=None)
def test_a_weaker_claim_is_refuted_less(mu: float, made: int, right: int) -> None:
    right = min(right, made)
    if f_dp.refutes(GaussianTradeOff(mu), 40, made, right, 0.05):
        assert f_dp.refutes(GaussianTradeOff(mu / 2.0), 40, made, right, 0.05)


def test_a_curve_of_a_gaussian_is_its_trade_off() -> None:
    event = dp_accounting.PoissonSampledDpEvent(1.0, dp_accounting.GaussianDpEvent(1.25))
    curve = trade_off_of(Composition(event, 4, "add-or-remove-one"))
    exact = trade_off_of(sampled_gaussian(Participation.named("full", 10, 10), 1.25, 4))
    assert exact == GaussianTradeOff(1.6)
    assert curve is not None
    for true in (0.001, 0.05, 0.4, 0.9, 0.999):
        least = exact.least_false(true)
        # Never a stronger claim than the truth, and hardly a weaker one.
        assert 0.97 * least - 1e-9 <= curve.least_false(true) <= least * (1.0 + 1e-9)


def test_a_user_who_is_zeroed_out_moves_each_of_the_rounds_that_the_cap_allows_once() -> None:
    limits = Participation.named("selected", 100, 10, 3, 4)
    capped = sampled_gaussian(limits, 1.25, 50)
    assert capped.adjacency == "zero-out"
    assert trade_off_of(capped) == GaussianTradeOff(math.sqrt(4) / 1.25)
    plain = sampled_gaussian(Participation.named("full", 10, 10), 1.25, 4)
    assert sure_epsilon(capped, DELTA) == sure_epsilon(plain, DELTA)


def test_what_pld_does_not_know_has_no_bound() -> None:
    fixed = sampled_gaussian(Participation.named("fixed_size", 100, 10), 1.0, 10)
    assert trade_off_of(fixed) is None
    assert sure_epsilon(fixed, DELTA) is None


# Published values: google-deepmind/jax_privacy, tests/auditing_test.py,
# test_epsilon_one_run_close: 10,000 scores of normal quantiles each way, significance 0.05, delta
# 1e-6, guesses "in" alone, at each vertex of the convex hull of the ROC curve, corrected for their
# number.

JAX_PRIVACY = [
    (1.0, "one_run", 1.13346),
    (2.0, "one_run", 2.311945),
    (4.0, "one_run", 4.395568),
    (1.0, "f_dp", 2.164749),
    (2.0, "f_dp", 4.7218075),
    (4.0, "f_dp", 9.133752),
]


def hull_counts(outside: Array, inside: Array) -> list[tuple[int, int]]:
    """(true, false) positives at each vertex of the ROC curve's convex hull, from (0, 0)."""
    thresholds = np.union1d(outside, inside)[::-1]
    true = inside.size - np.searchsorted(np.sort(inside), thresholds)
    false = outside.size - np.searchsorted(np.sort(outside), thresholds)
    hull: list[tuple[int, int]] = []
    for point in [(0, 0), *zip(true.tolist(), false.tolist(), strict=True)]:
        while len(hull) > 1:
            (a, b), (c, d) = hull[-2], hull[-1]
            if (c - a) * (point[1] - b) > (point[0] - a) * (d - b):
                break
            hull.pop()
        hull.append(point)
    return hull


@pytest.mark.parametrize(("shift", "method", "published"), JAX_PRIVACY)
def test_scores_of_jax_privacy_get_its_published_bounds(
    shift: float, method: str, published: float
) -> None:
    size, delta = 10_000, 1e-6
    outside = norm.ppf((np.arange(size) + 0.5) / size)
    hull = hull_counts(outside, outside + shift)
    level = 1.0 - 0.05 / len(hull)
    true, false = np.array(hull[1:]).T
    # Without delta the bound has a closed form, from Clopper-Pearson; with it, it is no larger.
    at_most = logit(beta.ppf(1.0 - level, true, false + 1))
    best = 0.0
    for index in np.argsort(-at_most):
        right, made = int(true[index]), int(true[index] + false[index])
        if method == "one_run" and at_most[index] > best:
            if one_run.p_value(2 * size, made, right, best, delta) >= 1.0 - level:
                continue
            epsilon = one_run.epsilon_lower_bound(2 * size, made, right, delta, level)
        elif method == "f_dp" and right / made > expit(best):
            # Precision that a claim of the best epsilon so far allows cannot refute it.
            sigma = dp_accounting.get_sigma_gaussian(best, delta) if best else math.inf
            claim = GaussianTradeOff(1.0 / sigma)
            if not f_dp.refutes(claim, 2 * size, made, right, 1.0 - level):
                continue
            epsilon = epsilon_of_mu(mu_lower_bound(2 * size, made, right, level), delta)
        else:
            continue
        best = max(best, epsilon)
    assert best == pytest.approx(published, abs=2e-5)
