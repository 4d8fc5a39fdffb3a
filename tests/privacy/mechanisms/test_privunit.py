"""PrivUnit's law: its shares of the sphere, its likelihood ratio, its mean, and how it is drawn."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from privacy.errors import PrivacyError
from privacy.noise.privunit import (
    LARGEST_REPORT_EPSILON,
    CapDesign,
    design,
    draw_inner_product,
    log_cap_share,
    log_mean_length,
    randomize,
)

EPSILONS = st.floats(min_value=1e-3, max_value=LARGEST_REPORT_EPSILON)


def exact_log_share(threshold: float, dimension: int) -> Any:
    """By integration of the sphere's marginal density, to 30 digits."""
    with mpmath.workdps(30):
        power = (mpmath.mpf(dimension) - 3) / 2
        # Cut as fast as the density falls, which the quadrature would step over.
        width = min(1 / mpmath.sqrt(dimension), 1 / (threshold * mpmath.mpf(dimension)))
        cuts = [threshold + k * width for k in range(25) if threshold + k * width < 1]

        def density(x: Any) -> Any:
            return (1 - x * x) ** power

        tail = mpmath.quad(density, [*cuts, 1])
        return mpmath.log(tail / mpmath.beta(0.5, (mpmath.mpf(dimension) - 1) / 2))


@pytest.mark.parametrize(
    ("dimension", "threshold"),
    [
        (3, 0.3),
        (10, 0.9),
        (7850, 0.02),
        (7850, 0.3),
        (100_000, 1e-4),
        (100_000, 0.0087),
        (100_000, 0.09),
    ],
)
def test_the_share_of_a_cap_is_exact(dimension: int, threshold: float) -> None:
    wanted = float(exact_log_share(threshold, dimension))
    assert log_cap_share(threshold, dimension) == pytest.approx(wanted, rel=1e-10)


def test_caps_whose_share_is_known() -> None:
    # On the sphere in three dimensions a cap's area is linear in its height (Archimedes).
    for threshold in (0.0, 0.25, 0.999):
        share = math.exp(log_cap_share(threshold, 3))
        assert share == pytest.approx((1.0 - threshold) / 2.0, rel=1e-12)
    assert math.exp(log_cap_share(math.cos(0.1), 2)) == pytest.approx(0.1 / math.pi, rel=1e-12)
    assert math.exp(log_cap_share(0.0, 100_000)) == 0.5
    # As in one dimension of a normal law, where there are many.
    share = math.exp(log_cap_share(3.0 / math.sqrt(1e7), 10_000_000))
    assert share == pytest.approx(float(stats.norm.sf(3.0)), rel=1e-4)
    assert log_cap_share(0.9, 100_000) == -math.inf


def log_levels(plan: CapDesign) -> tuple[float, float]:
    """Logarithms of the density in the cap and outside of it, over the uniform one."""
    inside = math.log(plan.choice_probability) - plan.log_cap
    outside = math.log1p(-plan.choice_probability) - math.log1p(-math.exp(plan.log_cap))
    return inside, outside


@settings(max_examples=200, deadline=None)
@given(epsilon=EPSILONS, dimension=st.integers(min_value=1500, max_value=10_000_000))
def test_the_likelihood_ratio_is_epsilon_and_no_more(epsilon: float, dimension: int) -> None:
    """The density has two levels; any two inputs can at most swap them."""
    plan = design(epsilon, dimension)
    inside, outside = log_levels(plan)
    # 1 - choice_probability is known to 1e-16 of 1, which its logarithm magnifies.
    slack = 1e-15 / (1.0 - plan.choice_probability) + 1e-12 * epsilon
    assert inside - outside == pytest.approx(epsilon, abs=slack)
    assert plan.epsilon_choice + plan.epsilon_cap == pytest.approx(epsilon)
    assert plan.epsilon_choice > 0.0
    assert plan.epsilon_cap >= 0.0
    assert 0.0 <= plan.threshold < 1.0
    assert 0.0 < plan.mean_length < 1.0


@pytest.mark.parametrize("dimension", [2, 3, 50, 7850, 100_000])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 8.0])
def test_no_other_threshold_makes_reports_shorter(dimension: int, epsilon: float) -> None:
    plan = design(epsilon, dimension)
    for threshold in np.linspace(0.0, min(3.0 * plan.threshold, 0.999), 60):
        other = math.exp(log_mean_length(float(threshold), dimension, epsilon))
        assert other <= plan.mean_length * (1 + 1e-12)
    # At the best threshold the mean is as long as the threshold.
    assert plan.mean_length == pytest.approx(plan.threshold, rel=1e-6)


