"""The Laplace mechanism: L1 sensitivity, noise of the accounted scale, and its accounting."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting import dp_event, pld, rdp
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy import integrate, stats

from privacy.accountant import compose_epsilon
from privacy.aggregate import Aggregate
from privacy.amplification import Composition, Participation
from privacy.calibration import calibrate_noise_multiplier
from privacy.errors import PlanError, PrivacyError
from privacy.mechanism import NoiseScale
from privacy.mechanisms.laplace import Laplace, Options, build
from privacy.plan.plan import PlanRequest, make_plan
from tests.privacy.scheme_settings import with_scheme

MULTIPLIER, COHORT, NOISE_COHORT, CLIP = 1.5, 20, 100, 0.5
SCALE = MULTIPLIER * COHORT / NOISE_COHORT * CLIP
DELTA = 1e-5


def make(multiplier: float = MULTIPLIER, noise_cohort: float = NOISE_COHORT) -> Laplace:
    return build(Options(clip_norm=CLIP), NoiseScale(multiplier, COHORT, noise_cohort))


def ks_p_value(sample: np.ndarray[Any, Any], scale: float) -> float:
    return float(stats.kstest(sample, "laplace", args=(0.0, scale)).pvalue)


def test_the_noise_has_the_scale_and_the_law_that_are_accounted() -> None:
    release = make().release(Aggregate.zeros(5000), np.random.default_rng(1))
    noise = release.mean_update.numpy() * COHORT
    assert ks_p_value(noise, SCALE) > 1e-3
    assert ks_p_value(noise, SCALE * 2 / 3) < 1e-6
    assert ks_p_value(noise, SCALE * 3 / 2) < 1e-6
    # Nor is it a Gaussian of the same standard deviation.
    assert release.update_noise_stddev == pytest.approx(math.sqrt(2.0) * SCALE)
    assert stats.kstest(noise, stats.norm(0.0, release.update_noise_stddev).cdf).pvalue < 1e-6
    assert float(np.std(noise)) == pytest.approx(release.update_noise_stddev, rel=0.05)


def test_the_noise_is_drawn_once_and_does_not_depend_on_who_took_part() -> None:
    aggregate = Aggregate.zeros(50)
    mechanism = make()
    for _ in range(3):
        mechanism.accumulate(aggregate, torch.full((50,), 0.004), 1.0)
    full = mechanism.release(aggregate, np.random.default_rng(3))
    empty = make().release(Aggregate.zeros(50), np.random.default_rng(3))
    assert not torch.equal(empty.mean_update, torch.zeros(50))
    # The denominator is the configured cohort of 20, not the 3 users who came.
    difference = (full.mean_update - empty.mean_update) * COHORT
    assert torch.allclose(difference, torch.full((50,), 0.012), atol=1e-6)
    again = make().release(Aggregate.zeros(50), np.random.default_rng(4))
    assert not torch.equal(again.mean_update, empty.mean_update)


def test_one_user_moves_the_sum_by_at_most_clip_norm_in_l1() -> None:
    rng = torch.Generator().manual_seed(5)
    mechanism, aggregate = make(), Aggregate.zeros(64)
    for size in (1e-4, 0.1, 1.0, 1e6, 1e30, math.nan, math.inf):
        total = aggregate.total.to(torch.float64)
        mechanism.accumulate(aggregate, torch.randn(64, generator=rng) * size, 1.0)
        moved = (aggregate.total.to(torch.float64) - total).abs().sum()
        assert float(moved) <= CLIP * (1 + 1e-6)
    assert aggregate.largest_clipped_norm <= CLIP
    assert aggregate.largest_norm > 1e31
    assert (aggregate.num_contributions, aggregate.num_nonfinite) == (5, 2)
    assert (aggregate.num_clipped, aggregate.weight) == (4, 5.0)


def test_an_update_within_the_l2_bound_alone_is_clipped() -> None:
    """100 elements of 0.04 have an L2 norm of 0.4 and an L1 norm of 4."""
    aggregate = Aggregate.zeros(100)
    outcome = make().accumulate(aggregate, torch.full((100,), 0.04), 1.0)
    assert not outcome.unclipped
    assert float(aggregate.total.abs().sum()) == pytest.approx(CLIP, rel=1e-5)


def test_switched_off_it_is_the_plain_mean() -> None:
    mechanism, aggregate = make(0.0), Aggregate.zeros(3)
    mechanism.accumulate(aggregate, torch.tensor([0.1, -0.2, 0.1]), 1.0)
    release = mechanism.release(aggregate, np.random.default_rng(0))
    assert torch.equal(release.mean_update, torch.tensor([0.1, -0.2, 0.1]) / COHORT)
    assert release.update_noise_stddev == 0.0


def test_weights_are_refused_and_the_state_is_empty() -> None:
    mechanism, aggregate = make(), Aggregate.zeros(2)
    with pytest.raises(PlanError, match="weight 1"):
        mechanism.accumulate(aggregate, torch.ones(2), 2.0)
    assert torch.equal(aggregate.total, torch.zeros(2))
    mechanism.load_state_dict(mechanism.state_dict())
    with pytest.raises(PrivacyError, match="foreign keys"):
        mechanism.load_state_dict({"clip_norm": 1.0})


@pytest.mark.parametrize("options", [{}, {"clip_norm": 0.0}, {"clip_norm": 1.0, "quantile": 0.5}])
def test_options_are_strict(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Options(**options)


def composed(scheme: str, rounds: int, z: float = MULTIPLIER, separation: int = 1) -> Composition:
    cohort = 1000 if scheme == "full" else 50
    participation = Participation.named(scheme, 1000, cohort, separation)
    return make().composition(participation, z, rounds)


def test_full_participation_is_accounted_as_unsampled_laplace_noise() -> None:
    composition = composed("full", 30, 20.0)
    assert composition == Composition(dp_event.LaplaceDpEvent(20.0), 30, "add-or-remove-one")
    direct = rdp.RdpAccountant().compose(dp_event.LaplaceDpEvent(20.0), 30).get_epsilon(DELTA)
    assert compose_epsilon([composition], DELTA, "rdp") == pytest.approx(direct)
    tight = pld.PLDAccountant().compose(dp_event.LaplaceDpEvent(20.0), 30).get_epsilon(DELTA)
    assert compose_epsilon([composition], DELTA, "pld") == pytest.approx(tight, rel=1e-3)
    assert tight < direct


@pytest.mark.parametrize(
    ("scheme", "separation", "count", "rate"),
    [("poisson", 1, 30, 0.05), ("cyclic_poisson", 4, 8, 0.2)],
)
def test_sampled_users_are_accounted_as_poisson_sampled_laplace_noise(
    scheme: str, separation: int, count: int, rate: float
) -> None:
    composition = composed(scheme, 30, 2.0, separation)
    event = dp_event.PoissonSampledDpEvent(rate, dp_event.LaplaceDpEvent(2.0))
    assert composition == Composition(event, count, "add-or-remove-one")
    direct = pld.PLDAccountant().compose(event, count).get_epsilon(DELTA)
    assert compose_epsilon([composition], DELTA, "pld") == pytest.approx(direct, rel=1e-3)


def test_one_unsampled_round_is_pure_dp_with_epsilon_one_over_z() -> None:
    """At delta 1e-12 the accountant says 1 / z, whatever z."""
    for z in (0.5, 2.0, 10.0):
        assert compose_epsilon([composed("full", 1, z)], 1e-12, "pld") == pytest.approx(
            1 / z, rel=1e-3
        )


def test_accountants_that_do_not_know_it_name_the_one_that_does() -> None:
    with pytest.raises(PlanError, match="use the accountant pld"):
        compose_epsilon([composed("poisson", 3)], DELTA, "rdp")
    with pytest.raises(PlanError, match="use the accountant pld"):
        compose_epsilon([composed("poisson", 3)], DELTA, "prv")
    with pytest.raises(PlanError, match="use the accountant rdp or pld"):
        compose_epsilon([composed("full", 3)], DELTA, "prv")


def test_fixed_size_cohorts_are_refused() -> None:
    with pytest.raises(PlanError, match="sample by poisson"):
        composed("fixed_size", 3)


@pytest.mark.parametrize(("z", "rounds"), [(-1.0, 1), (math.nan, 1), (1.0, -1), (1.0, 1.5)])
def test_numbers_that_are_not_allowed(z: float, rounds: Any) -> None:
    with pytest.raises(PrivacyError, match="must be"):
        composed("poisson", rounds, z)


def test_without_noise_there_is_no_guarantee() -> None:
    assert compose_epsilon([composed("poisson", 3, 0.0)], DELTA, "pld") == math.inf


def test_calibration_round_trips() -> None:
    mechanism = make()
    participation = Participation.named("poisson", 1000, 50)

    def compose(z: float, rounds: int) -> Composition:
        return mechanism.composition(participation, z, rounds)

    z = calibrate_noise_multiplier(2.0, DELTA, participation, 20, "pld", mechanism.composition)
    assert compose_epsilon([compose(z, 20)], DELTA, "pld") <= 2.0
    assert compose_epsilon([compose(z * 0.999, 20)], DELTA, "pld") > 2.0


def divergence_of_one(shift: float, threshold: float) -> float:
    """Hockey-stick divergence of two Laplace laws of scale 1, by integration."""

    def positive_part(x: float) -> float:
        gap = math.exp(-abs(x)) - math.exp(threshold - abs(x - shift))
        return max(0.0, 0.5 * gap)

    value, _ = integrate.quad(positive_part, -40.0, 40.0, points=[0.0, shift], limit=200)
    return float(value)


@settings(max_examples=25, deadline=None)
@given(
    first=st.floats(min_value=0.01, max_value=3.0),
    second=st.floats(min_value=0.01, max_value=3.0),
    threshold=st.floats(min_value=-4.0, max_value=5.0),
)
def test_moving_two_elements_discloses_no_more_than_moving_one_by_their_sum(
    first: float, second: float, threshold: float
) -> None:
    """What lets an accountant of one dimension stand for all (see the mechanism's docstring)."""

    def inner(y: float) -> float:
        loss = abs(y - second) - abs(y)
        return 0.5 * math.exp(-abs(y)) * closed_form(first, threshold - loss)

    both, _ = integrate.quad(inner, -40.0, 40.0, points=[0.0, second], limit=200)
    assert both <= closed_form(first + second, threshold) + 1e-9


def closed_form(shift: float, threshold: float) -> float:
    if threshold <= -shift:
        return 1.0 - math.exp(threshold)
    return max(0.0, 1.0 - math.exp((threshold - shift) / 2.0))


@pytest.mark.parametrize("threshold", [-2.5, -1.0, 0.0, 0.7, 1.9, 2.5])
def test_the_closed_form_of_the_divergence(threshold: float) -> None:
    assert closed_form(2.0, threshold) == pytest.approx(divergence_of_one(2.0, threshold), abs=1e-7)


def request(**changes: Any) -> PlanRequest:
    options = Options(clip_norm=CLIP)
    settings: dict[str, Any] = {
        "mechanism": "laplace",
        "mechanism_build": lambda noise: build(options, noise),
        "scheme": "poisson",
        "population_size": 500,
        "num_users": 500,
        "hypothetical_population": False,
        "cohort_size": 20,
        "noise_cohort_size": 100,
        "num_rounds": 10,
        "weighting": "uniform",
        "epsilon": 4.0,
        "noise_multiplier": None,
        "delta": None,
        "accountant": "pld",
        "uploads": ("update",),
        "batchnorm_layers": (),
        "num_parameters": 7,
    }
    return PlanRequest(**with_scheme({**settings, **changes}))


def test_a_plan_accounts_both_settings() -> None:
    plan = make_plan(request())
    statement = plan.statement(10)
    assert statement.adjacency == "add-or-remove-one"
    assert 3.99 < statement.simulated.epsilon <= 4.0
    # A fifth of the noise, a fifth of the users.
    event = dp_event.PoissonSampledDpEvent(
        20 / 500, dp_event.LaplaceDpEvent(plan.noise.noise_multiplier / 5)
    )
    actual = pld.PLDAccountant().compose(event, 10).get_epsilon(500**-1.1)
    assert statement.actual.epsilon == pytest.approx(actual, rel=1e-3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"accountant": "rdp"}, "use the accountant pld"),
        ({"accountant": "prv"}, "use the accountant pld"),
        ({"scheme": "fixed_size"}, "sample by poisson"),
        ({"weighting": "examples"}, "uniform"),
    ],
)
def test_plans_that_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        make_plan(request(**changes))
