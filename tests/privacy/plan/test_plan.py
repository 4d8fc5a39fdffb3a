"""The privacy plan: what it refuses, what it accounts, when it stops."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from privacy.aggregate import Aggregate
from privacy.errors import BudgetExceededError, PlanError, PrivacyError
from privacy.mechanism import Mechanism, NoiseScale
from privacy.mechanisms import adaptive_gaussian, gaussian, none, tree_aggregation
from privacy.mechanisms.gaussian import Gaussian
from privacy.plan.budget import Budget
from privacy.plan.plan import PlanRequest, PrivacyPlan, make_plan
from privacy.schemes.poisson import Poisson
from tests.privacy.scheme_settings import with_scheme


def build_gaussian(noise: NoiseScale) -> Mechanism:
    return gaussian.build(gaussian.Options(clip_norm=0.5), noise)


def build_adaptive(noise: NoiseScale) -> Mechanism:
    options = adaptive_gaussian.Options(clip_norm=0.1, quantile=0.1)
    return adaptive_gaussian.build(options, noise)


def build_none(noise: NoiseScale) -> Mechanism:
    return none.build(none.Options(), noise)


def request(**changes: Any) -> PlanRequest:
    settings: dict[str, Any] = {
        "mechanism": "gaussian",
        "mechanism_build": build_gaussian,
        "scheme": "poisson",
        "population_size": 1000,
        "num_users": 1000,
        "hypothetical_population": False,
        "cohort_size": 20,
        "noise_cohort_size": 100,
        "num_rounds": 50,
        "weighting": "uniform",
        "epsilon": None,
        "noise_multiplier": 2.0,
        "delta": 1e-5,
        "accountant": "rdp",
        "uploads": ("update",),
        "batchnorm_layers": (),
        "num_parameters": 7,
    }
    return PlanRequest(**with_scheme({**settings, **changes}))


def flair(accountant: str, **changes: Any) -> PrivacyPlan:
    return make_plan(
        request(
            mechanism="adaptive_gaussian",
            mechanism_build=build_adaptive,
            population_size=41_131,
            num_users=41_131,
            cohort_size=200,
            noise_cohort_size=5000,
            num_rounds=5000,
            delta=None,
            accountant=accountant,
            **changes,
        )
    )


@pytest.mark.parametrize(
    ("accountant", "simulated", "actual"),
    [
        ("rdp", 2.0, 4.324),
        ("pld", 1.841, 3.773),
    ],
)
def test_flair_has_two_epsilons(accountant: str, simulated: float, actual: float) -> None:
    """Origin: the project's facts, by dp-accounting 0.6.0."""
    statement = flair(accountant, noise_multiplier=18.668).statement(5000)
    assert statement.simulated.epsilon == pytest.approx(simulated, rel=0.002)
    assert statement.actual.epsilon == pytest.approx(actual, rel=0.002)
    assert statement.simulated.delta == pytest.approx(8.4026e-6, rel=1e-4)
    assert statement.simulated.noise_multiplier == 18.668
    assert statement.actual.noise_multiplier == pytest.approx(18.668 * 200 / 5000)
    assert statement.count_noise_stddev == 250.0
    assert statement.update_noise_multiplier == pytest.approx(
        (18.668**-2 - 500.0**-2) ** -0.5, rel=1e-9
    )
    assert statement.noise_multiplier == 18.668


def test_epsilon_alone_calibrates_the_simulated_deployment() -> None:
    plan = flair("rdp", epsilon=2.0, noise_multiplier=None)
    assert plan.noise.noise_multiplier == pytest.approx(18.668, rel=0.001)
    assert plan.max_rounds == 5000
    plan.check_round(5000)
    with pytest.raises(BudgetExceededError, match="budget of 2"):
        plan.check_round(5002)
    statement = plan.statement(5000)
    assert 1.99 < statement.simulated.epsilon <= 2.0 < statement.actual.epsilon
    assert statement.budget_epsilon == 2.0


def test_noise_alone_sets_no_budget() -> None:
    plan = make_plan(request())
    assert plan.max_rounds is None
    assert plan.planned_rounds == 50
    assert request(accountant="pld").budget == Budget(None, 2.0, 1e-5, "pld")
    plan.check_round(10**9)
    assert plan.statement(50).budget_epsilon is None
    assert plan.statement(50, "planned").status == "planned"
    done = plan.statement(9)
    assert done.simulated.epsilon == plan.simulated.epsilon(9) < plan.simulated.epsilon(50)
    assert done.actual.epsilon == plan.actual.epsilon(9) < plan.actual.epsilon(50)