@pytest.mark.parametrize(("dimension", "epsilon"), [(10, 1.0), (7850, 8.0), (100_000, 16.0)])
def test_the_mean_is_that_of_the_paper(dimension: int, epsilon: float) -> None:
    """Bhowmick et al. 2018, equation 15, to 30 digits."""
    plan = design(epsilon, dimension)
    with mpmath.workdps(60):
        half = mpmath.mpf(dimension - 1) / 2
        gamma = mpmath.mpf(plan.threshold)
        choice = mpmath.mpf(plan.choice_probability)
        share = mpmath.exp(exact_log_share(plan.threshold, dimension))
        whole = mpmath.beta(half, half)
        factor = (1 - gamma**2) ** half / (mpmath.mpf(2) ** (dimension - 2) * (dimension - 1))
        wanted = factor / whole * (choice / share - (1 - choice) / (1 - share))
        assert plan.mean_length == pytest.approx(float(wanted), rel=1e-9)


# pfl-research's compute_optimal_cap_offset (commit 238775c), run with its LogFloat of pfl 0.6.0:
# epsilon, dimension, its cap offset, its probability of the cap, its scaling.
PFL = [
    (2.0, 1000, 0.018553250089270022, 0.7281529649706926, 42.120005415172685),
    (8.0, 1000, 0.07973917193816878, 0.8906335218416042, 12.508723226530272),
    (8.0, 100_000, 0.007985145610121577, 0.8902944972518005, 124.91064004939892),
]


@pytest.mark.parametrize(("epsilon", "dimension", "offset", "choice", "scaling"), PFL)
def test_the_peers_scaling_is_reproduced_and_improved(
    epsilon: float, dimension: int, offset: float, choice: float, scaling: float
) -> None:
    """pfl-research bounds what the cap spends, so it spends less than it may; we compute it."""
    share = math.exp(log_cap_share(offset, dimension))
    spent = math.log(choice / (1.0 - choice)) + math.log((1.0 - share) / share)
    assert spent < epsilon
    assert math.exp(-log_mean_length(offset, dimension, spent)) == pytest.approx(scaling, rel=1e-9)
    assert 1.0 / design(epsilon, dimension).mean_length < scaling


def test_the_squared_error_is_below_the_peers_line_search() -> None:
    """The near-optimal squared errors in pfl-research's test_priv_unit_functions.py."""
    for epsilon, dimension, near_optimal in [
        (6.0, 100, 26.89),
        (1.0, 1000, 6476.4),
        (4.0, 1000, 614.73),
        (10.0, 1000, 107.54),
        (2.0, 500_000, 887193.5),
        (9.0, 500_000, 63884.62),
    ]:
        squared_error = design(epsilon, dimension).mean_length ** -2
        assert 0.7 * near_optimal < squared_error < near_optimal


