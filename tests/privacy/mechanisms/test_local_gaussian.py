"""Local Gaussian noise: in each report, of the scale that is accounted, and never amplified."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting import dp_event, pld, rdp
from dp_accounting.pld import privacy_loss_distribution
from pydantic import ValidationError
from scipy import stats

from privacy.accountant import compose_epsilon
from privacy.aggregate import Aggregate
from privacy.amplification import Composition, Participation
from privacy.clipping import clip
from privacy.errors import PlanError, PrivacyError
from privacy.mechanism import NoiseScale
from privacy.mechanisms.local_gaussian import LocalGaussian, Options, build
from privacy.plan.plan import PlanRequest, make_plan
from tests.privacy.scheme_settings import with_scheme

MULTIPLIER, COHORT, CLIP = 1.5, 20, 0.5
DELTA = 1e-5


def make(multiplier: float = MULTIPLIER) -> LocalGaussian:
    return build(Options(clip_norm=CLIP), NoiseScale(multiplier, COHORT, COHORT))


def assert_scale(sample: np.ndarray[Any, Any], scale: float) -> None:
    assert stats.kstest(sample, stats.norm(0.0, scale).cdf).pvalue > 1e-3
    assert stats.kstest(sample, stats.norm(0.0, scale * 2 / 3).cdf).pvalue < 1e-6
    assert stats.kstest(sample, stats.norm(0.0, scale * 3 / 2).cdf).pvalue < 1e-6


def test_every_report_has_its_own_noise_of_the_scale_that_is_accounted() -> None:
    mechanism = make()
    noises = []
    for client in range(2):
        aggregate = Aggregate.zeros(5000)
        update = torch.full((5000,), 0.3)
        mechanism.accumulate(aggregate, update, 1.0, np.random.default_rng(client))
        noise = (aggregate.total - clip(update, CLIP)).numpy()
        assert_scale(noise, MULTIPLIER * CLIP)
        noises.append(noise)
    assert abs(np.corrcoef(noises)[0, 1]) < 0.06


@pytest.mark.parametrize("reports", [1, 4, 9])
def test_the_sum_has_the_noise_of_all_its_reports_and_the_server_adds_none(reports: int) -> None:
    mechanism, aggregate = make(), Aggregate.zeros(5000)
    for client in range(reports):
        mechanism.accumulate(aggregate, torch.ones(5000), 1.0, np.random.default_rng(client))
    release = mechanism.release(aggregate, np.random.default_rng(1))
    assert release.update_noise_stddev == pytest.approx(math.sqrt(reports) * MULTIPLIER * CLIP)
    assert aggregate.clipped_total is not None
    noise = release.mean_update * COHORT - aggregate.clipped_total
    assert_scale(noise.numpy(), release.update_noise_stddev)
    # Another stream of the server changes nothing, and the denominator is the configured cohort.
    again = mechanism.release(aggregate, np.random.default_rng(2))
    assert torch.equal(again.mean_update, release.mean_update)
    assert torch.equal(release.mean_update, aggregate.total / COHORT)


def test_the_sum_before_the_noise_is_that_of_the_clipped_updates() -> None:
    mechanism, aggregate = make(), Aggregate.zeros(30)
    generator = torch.Generator().manual_seed(6)
    wanted = torch.zeros(30)
    for client, size in enumerate((1e-3, 0.1, 1e6, 1e30)):
        update = torch.randn(30, generator=generator) * size
        wanted += clip(update, CLIP)
        mechanism.accumulate(aggregate, update, 1.0, np.random.default_rng(client))
    assert aggregate.clipped_total is not None
    assert torch.allclose(aggregate.clipped_total, wanted, atol=1e-7)
    assert not torch.allclose(aggregate.total, wanted, atol=0.1)
    assert aggregate.largest_clipped_norm <= CLIP
    assert (aggregate.num_contributions, aggregate.num_clipped, aggregate.weight) == (4, 3, 4.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_update_that_is_not_finite_sends_noise_alone_and_is_not_missing(bad: float) -> None:
    mechanism, aggregate = make(), Aggregate.zeros(5000)
    update = torch.zeros(5000)
    update[3] = bad
    outcome = mechanism.accumulate(aggregate, update, 1.0, np.random.default_rng(1))
    assert not outcome.finite
    assert (aggregate.num_contributions, aggregate.num_nonfinite) == (0, 1)
    assert_scale(aggregate.total.numpy(), MULTIPLIER * CLIP)
    # The same stream gives the report of a client whose update is zero.
    zero = Aggregate.zeros(5000)
    mechanism.accumulate(zero, torch.zeros(5000), 1.0, np.random.default_rng(1))
    assert torch.equal(zero.total, aggregate.total)
    release = mechanism.release(aggregate, np.random.default_rng(0))
    assert release.update_noise_stddev == pytest.approx(MULTIPLIER * CLIP)


def test_two_values_of_one_user_are_at_most_twice_clip_norm_apart() -> None:
    """Same stream, same noise: reports differ by what the accountant takes as the sensitivity."""
    reports = []
    for sign in (1.0, -1.0):
        aggregate = Aggregate.zeros(64)
        make().accumulate(aggregate, torch.full((64,), sign * 1e6), 1.0, np.random.default_rng(1))
        reports.append(aggregate.total.to(torch.float64))
    apart = float(torch.linalg.vector_norm(reports[0] - reports[1]))
    assert apart == pytest.approx(2 * CLIP, rel=1e-5)


def test_an_empty_cohort_releases_zeros() -> None:
    release = make().release(Aggregate.zeros(3), np.random.default_rng(0))
    assert torch.equal(release.mean_update, torch.zeros(3))
    assert release.update_noise_stddev == 0.0


def test_workers_merge_to_what_one_would_have() -> None:
    mechanism = make()
    alone, workers = Aggregate.zeros(30), [Aggregate.zeros(30), Aggregate.zeros(30)]
    for index in range(6):
        for aggregate in (alone, workers[index % 2]):
            update = torch.full((30,), 0.1 * index)
            mechanism.accumulate(aggregate, update, 1.0, np.random.default_rng(index))
    workers[0].merge(workers[1])
    assert torch.allclose(workers[0].total, alone.total, atol=1e-5)
    assert workers[0].clipped_total is not None
    assert alone.clipped_total is not None
    assert torch.allclose(workers[0].clipped_total, alone.clipped_total, atol=1e-6)
    assert workers[0].num_contributions == alone.num_contributions == 6


def test_without_noise_it_sums_the_clipped_updates_bit_for_bit() -> None:
    mechanism, aggregate = make(0.0), Aggregate.zeros(4)
    update = torch.tensor([0.1, -0.2, 0.05, 0.0])
    mechanism.accumulate(aggregate, update, 1.0, np.random.default_rng(0))
    release = mechanism.release(aggregate, np.random.default_rng(0))
    assert torch.equal(release.mean_update, update / COHORT)


def test_a_client_without_its_own_stream_is_refused() -> None:
    with pytest.raises(PrivacyError, match="one independent stream per client"):
        make().accumulate(Aggregate.zeros(2), torch.ones(2), 1.0)


@pytest.mark.parametrize("weight", [0.0, 2.0, math.nan])
def test_weights_are_refused(weight: float) -> None:
    aggregate = Aggregate.zeros(2)
    with pytest.raises(PlanError, match="weight 1"):
        make().accumulate(aggregate, torch.ones(2), weight, np.random.default_rng(0))
    assert torch.equal(aggregate.total, torch.zeros(2))


def test_another_cohorts_noise_cannot_be_simulated() -> None:
    with pytest.raises(PlanError, match="do not depend on the cohort"):
        build(Options(clip_norm=CLIP), NoiseScale(1.0, 20, 100))


@pytest.mark.parametrize("options", [{}, {"clip_norm": math.inf}, {"clip_norm": 1.0, "z": 1.0}])
def test_options_are_strict(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Options(**options)


def test_the_state_is_empty() -> None:
    mechanism = make()
    mechanism.load_state_dict(mechanism.state_dict())
    with pytest.raises(PrivacyError, match="foreign keys"):
        mechanism.load_state_dict({"clip_norm": 1.0})


def composed(scheme: str, rounds: int, z: float = 10.0, separation: int = 1) -> Composition:
    cohort = 1000 if scheme == "full" else 50
    return make().composition(Participation.named(scheme, 1000, cohort, separation), z, rounds)


@pytest.mark.parametrize("scheme", ["poisson", "fixed_size", "full"])
@pytest.mark.parametrize("accountant", ["rdp", "pld", "prv"])
def test_every_round_counts_in_full_whatever_the_sampling(scheme: str, accountant: str) -> None:
    composition = composed(scheme, 30)
    assert composition == Composition(dp_event.GaussianDpEvent(5.0), 30, "replace-one")
    # T Gaussians of multiplier z / 2 are one whose means are 2 sqrt(T) / z standard deviations
    # apart; Balle and Wang 2018, theorem 8.
    epsilon = compose_epsilon([composition], DELTA, accountant)
    mu = 2.0 * math.sqrt(30) / 10.0
    delta = stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * stats.norm.cdf(
        -mu / 2 - epsilon / mu
    )
    assert delta <= DELTA * (1 + 1e-6)
    if accountant != "rdp":
        assert delta == pytest.approx(DELTA, rel=0.05)


def test_separation_alone_lowers_the_number_of_reports() -> None:
    assert composed("cyclic_poisson", 30, separation=4).count == 8
    assert composed("cyclic_poisson", 30, separation=4).event == dp_event.GaussianDpEvent(5.0)


def test_the_accounting_is_dp_accountings_for_a_sensitivity_of_two() -> None:
    composition = composed("poisson", 30)
    direct = rdp.RdpAccountant().compose(dp_event.GaussianDpEvent(5.0), 30).get_epsilon(DELTA)
    assert compose_epsilon([composition], DELTA, "rdp") == pytest.approx(direct)
    loss = privacy_loss_distribution.from_gaussian_mechanism(10.0 / math.sqrt(30), sensitivity=2.0)
    direct = loss.get_epsilon_for_delta(DELTA)
    assert compose_epsilon([composition], DELTA, "pld") == pytest.approx(direct, rel=1e-3)
    # Far more than what sampling would amplify it to, against someone who does not see who sends.
    event = dp_event.PoissonSampledDpEvent(0.05, dp_event.GaussianDpEvent(5.0))
    assert direct > 5 * pld.PLDAccountant().compose(event, 30).get_epsilon(DELTA)


@pytest.mark.parametrize(("z", "rounds"), [(-1.0, 1), (math.inf, 1), (1.0, -1), (1.0, 1.5)])
def test_numbers_that_are_not_allowed(z: float, rounds: Any) -> None:
    with pytest.raises(PrivacyError, match="must be"):
        composed("poisson", rounds, z)


def test_without_noise_there_is_no_guarantee() -> None:
    assert compose_epsilon([composed("poisson", 3, 0.0)], DELTA, "rdp") == math.inf


def request(**changes: Any) -> PlanRequest:
    options = Options(clip_norm=CLIP)
    settings: dict[str, Any] = {
        "mechanism": "local_gaussian",
        "mechanism_build": lambda noise: build(options, noise),
        "scheme": "poisson",
        "population_size": 500,
        "num_users": 500,
        "hypothetical_population": False,
        "cohort_size": 100,
        "noise_cohort_size": None,
        "num_rounds": 10,
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


@pytest.mark.parametrize(
    ("scheme", "accountant"),
    [("poisson", "rdp"), ("poisson", "prv"), ("fixed_size", "pld"), ("cyclic_poisson", "rdp")],
)
def test_plans_are_within_the_budget_in_both_settings(scheme: str, accountant: str) -> None:
    separation = 5 if scheme == "cyclic_poisson" else 1
    plan = make_plan(request(scheme=scheme, accountant=accountant, separation=separation))
    statement = plan.statement(10)
    assert statement.adjacency == "replace-one"
    assert 7.9 < statement.simulated.epsilon <= 8.0
    assert statement.actual.epsilon == statement.simulated.epsilon


@pytest.mark.parametrize("cohort", [1, 200])
def test_a_plan_with_another_noise_cohort_is_refused(cohort: int) -> None:
    with pytest.raises(PlanError, match="leave noise_cohort_size out"):
        make_plan(request(noise_cohort_size=cohort))
