"""Selection with random stopping: dp-accounting as referee, closed forms, and the draws' law."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from dp_accounting import dp_event, rdp
from scipy import stats

from privacy.accountant import compose_epsilon
from privacy.accountants.renyi import renyi_of
from privacy.amplification import Composition, Participation, after_gaussians, sampled_gaussian
from privacy.errors import PlanError, PrivacyError
from privacy.tuning import (
    Trials,
    calibrate_selection,
    mean_of,
    repeated,
    selected_divergences,
    selection_epsilon,
)

USERS = Participation.named("poisson", 1000, 100)
DELTA = 1e-5
PLAN = sampled_gaussian(USERS, 2.0, 50)
POISSON = Trials.named("poisson", mean=10)
GEOMETRIC = Trials.named("geometric", mean=10)
TNB = "truncated_negative_binomial"


def direct(event: Any, mean: float, shape: float, delta: float = DELTA) -> float:
    accountant = rdp.RdpAccountant()
    accountant.compose(dp_event.RepeatAndSelectDpEvent(event, mean, shape))
    return float(accountant.get_epsilon(delta))


RUN = dp_event.SelfComposedDpEvent(
    dp_event.PoissonSampledDpEvent(0.1, dp_event.GaussianDpEvent(2.0)), 50
)


@pytest.mark.parametrize(
    ("trials", "shape"),
    [
        (POISSON, math.inf),
        (GEOMETRIC, 1.0),
        (Trials.named(TNB, mean=10, eta=0.0), 0.0),
        (Trials.named(TNB, mean=10, eta=0.5), 0.5),
        (Trials.named(TNB, mean=10, eta=3.0), 3.0),
    ],
)
def test_it_is_dp_accountings_repeat_and_select(trials: Trials, shape: float) -> None:
    expected = direct(RUN, 10.0, shape)
    assert selection_epsilon([PLAN], trials, DELTA) == pytest.approx(expected, rel=1e-9)
    # The same theorems, applied to Renyi divergences here, as other selections need.
    one = renyi_of(PLAN.parts)
    orders = np.asarray(one.orders)
    curve = selected_divergences(orders, one.rdp, trials)
    assert rdp.compute_epsilon(orders, curve, DELTA)[0] == pytest.approx(expected, rel=1e-6)


def test_a_geometric_number_of_gaussians_by_the_papers_formula() -> None:
    # One Gaussian of multiplier z has Renyi divergence a / (2 z^2) at order a. Theorem 2 with
    # eta 1, at two orders a and b above 1, and the conversion of Canonne et al. 2020 to epsilon.
    noise, gamma, delta = 4.0, 0.1, 1e-6
    orders = np.asarray(rdp.RdpAccountant().orders)
    second = np.min((orders - 1.0) / (2.0 * noise**2) - math.log(gamma) / orders)
    divergence = orders / (2.0 * noise**2) + 2.0 * second - math.log(gamma) / (orders - 1.0)
    converted = divergence + np.log1p(-1.0 / orders) - np.log(delta * orders) / (orders - 1.0)
    plan = Composition(dp_event.GaussianDpEvent(noise), 1, "add-or-remove-one")
    trials = Trials.named("geometric", gamma=gamma)
    assert selection_epsilon([plan], trials, delta) == pytest.approx(converted.min(), rel=1e-9)


def test_pure_dp_by_the_papers_corollary() -> None:
    # A pure epsilon at infinite orders gives (2 + eta) epsilon (corollary 3): near it at a tiny
    # delta's cost, never beyond what the orders allow.
    plan = Composition(dp_event.LaplaceDpEvent(10.0), 1, "add-or-remove-one")
    for eta in (0.0, 1.0, 2.0):
        trials = Trials.named(TNB, mean=3, eta=eta)
        bound = selection_epsilon([plan], trials, 0.01)
        assert bound <= (2.0 + eta) * 0.1 + 0.2
    orders = np.array([1e6, 1e9])
    curve = selected_divergences(orders, np.full(2, 0.1), Trials.named(TNB, mean=3, eta=2.0))
    assert curve[1] == pytest.approx(0.4, rel=1e-3)


@pytest.mark.parametrize("eta", [-0.5, -1e-9, 0.0, 1e-9, 0.5, 1.0, 2.0, 7.5])
def test_draws_have_the_law_that_is_accounted(eta: float) -> None:
    trials = Trials.named(TNB, mean=4, eta=eta)
    assert trials.gamma is not None
    assert mean_of(trials.gamma, eta) == pytest.approx(4.0, rel=1e-6)
    rng = np.random.default_rng(7)
    drawn = np.array([trials.draw(rng) for _ in range(20_000)])
    assert drawn.min() == 1
    assert drawn.mean() == pytest.approx(4.0, abs=6.0 * drawn.std() / math.sqrt(len(drawn)))
    # The definition: P(k) is proportional to (1 - gamma)^k times the product of (l + eta)/(l + 1).
    k = np.arange(1, 3000)
    steps = (1.0 - trials.gamma) * (k[:-1] + eta) / (k[:-1] + 1.0)
    mass = np.concatenate([[1.0], np.cumprod(steps)])
    mass /= mass.sum()
    assert trials.probability_of_one == pytest.approx(mass[0], rel=1e-6)
    seen = np.array([np.sum(drawn == number) for number in range(1, 6)] + [np.sum(drawn > 5)])
    expected = len(drawn) * np.append(mass[:5], mass[5:].sum())
    assert stats.chisquare(seen, expected * seen.sum() / expected.sum()).pvalue > 1e-4


def test_draws_of_a_law_whose_first_mass_underflows() -> None:
    trials = Trials.named(TNB, mean=10_000, eta=200.0)
    assert trials.probability_of_one == 0.0
    rng = np.random.default_rng(7)
    drawn = np.array([trials.draw(rng) for _ in range(2000)])
    # Its mass at 0 underflows too: the negative binomial of that shape.
    law = stats.nbinom(200.0, trials.gamma)
    assert drawn.mean() == pytest.approx(10_000, abs=6.0 * law.std() / math.sqrt(2000))
    assert drawn.std() == pytest.approx(law.std(), rel=0.1)


def test_a_mean_without_a_gamma_is_refused() -> None:
    # Gamma would be 20^-1000: with the least one that is searched, the mean would be 2.
    with pytest.raises(PrivacyError, match=r"mean is 20.0, .* eta -0.999 .* below 1.993; a l"):
        Trials.named(TNB, mean=20, eta=-0.999)
    assert Trials.named(TNB, mean=1.9, eta=-0.999).probability_of_one <= 1.0


def test_the_smallest_etas_have_the_limit_at_0() -> None:
    for eta in (5e-324, -1e-323, 1e-310):
        assert mean_of(0.07, eta) == pytest.approx(mean_of(0.07, 0.0), rel=1e-12)


def test_geometric_and_poisson_draws() -> None:
    rng = np.random.default_rng(3)
    drawn = np.array([GEOMETRIC.draw(rng) for _ in range(20_000)])
    assert np.mean(drawn == 1) == pytest.approx(0.1, abs=0.01)
    assert drawn.mean() == pytest.approx(10.0, abs=0.5)
    some = Trials.named("poisson", mean=1)
    drawn = np.array([some.draw(rng) for _ in range(20_000)])
    assert np.mean(drawn == 0) == pytest.approx(some.probability_of_none, abs=0.015)
    assert GEOMETRIC.probability_of_none == 0.0
    assert POISSON.probability_of_one == pytest.approx(stats.poisson.pmf(1, 10))


def test_each_option_moves_the_price() -> None:
    price = selection_epsilon([PLAN], POISSON, DELTA)
    alone = compose_epsilon([PLAN], DELTA, "rdp")
    assert price > alone
    assert selection_epsilon([PLAN], Trials.named("poisson", mean=50), DELTA) > price
    assert selection_epsilon([PLAN], POISSON, DELTA / 10) > price
    assert selection_epsilon([sampled_gaussian(USERS, 1.9, 50)], POISSON, DELTA) > price
    assert selection_epsilon([sampled_gaussian(USERS, 2.0, 51)], POISSON, DELTA) > price
    etas = [-0.5, 0.0, 1.0, 2.0]
    by_eta = [selection_epsilon([PLAN], Trials.named(TNB, mean=10, eta=e), DELTA) for e in etas]
    assert by_eta == sorted(by_eta)
    assert len(set(by_eta)) == 4
    beside = after_gaussians((3.0,))(USERS, 2.0, 50)
    assert selection_epsilon([beside], POISSON, DELTA) > price
    # Many runs that are all published cost more than the best of as many.
    assert compose_epsilon([repeated(PLAN, 10)], DELTA, "rdp") > price
    runs = compose_epsilon([repeated(beside, 10)], DELTA, "rdp")
    assert runs == pytest.approx(compose_epsilon([beside] * 10, DELTA, "rdp"))


def test_a_grid_of_several_plans_costs_at_least_its_dearest() -> None:
    dear, cheap = sampled_gaussian(USERS, 1.5, 50), sampled_gaussian(USERS, 3.0, 50)
    for trials in (POISSON, GEOMETRIC):
        both = selection_epsilon([dear, cheap, dear], trials, DELTA)
        # Order by order, one is above the other: the dearer one decides.
        assert both == pytest.approx(selection_epsilon([dear], trials, DELTA), rel=1e-6)
    long = sampled_gaussian(USERS, 4.0, 400)
    mixed = selection_epsilon([dear, long], GEOMETRIC, DELTA)
    singles = [selection_epsilon([plan], GEOMETRIC, DELTA) for plan in (dear, long)]
    assert mixed >= max(singles) * (1 - 1e-9)
    # Where the curves cross between the theorem's orders, the grid costs more than any of it.
    events = (dp_event.LaplaceDpEvent(2.0), dp_event.GaussianDpEvent(3.0))
    flat, steep = (Composition(event, 1, "add-or-remove-one") for event in events)
    singles = [selection_epsilon([plan], POISSON, DELTA) for plan in (flat, steep)]
    assert selection_epsilon([flat, steep], POISSON, DELTA) > 1.1 * max(singles)


def test_replacing_one_is_accounted_as_such() -> None:
    users = Participation.named("fixed_size", 1000, 100)
    plan = sampled_gaussian(users, 4.0, 50)
    accountant = rdp.RdpAccountant(neighboring_relation=dp_replace())
    run = dp_event.SelfComposedDpEvent(plan.event, 50)
    accountant.compose(dp_event.RepeatAndSelectDpEvent(run, 10.0, 1.0))
    expected = accountant.get_epsilon(DELTA)
    assert selection_epsilon([plan], GEOMETRIC, DELTA) == pytest.approx(expected, rel=1e-9)


def dp_replace() -> Any:
    from dp_accounting.privacy_accountant import NeighboringRelation

    return NeighboringRelation.REPLACE_ONE


def test_no_noise_no_rounds() -> None:
    assert math.isinf(selection_epsilon([sampled_gaussian(USERS, 0.0, 5)], POISSON, DELTA))
    nothing = sampled_gaussian(USERS, 1.0, 0)
    assert selection_epsilon([nothing], POISSON, DELTA) == 0.0
    for trials in (POISSON, Trials.named(TNB, mean=10, eta=-0.5)):
        # Of a grid, the point without a bound, or the one that releases something, decides.
        for bare in (0.0, 1e-4):
            noiseless = sampled_gaussian(USERS, bare, 50)
            assert math.isinf(selection_epsilon([PLAN, noiseless], trials, DELTA))
        priced = selection_epsilon([PLAN], trials, DELTA)
        assert selection_epsilon([nothing, PLAN], trials, DELTA) >= priced * (1 - 1e-9)


def test_calibration_round_trips() -> None:
    for trials in (POISSON, GEOMETRIC):
        noise = calibrate_selection(3.0, DELTA, USERS, 50, sampled_gaussian, trials)
        plans = [sampled_gaussian(USERS, noise * factor, 50) for factor in (1.0, 0.999)]
        assert selection_epsilon(plans[:1], trials, DELTA) <= 3.0
        assert selection_epsilon(plans[1:], trials, DELTA) > 3.0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("binomial", 3.0), "must be one of poisson"),
        (("poisson",), "give mean"),
        (("poisson", 0.5), "from 1 to"),
        (("poisson", math.nan), "from 1 to"),
        (("poisson", 3.0, 1.0), "it has none"),
        (("poisson", None, None, 0.5), "has no gamma"),
        (("geometric", 3.0, None, 0.5), "not both"),
        (("geometric", None, None, 0.0), "gamma is 0.0"),
        ((TNB, 3.0), "must be set, to a number above -1"),
        ((TNB, 3.0, -1.0), "must be above -1"),
        (("geometric", None, None, 1e-7), "mean of at most"),
    ],
)
def test_a_wrong_distribution_is_refused(arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises(PrivacyError, match=words):
        Trials.named(*arguments)


def test_gamma_is_never_above_that_of_the_mean() -> None:
    for eta in (-0.5, 0.0, 0.5, 2.0):
        gamma = Trials.named(TNB, mean=7, eta=eta).gamma
        assert gamma is not None
        assert mean_of(gamma, eta) >= 7.0
    certain = Trials.named("geometric", gamma=1.0)
    assert (certain.mean, certain.probability_of_one) == (1.0, 1.0)


def test_what_cannot_be_accounted_is_refused() -> None:
    laplace = dp_event.PoissonSampledDpEvent(0.1, dp_event.LaplaceDpEvent(5.0))
    with pytest.raises(PlanError, match="selection is accounted by rdp alone"):
        selection_epsilon([Composition(laplace, 5, "add-or-remove-one")], POISSON, DELTA)
    fixed = sampled_gaussian(Participation.named("fixed_size", 1000, 100), 2.0, 50)
    with pytest.raises(PlanError, match="different adjacencies"):
        selection_epsilon([PLAN, fixed], POISSON, DELTA)
    with pytest.raises(PrivacyError, match="at least one trial"):
        selection_epsilon([], POISSON, DELTA)
    for delta in (0.0, 1.0):
        with pytest.raises(PrivacyError, match="delta is"):
            selection_epsilon([PLAN], POISSON, delta)


def test_a_record_reads_back() -> None:
    for trials in (POISSON, GEOMETRIC, Trials.named(TNB, gamma=0.2, eta=-0.5)):
        again = Trials.from_json_dict(trials.to_json_dict())
        assert again.mean == pytest.approx(trials.mean, rel=1e-12)
        assert (again.eta, again.gamma) == (trials.eta, trials.gamma)