def test_both_stop_before_the_budget_is_exceeded() -> None:
    plan = make_plan(request(epsilon=3.0, noise_multiplier=1.0, num_rounds=10_000))
    last = plan.max_rounds
    assert last is not None
    assert 1 < last < 10_000
    plan.check_round(1)
    plan.check_round(last)
    assert plan.planned_rounds == last
    assert plan.simulated.epsilon(last) <= 3.0 < plan.simulated.epsilon(last + 1)
    reached = f"simulated epsilon to {plan.simulated.epsilon(last + 1):.6g}, .*"
    with pytest.raises(BudgetExceededError, match=reached + f"stop after round {last}"):
        plan.check_round(last + 1)


def test_a_round_beyond_the_plan_but_within_the_budget_is_allowed() -> None:
    plan = make_plan(request(epsilon=50.0, noise_multiplier=2.0))
    assert plan.max_rounds == 50
    plan.check_round(51)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weighting": "examples"}, "weighting: uniform"),
        ({"noise_cohort_size": 1001}, "lower noise_cohort_size"),
        ({"cohort_size": 1001}, "more than the 1000 users in the data"),
        ({"population_size": 10**7}, "hypothetical_population: true"),
        ({"population_size": 999}, "hypothetical_population: true"),
        ({"scheme": "fixed_size", "accountant": "prv"}, "use the accountant rdp or pld"),
        ({"noise_multiplier": None}, "neither epsilon nor noise_multiplier"),
        ({"batchnorm_layers": ("layer1.bn1", "bn2")}, r"layer1\.bn1, bn2.*GroupNorm"),
        ({"uploads": ("update", "control_variate")}, "control_variate"),
        ({"uploads": ()}, "only 'update' is clipped"),
        (
            {"mechanism_build": build_adaptive, "noise_multiplier": 10.0},
            r"count_noise_stddev=10 \(it must be above 5",
        ),
        ({"scheme": "full"}, "set cohort_size to 1000"),
        (
            {"scheme": "full", "cohort_size": 1000, "noise_cohort_size": 500},
            "simulated cohort is its whole population",
        ),
        (
            {"mechanism_build": lambda noise: Gaussian(math.inf, noise)},
            "set a finite clip_norm",
        ),
        ({"epsilon": 0.01, "noise_multiplier": 0.5}, "not even one round"),
        ({"epsilon": 1.0, "noise_multiplier": 0.0}, "not even one round"),
        ({"mechanism": "none", "mechanism_build": build_none}, "noise_multiplier is set"),
        (
            {"mechanism": "none", "mechanism_build": build_none, "epsilon": 2.0},
            "epsilon is set with the mechanism none",
        ),
        (
            {
                "mechanism": "none",
                "mechanism_build": build_none,
                "noise_multiplier": None,
                "num_canaries": 1,
            },
            "remove privacy.audit",
        ),
    ],
)
def test_refusals_say_why_and_what_to_do(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        make_plan(request(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weighting": "sqrt"}, "weighting"),
        ({"scheme": "roulette"}, "scheme"),
        ({"accountant": "moments"}, "accountant"),
        ({"delta": 0.0}, "delta"),
        ({"epsilon": -1.0, "noise_multiplier": None}, "epsilon"),
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"num_rounds": 0}, "num_rounds"),
        ({"cohort_size": 0}, "cohort_size"),
        ({"noise_cohort_size": 0}, "noise_cohort_size"),
        ({"population_size": 0}, "population_size"),
        ({"num_parameters": 0}, "num_parameters"),
    ],
)
def test_numbers_out_of_range(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PrivacyError, match=message):
        make_plan(request(**changes))


def test_an_accountant_that_a_scheme_does_not_name_is_refused_with_and_without_a_budget() -> None:
    class Loose(Poisson):
        """Its event bounds Renyi divergences alone."""

        accountants = ("rdp",)

    make_plan(replace(request(), scheme=Loose()))
    for budget in ({}, {"epsilon": 2.0}, {"epsilon": 2.0, "noise_multiplier": None}):
        for accountant in ("pld", "prv"):
            with pytest.raises(PlanError, match=r"does not know Poisson.*use the accountant rdp"):
                make_plan(replace(request(accountant=accountant, **budget), scheme=Loose()))


