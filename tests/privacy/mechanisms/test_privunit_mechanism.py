"""The PrivUnit mechanism: unbiased reports of one length, pure DP composed, and its refusals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting import dp_event, pld
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy import stats

from privacy.accountant import compose_epsilon
from privacy.aggregate import Aggregate
from privacy.amplification import Composition, Participation
from privacy.calibration import calibrate_noise_multiplier
from privacy.clipping import clip
from privacy.errors import PlanError, PrivacyError
from privacy.mechanism import NoiseScale
from privacy.mechanisms.privunit import Options, PrivUnit, build
from privacy.noise.privunit import design
from privacy.plan.plan import PlanRequest, make_plan
from tests.privacy.scheme_settings import with_scheme

EPSILON, COHORT, CLIP = 4.0, 20, 0.5
DELTA = 1e-5


def make(epsilon: float = EPSILON) -> PrivUnit:
    return build(Options(clip_norm=CLIP), NoiseScale(1.0 / epsilon, COHORT, COHORT))


def reports_of(update: torch.Tensor, count: int, seed: int = 0) -> np.ndarray[Any, Any]:
    mechanism, rng = make(), np.random.default_rng(seed)
    reports = []
    for _ in range(count):
        aggregate = Aggregate.zeros(update.numel())
        mechanism.accumulate(aggregate, update, 1.0, rng)
        reports.append(aggregate.total.numpy())
    return np.array(reports, dtype=np.float64)


@pytest.mark.parametrize("norm", [0.0, 0.1, 0.4, 0.5, 30.0])
def test_the_mean_of_reports_is_the_clipped_update(norm: float) -> None:
    """Neither rescaled to the bound nor beyond it; small updates stay small in the mean."""
    direction = np.array([0.6, 0.0, -0.8, 0.0, 0.0, 0.0])
    reports = reports_of(torch.tensor(norm * direction), 3000)
    kept = min(norm, CLIP)
    along = reports @ direction
    assert stats.ttest_1samp(along, kept).pvalue > 1e-3
    assert stats.ttest_1samp(along, kept + 0.15).pvalue < 1e-3
    assert stats.ttest_1samp(reports[:, 1], 0.0).pvalue > 1e-3
    length = CLIP / design(EPSILON, 6).mean_length
    assert np.linalg.norm(reports, axis=1) == pytest.approx(length, rel=1e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_update_that_is_not_finite_reports_as_a_zero_one_does(bad: float) -> None:
    update = torch.zeros(6)
    update[2] = bad
    mechanism, aggregate = make(), Aggregate.zeros(6)
    outcome = mechanism.accumulate(aggregate, update, 1.0, np.random.default_rng(1))
    assert not outcome.finite
    assert (aggregate.num_contributions, aggregate.num_nonfinite) == (0, 1)
    assert aggregate.clipped_total is not None
    assert torch.equal(aggregate.clipped_total, torch.zeros(6))
    zero = Aggregate.zeros(6)
    mechanism.accumulate(zero, torch.zeros(6), 1.0, np.random.default_rng(1))
    assert torch.equal(zero.total, aggregate.total)
    assert not torch.equal(zero.total, torch.zeros(6))


@settings(max_examples=100, deadline=None)
@given(
    first=st.floats(min_value=0.0, max_value=1.0),
    second=st.floats(min_value=0.0, max_value=1.0),
    angle=st.floats(min_value=0.0, max_value=math.pi),
    epsilon=st.floats(min_value=0.01, max_value=12.0),
)
def test_no_two_updates_change_a_reports_density_by_more_than_epsilon(
    first: float, second: float, angle: float, epsilon: float
) -> None:
    """Coin and all: densities of the whole client over the circle, exactly, for any two updates."""
    plan = design(epsilon, 2)
    cap = math.exp(plan.log_cap)
    inside = plan.choice_probability / cap
    outside = (1.0 - plan.choice_probability) / (1.0 - cap)
    points = np.linspace(0.0, 2.0 * math.pi, 2000)

    def density(length: float, towards: float) -> np.ndarray[Any, Any]:
        """Of clipped updates of ``length`` clip_norm in a direction."""
        inner = np.cos(points - towards)
        same = np.where(inner >= plan.threshold, inside, outside)
        opposite = np.where(-inner >= plan.threshold, inside, outside)
        return 0.5 * (1.0 + length) * same + 0.5 * (1.0 - length) * opposite

    ratio = np.log(density(first, 0.0) / density(second, angle))
    assert float(np.max(np.abs(ratio))) <= epsilon + 1e-9
    worst = np.log(density(1.0, 0.0) / density(1.0, math.pi))
    assert float(np.max(np.abs(worst))) == pytest.approx(epsilon)


@pytest.mark.parametrize("reports", [1, 7])
def test_the_noise_of_a_release_is_what_it_says_at_most(reports: int) -> None:
    mechanism, aggregate = make(), Aggregate.zeros(20_000)
    generator = torch.Generator().manual_seed(2)
    for client in range(reports):
        update = torch.randn(20_000, generator=generator)
        mechanism.accumulate(aggregate, update, 1.0, np.random.default_rng(client))
    release = mechanism.release(aggregate, np.random.default_rng(0))
    assert torch.equal(release.mean_update, aggregate.total / COHORT)
    assert aggregate.clipped_total is not None
    noise = (release.mean_update * COHORT - aggregate.clipped_total).numpy()
    measured = float(np.sqrt(np.mean(np.square(noise))))
    assert measured == pytest.approx(release.update_noise_stddev, rel=0.02)
    for wrong in (2 / 3, 3 / 2):
        assert measured != pytest.approx(release.update_noise_stddev * wrong, rel=0.2)


def test_the_sum_of_clipped_updates_is_kept() -> None:
    mechanism, aggregate = make(), Aggregate.zeros(5)
    wanted = torch.zeros(5)
    for client, size in enumerate((0.01, 1.0, 1e9)):
        update = torch.full((5,), size)
        wanted += clip(update, CLIP)
        mechanism.accumulate(aggregate, update, 1.0, np.random.default_rng(client))
    assert aggregate.clipped_total is not None
    assert torch.allclose(aggregate.clipped_total, wanted, atol=1e-6)
    assert (aggregate.num_contributions, aggregate.num_clipped) == (3, 2)
    assert aggregate.largest_clipped_norm <= CLIP


def test_an_empty_cohort_releases_zeros() -> None:
    release = make().release(Aggregate.zeros(3), np.random.default_rng(0))
    assert torch.equal(release.mean_update, torch.zeros(3))
    assert release.update_noise_stddev == 0.0


def test_without_noise_it_sums_the_clipped_updates_bit_for_bit() -> None:
    mechanism = build(Options(clip_norm=CLIP), NoiseScale(0.0, COHORT, COHORT))
    aggregate, update = Aggregate.zeros(3), torch.tensor([0.1, -0.2, 0.3])
    mechanism.accumulate(aggregate, update, 1.0, np.random.default_rng(0))
    release = mechanism.release(aggregate, np.random.default_rng(0))
    assert torch.equal(release.mean_update, update / COHORT)
    assert mechanism.clip_settings()["report_epsilon"] == "inf"


def test_what_is_refused() -> None:
    with pytest.raises(PrivacyError, match="one independent stream per client"):
        make().accumulate(Aggregate.zeros(2), torch.ones(2), 1.0)
    with pytest.raises(PlanError, match="weight 1"):
        make().accumulate(Aggregate.zeros(2), torch.ones(2), 2.0, np.random.default_rng(0))
    with pytest.raises(PlanError, match="do not depend on the cohort"):
        build(Options(clip_norm=CLIP), NoiseScale(1.0, 20, 100))
    with pytest.raises(PlanError, match=r"noise_multiplier at least 0\.002"):
        build(Options(clip_norm=CLIP), NoiseScale(0.001, 20, 20))
    with pytest.raises(PrivacyError, match="from 2 on"):
        make().accumulate(Aggregate.zeros(1), torch.ones(1), 1.0, np.random.default_rng(0))
    with pytest.raises(PrivacyError, match="foreign keys"):
        make().load_state_dict({"clip_norm": 1.0})
    with pytest.raises(ValidationError):
        Options.model_validate({"clip_norm": 1.0, "epsilon": 2.0})


def composed(scheme: str, rounds: int, z: float, separation: int = 1) -> Composition:
    cohort = 1000 if scheme == "full" else 50
    return make().composition(Participation.named(scheme, 1000, cohort, separation), z, rounds)


def randomized_response_delta(epsilon: float, budget: float, count: int) -> float:
    """Delta of so many randomized responses, whose losses are a binomial's."""
    truth = 1.0 / (1.0 + math.exp(-epsilon))
    truths = np.arange(count + 1)
    loss = epsilon * (2 * truths - count)
    kept = np.maximum(0.0, -np.expm1(budget - loss))
    return float(np.sum(stats.binom.pmf(truths, count, truth) * kept))