@pytest.mark.parametrize(("dimension", "epsilon"), [(2, 1.0), (3, 4.0), (7850, 8.0), (7850, 40.0)])
def test_inner_products_have_the_law_that_is_claimed(dimension: int, epsilon: float) -> None:
    plan = design(epsilon, dimension)
    rng = np.random.default_rng(3)
    drawn = np.array([draw_inner_product(plan, rng) for _ in range(4000)])
    in_cap = drawn >= plan.threshold
    count = int(in_cap.sum())
    assert stats.binomtest(count, drawn.size, plan.choice_probability).pvalue > 1e-3

    half = (dimension - 1) / 2.0
    cap = math.exp(plan.log_cap)

    def beyond(x: Any) -> Any:
        """Share of the sphere beyond an inner product."""
        tail = 0.5 * special.betaincc(0.5, half, np.square(x))
        return np.where(x >= 0.0, tail, 1.0 - tail)

    assert stats.kstest(beyond(drawn[in_cap]) / cap, "uniform").pvalue > 1e-3
    if count < drawn.size - 20:
        outside = (beyond(drawn[~in_cap]) - cap) / (1.0 - cap)
        assert stats.kstest(outside, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("chosen", [True, False])
def test_no_rounding_takes_a_draw_over_the_edge_of_the_cap(chosen: bool) -> None:
    for dimension, epsilon in itertools.product((2, 3, 50, 7850, 500_000), (0.5, 1.0, 4.0, 9.0)):
        plan = design(epsilon, dimension)
        # The draw that is next to the edge.
        draws = iter([0.0, 0.0] if chosen else [math.nextafter(1.0, 0.0)] * 2)
        rng: Any = SimpleNamespace(random=lambda draws=draws: next(draws))
        assert (draw_inner_product(plan, rng) >= plan.threshold) == chosen


def unit(dimension: int, seed: int) -> np.ndarray[Any, Any]:
    vector = np.random.default_rng(seed).standard_normal(dimension)
    return vector / np.linalg.norm(vector)


@pytest.mark.parametrize("dimension", [2, 5, 300])
def test_reports_are_unbiased_and_of_one_length(dimension: int) -> None:
    plan = design(4.0, dimension)
    direction, aside = unit(dimension, 1), unit(dimension, 2)
    aside -= (aside @ direction) * direction
    aside /= np.linalg.norm(aside)
    rng = np.random.default_rng(4)
    reports = np.array([randomize(direction, plan, rng) for _ in range(4000)])
    assert np.linalg.norm(reports, axis=1) == pytest.approx(1.0 / plan.mean_length, rel=1e-9)
    for axis, wanted in ((direction, 1.0), (aside, 0.0)):
        assert stats.ttest_1samp(reports @ axis, wanted).pvalue > 1e-3
        assert stats.ttest_1samp(reports @ axis, wanted + 0.15).pvalue < 1e-3
    error = float(np.square(reports - direction).sum(axis=1).mean())
    assert error == pytest.approx(plan.mean_length**-2 - 1.0, rel=0.1)


def test_around_the_direction_reports_are_uniform() -> None:
    """In the plane across the direction no angle is preferred."""
    plan = design(3.0, 3)
    direction = np.array([0.0, 0.6, 0.8])
    axes = np.array([[1.0, 0.0, 0.0], [0.0, 0.8, -0.6]])
    rng = np.random.default_rng(5)
    across = np.array([axes @ randomize(direction, plan, rng) for _ in range(3000)])
    angles = np.arctan2(across[:, 0], across[:, 1]) / (2.0 * math.pi) + 0.5
    assert stats.kstest(angles, "uniform").pvalue > 1e-3


def test_without_a_direction_reports_are_uniform_on_the_sphere() -> None:
    plan = design(3.0, 3)
    rng = np.random.default_rng(6)
    reports = np.array([randomize(None, plan, rng) for _ in range(3000)]) * plan.mean_length
    assert np.linalg.norm(reports, axis=1) == pytest.approx(1.0)
    for axis in range(3):
        # Archimedes again: each coordinate is uniform.
        assert stats.kstest(0.5 + 0.5 * reports[:, axis], "uniform").pvalue > 1e-3


def test_observed_frequencies_never_differ_by_more_than_epsilon() -> None:
    """Two opposite inputs, the sphere cut in 12 zones: what an attacker could count."""
    epsilon, draws = 1.5, 20_000
    plan = design(epsilon, 3)
    zones = np.linspace(-1.0, 1.0, 13)
    counts = []
    for sign, seed in ((1.0, 7), (-1.0, 8)):
        rng = np.random.default_rng(seed)
        inner = np.array([sign * draw_inner_product(plan, rng) for _ in range(draws)])
        counts.append(np.histogram(inner, zones)[0])
    first, second = np.log(counts[0]), np.log(counts[1])
    spread = 4.0 * np.sqrt(1.0 / counts[0] + 1.0 / counts[1])
    assert np.all(np.abs(first - second) <= epsilon + spread)
    # The bound is reached: at the poles an attacker learns all of epsilon.
    assert abs(first[0] - second[0]) == pytest.approx(epsilon, abs=float(spread[0]))


@pytest.mark.parametrize("dimension", [100_000, 10_000_000])
@pytest.mark.parametrize("epsilon", [1e-7, 0.5, 20.0, LARGEST_REPORT_EPSILON])
def test_large_models_and_extreme_budgets(dimension: int, epsilon: float) -> None:
    plan = design(epsilon, dimension)
    rng = np.random.default_rng(9)
    drawn = [draw_inner_product(plan, rng) for _ in range(50)]
    assert all(-1.0 <= inner <= 1.0 for inner in drawn)
    if epsilon >= 20.0:
        assert sum(inner >= plan.threshold for inner in drawn) > 30


@pytest.mark.parametrize(
    ("epsilon", "dimension"), [(0.0, 10), (-1.0, 10), (math.nan, 10), (501.0, 10), (math.inf, 10)]
)
def test_budgets_that_are_not_allowed(epsilon: float, dimension: int) -> None:
    with pytest.raises(PrivacyError, match="must be positive"):
        design(epsilon, dimension)


def test_spheres_without_directions_or_without_room_are_refused() -> None:
    with pytest.raises(PrivacyError, match="from 2 on"):
        design(1.0, 1)
    with pytest.raises(PrivacyError, match="lower epsilon"):
        design(400.0, 2)