def test_a_hypothetical_population_is_stated() -> None:
    plan = make_plan(request(population_size=10**6, hypothetical_population=True, delta=None))
    assert plan.simulated.delta == pytest.approx(1e6**-1.1)
    assert plan.actual.delta == pytest.approx(1e3**-1.1)
    assert plan.simulated.participation.sampling_probability == pytest.approx(1e-4)
    assert plan.actual.participation.sampling_probability == pytest.approx(0.02)
    notes = " ".join(plan.statement(1).notes)
    assert "1000000 users is hypothetical: the data have 1000" in notes
    assert "cohort of 100 is simulated with cohorts of 20: it is scaled by 0.2" in notes
    larger = make_plan(request(cohort_size=200)).statement(1)
    assert "cohorts of 200: it is scaled by 2," in " ".join(larger.notes)
    # A smaller one needs no larger cohort than is drawn; an equal one is not hypothetical.
    smaller = {"population_size": 500, "hypothetical_population": True, "noise_cohort_size": None}
    assert make_plan(request(**smaller)).simulated.participation.cohort_size == 20
    equal = make_plan(request(hypothetical_population=True)).statement(1)
    assert "hypothetical" not in " ".join(equal.notes)


def test_without_noise_cohort_both_settings_agree() -> None:
    plan = make_plan(request(noise_cohort_size=None))
    assert plan.simulated.accounted(3) == plan.actual.accounted(3)
    assert plan.noise.ratio == 1.0


def test_full_participation() -> None:
    plan = make_plan(
        request(scheme="full", cohort_size=1000, noise_cohort_size=None, noise_multiplier=5.0)
    )
    assert plan.simulated.participation.sampling_probability == 1.0
    assert any("every round" in note for note in plan.statement(1).notes)


def test_fixed_size_with_a_simulated_cohort_has_its_own_event() -> None:
    plan = make_plan(request(scheme="fixed_size"))
    assert plan.simulated.adjacency == plan.actual.adjacency == "replace-one"
    settings = (plan.simulated, plan.actual)
    events = [setting.composed(setting.noise_multiplier, 1).event for setting in settings]
    assert [event.sample_size for event in events] == [100, 20]
    assert [event.event.noise_multiplier for event in events] == pytest.approx([1.0, 0.2])
    assert any("replace-one" in note for note in plan.statement(1).notes)


def test_without_noise_epsilon_is_infinite_and_said() -> None:
    statement = make_plan(request(noise_multiplier=0.0)).statement(3)
    assert statement.simulated.epsilon == statement.actual.epsilon == math.inf
    assert any("no guarantee" in note for note in statement.notes)


@pytest.mark.parametrize(
    ("population", "users", "delta", "largest"),
    [(1000, 1000, 1.01e-3, 1000), (10**6, 1000, 1e-4, 10**6), (1000, 2000, 7e-4, 2000)],
)
def test_a_delta_must_be_small_for_the_data_and_the_deployment(
    population: int, users: int, delta: float, largest: int
) -> None:
    changes = {"population_size": population, "hypothetical_population": population != users}
    make_plan(request(**changes, num_users=users, delta=0.99 / largest))
    with pytest.raises(PlanError, match=f"must not be above 1/{largest} .* Lower delta"):
        make_plan(request(**changes, num_users=users, delta=delta))
    # As published rows have it.
    plan = make_plan(request(**changes, num_users=users, delta=1.0 / largest))
    large = [one for one in plan.statement(1).notes if "is not below one over" in one]
    at_the_end = {"simulated": population, "actual": users}
    labels = [name for name, number in at_the_end.items() if number == largest]
    assert [note.split()[1] for note in large] == labels


def test_all_that_the_number_of_users_does_not_allow_is_refused_at_once() -> None:
    with pytest.raises(PlanError) as refused:
        make_plan(request(num_users=30, cohort_size=31, delta=0.1))
    cohort, population, noise_cohort, delta = str(refused.value).splitlines()
    assert cohort.startswith("cohort_size 31 is more than the 30 users")
    assert population.startswith("population_size is 1000, but the data have 30 users")
    assert noise_cohort.endswith(
        "the data's population is 30: the sampling probability would exceed "
        "1; lower noise_cohort_size"
    )
    assert delta.startswith("delta is 0.1, but must not be above 1/30 (0.0333)")


def test_no_privacy_is_one_more_plan() -> None:
    plan = make_plan(
        request(
            mechanism="none",
            mechanism_build=build_none,
            noise_multiplier=None,
            weighting="examples",
            batchnorm_layers=("bn1",),
            uploads=("update", "control_variate"),
        )
    )
    statement = plan.statement(10)
    assert statement.unit == statement.adjacency == statement.accountant == "none"
    assert statement.simulated.epsilon == statement.actual.epsilon == math.inf
    plan.check_round(10**6)