@pytest.mark.parametrize("scheme", ["poisson", "fixed_size", "full"])
@pytest.mark.parametrize("epsilon", [0.2, 1.0, 4.0])
def test_reports_compose_as_randomized_responses_whatever_the_sampling(
    scheme: str, epsilon: float
) -> None:
    composition = composed(scheme, 12, 1.0 / epsilon)
    assert (composition.count, composition.adjacency) == (12, "replace-one")
    together = compose_epsilon([composition], DELTA, "pld")
    assert together <= 12 * epsilon * (1 + 1e-3)
    # It is an upper bound, by the grid of the accountant above the exact value.
    assert randomized_response_delta(epsilon, together, 12) <= DELTA
    below = together * (1 - 1e-3) - 0.005
    assert randomized_response_delta(epsilon, below, 12) > DELTA


def test_one_report_is_pure_dp_with_epsilon_one_over_z() -> None:
    for epsilon in (0.1, 1.0, 8.0, 50.0):
        composition = composed("poisson", 1, 1.0 / epsilon)
        direct = pld.PLDAccountant(
            neighboring_relation=pld.pld_privacy_accountant.NeighborRel.REPLACE_ONE
        )
        direct.compose(composition.event)
        assert compose_epsilon([composition], 1e-15, "pld") == pytest.approx(epsilon, rel=1e-3)
        assert direct.get_epsilon(1e-15) == pytest.approx(epsilon, rel=1e-3)