def test_an_epsilon_that_prv_cannot_state_is_refused_before_the_run() -> None:
    with pytest.raises(PlanError, match="the actual epsilon could not be stated"):
        make_plan(
            request(
                accountant="prv",
                cohort_size=20,
                noise_cohort_size=1000,
                noise_multiplier=3.0,
                num_rounds=1000,
            )
        )


@pytest.mark.parametrize("build", [build_gaussian, build_adaptive])
def test_ledger_entries_hold_what_an_audit_needs(build: Any) -> None:
    plan = make_plan(request(mechanism_build=build))
    aggregate = Aggregate.zeros(7)
    plan.mechanism.accumulate(aggregate, torch.ones(7), 1.0)
    plan.mechanism.accumulate(aggregate, torch.full((7,), math.nan), 1.0)
    release = plan.mechanism.release(aggregate, np.random.default_rng(0))
    entry = json.loads(
        json.dumps(plan.ledger_entry(3, [5, 5], release, aggregate), allow_nan=False)
    )
    assert (entry["round"], entry["denominator"]) == (3, 20.0)
    assert entry["simulated"] == {
        "population_size": 1000,
        "cohort_size": 100,
        "sampling_probability": 0.1,
        "noise_multiplier": 2.0,
        "delta": plan.simulated.delta,
    }
    assert len(entry["release_sha256"]) == 64
    assert entry["actual"]["noise_multiplier"] == pytest.approx(0.4)
    assert (entry["realised_cohort"], entry["distinct_users"]) == (2, 1)
    assert entry["largest_clipped_norm"] <= entry["clip_norm"]
    assert entry["update_noise_stddev"] == pytest.approx(
        plan.mechanism.update_noise_multiplier * 0.2 * entry["clip_norm"]
    )
    assert (entry["realised_cohort"], entry["num_contributions"], entry["num_nonfinite"]) == (
        2,
        1,
        1,
    )


def test_cyclic_sampling_composes_the_rounds_that_one_user_can_be_in() -> None:
    plan = make_plan(request(scheme="cyclic_poisson", separation=7, num_rounds=50))
    composed = plan.simulated.composed(3.0, 50)
    assert composed.event.event.noise_multiplier == 3.0
    assert composed.count == 8
    # The noise of some mechanisms is fitted to the rounds and the separation.
    assert plan.noise == NoiseScale(2.0, 20, 100, num_rounds=50, separation=7)
    assert composed.event.sampling_probability == pytest.approx(0.7)
    assert plan.actual.participation.sampling_probability == pytest.approx(0.14)
    statement = plan.statement(50)
    assert statement.simulated.separation == 7
    assert statement.simulated.sampling_probability == pytest.approx(0.7)
    assert any("7 groups" in note for note in statement.notes)
    entry = plan.ledger_constants()
    assert (entry["sampling"], entry["separation"]) == ("cyclic_poisson", 7)
    assert entry["simulated"]["sampling_probability"] == pytest.approx(0.7)


def test_groups_larger_than_the_population_are_refused() -> None:
    with pytest.raises(PrivacyError, match=r"separation to 10 or less"):
        make_plan(request(scheme="cyclic_poisson", separation=11))
    with pytest.raises(PrivacyError, match="keeps no distance"):
        make_plan(request(separation=2))


def test_canaries_are_noted() -> None:
    notes = make_plan(request(num_canaries=30)).statement(1).notes
    assert any("30 canary clients" in note and "utility" in note for note in notes)


def test_artificial_users_and_plug_ins_are_noted() -> None:
    plain = " ".join(make_plan(request()).statement(1).notes)
    told = make_plan(request(artificial_users=True, plugins={"mine": "sha256:1"})).statement(1)
    for phrase in ("The users of these data are artificial", "at hand: mine (sha256:1)"):
        assert phrase in " ".join(told.notes)
        assert phrase not in plain


def test_step_canaries_are_refused_where_noise_is_correlated() -> None:
    options = tree_aggregation.Options(clip_norm=1.0)
    settings = {
        "mechanism": "tree_aggregation",
        "mechanism_build": lambda noise: tree_aggregation.build(options, noise),
        "scheme": "cyclic_poisson",
        "separation": 5,
    }
    make_plan(request(**settings))
    with pytest.raises(PlanError, match="one_run"):
        make_plan(request(**settings, fresh_noise_for="privacy.audit.kind worst_case"))