def test_separation_alone_lowers_the_number_of_reports() -> None:
    assert composed("cyclic_poisson", 30, 0.5, separation=4).count == 8


def test_extremes_and_numbers_that_are_not_allowed() -> None:
    assert compose_epsilon([composed("poisson", 3, 0.0)], DELTA, "pld") == math.inf
    assert compose_epsilon([composed("poisson", 3, 1e-3)], DELTA, "pld") == math.inf
    assert compose_epsilon([composed("poisson", 3, 1e30)], DELTA, "pld") < 1e-3
    assert compose_epsilon([composed("poisson", 0, 1.0)], DELTA, "pld") == 0.0
    for z, rounds in ((-1.0, 1), (math.nan, 1), (1.0, -1)):
        with pytest.raises(PrivacyError, match="must be"):
            composed("poisson", rounds, z)


def test_accountants_that_do_not_know_it_name_one_that_does() -> None:
    event = dp_event.RandomizedResponseDpEvent(0.5, 2)
    with pytest.raises(PlanError, match=r"use the accountant .*pld"):
        compose_epsilon([Composition(event, 3, "replace-one")], DELTA, "prv")


def test_calibration_round_trips() -> None:
    participation = Participation.named("poisson", 1000, 50)

    def compose(z: float, rounds: int) -> Composition:
        return make().composition(participation, z, rounds)

    for rounds in (1, 10):
        z = calibrate_noise_multiplier(8.0, DELTA, participation, rounds, "pld", make().composition)
        assert 7.9 < compose_epsilon([compose(z, rounds)], DELTA, "pld") <= 8.0


def request(**changes: Any) -> PlanRequest:
    options = Options(clip_norm=CLIP)
    settings: dict[str, Any] = {
        "mechanism": "privunit",
        "mechanism_build": lambda noise: build(options, noise),
        "scheme": "poisson",
        "population_size": 500,
        "num_users": 500,
        "hypothetical_population": False,
        "cohort_size": 100,
        "noise_cohort_size": None,
        "num_rounds": 5,
        "weighting": "uniform",
        "epsilon": 8.0,
        "noise_multiplier": None,
        "delta": None,
        "accountant": "pld",
        "uploads": ("update",),
        "batchnorm_layers": (),
        "num_parameters": 7,
    }
    return PlanRequest(**with_scheme({**settings, **changes}))


def test_a_plan_calibrates_and_states_it() -> None:
    plan = make_plan(request())
    statement = plan.statement(5)
    assert (statement.adjacency, statement.mechanism) == ("replace-one", "privunit")
    assert 7.9 < statement.simulated.epsilon <= 8.0
    assert statement.actual.epsilon == statement.simulated.epsilon
    # At least the budget over the rounds: composition is never worse than the sum.
    report_epsilon = statement.clip["report_epsilon"]
    assert report_epsilon == 1.0 / plan.noise.noise_multiplier
    assert isinstance(report_epsilon, float)
    assert report_epsilon > 8.0 / 5 * 0.999


def test_a_plan_with_a_reports_epsilon_and_no_budget() -> None:
    plan = make_plan(request(epsilon=None, noise_multiplier=0.125, num_rounds=1))
    assert plan.statement(1).simulated.epsilon == pytest.approx(8.0, rel=1e-3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"accountant": "prv"}, "use the accountant"),
        ({"noise_cohort_size": 200}, "leave noise_cohort_size out"),
        ({"weighting": "examples"}, "uniform"),
    ],
)
def test_plans_that_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        make_plan(request(**changes))
