"""Planted bugs of the accounting: the numbers are of another algorithm than the one that runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dp_accounting import dp_event

from pfl_bench.federated import privacy_session as private_rounds
from pfl_bench.federated import trainer as federated
from privacy import accountant
from privacy.amplification import Composition, Participation, sampled_gaussian
from privacy.mechanisms import adaptive_gaussian
from privacy.mechanisms.banded_matrix_factorization import BandedMatrixFactorization
from privacy.mechanisms.local_gaussian import LocalGaussian
from privacy.mechanisms.tree_aggregation import TreeAggregation
from privacy.noise import clipped_sum
from privacy.plan import budget
from privacy.plan import checks as plan_checks
from privacy.plan.plan import PlanRequest, PrivacyPlan, Setting
from tests.sabotage.planting import (
    ADAPTIVE,
    BANDED,
    COHORT,
    FIXED_SIZE,
    LAPLACE,
    LOCAL,
    ROUNDS,
    SMALLER_COHORT,
    TREE,
    USERS,
    Bug,
    Patch,
    Plant,
)

CALIBRATED = {"privacy__epsilon": 4.0, "privacy__noise_multiplier": None}
BOTH = ("epsilon_simulated", "epsilon_actual")
REFEREES = ("referee_simulated", "referee_actual")


def unpaid_quantile(patch: Patch) -> None:
    patch.setattr(adaptive_gaussian, "split_noise", lambda z, count_noise_stddev: z)


def counting_rounds(count: Callable[[int], int]) -> Plant:
    """Calibrate to, and state, other rounds than are run."""

    def plant(patch: Patch) -> None:
        calibrate, epsilon = budget.calibrate_noise_multiplier, Setting.epsilon

        def calibrated(*arguments: Any) -> float:
            *before, rounds, accountant, composition = arguments
            return calibrate(*before, count(rounds), accountant, composition)

        patch.setattr(budget, "calibrate_noise_multiplier", calibrated)
        patch.setattr(
            Setting, "epsilon", lambda self, rounds, *more: epsilon(self, count(rounds), *more)
        )

    return plant


def planning(change: Callable[[PlanRequest], PlanRequest]) -> Plant:
    """Plan another request than the configuration's."""
    real = private_rounds.make_plan
    return lambda patch: patch.setattr(
        private_rounds, "make_plan", lambda request: real(change(request))
    )


def ten_million(request: PlanRequest) -> PlanRequest:
    return replace(request, population_size=10_000_000, num_users=10_000_000)


def forget_populations(patch: Patch) -> None:
    for module in (plan_checks, private_rounds):
        patch.setattr(module, "check_users", lambda request: None)


def sensitivity_of_one(patch: Patch) -> None:
    def wrong(participation: Participation, noise_multiplier: float, rounds: int) -> Composition:
        right = sampled_gaussian(participation, noise_multiplier, rounds)
        event = replace_event(right.event, dp_event.GaussianDpEvent(noise_multiplier))
        return replace(right, event=event)

    patch.setattr(clipped_sum, "sampled_gaussian", wrong)


def replace_event(sampled: Any, event: Any) -> Any:
    return dp_event.SampledWithoutReplacementDpEvent(
        sampled.source_dataset_size, sampled.sample_size, event
    )


def deployment_s_noise(patch: Patch) -> None:
    real = private_rounds.make_plan

    def wrong(request: PlanRequest) -> PrivacyPlan:
        made = real(request)
        multiplier = made.simulated.noise_multiplier
        return replace(made, actual=replace(made.actual, noise_multiplier=multiplier))

    patch.setattr(private_rounds, "make_plan", wrong)


def no_stop(patch: Patch) -> None:
    patch.setattr(PrivacyPlan, "check_round", lambda self, round_number: None)


def composing(mechanism: type, compose: Callable[..., Composition]) -> Plant:
    """Plant another composition into a mechanism; ``compose`` is given the real one first."""

    def plant(patch: Patch) -> None:
        real = mechanism.composition
        patch.setattr(mechanism, "composition", lambda *arguments: compose(real, *arguments))

    return plant


def amplified(real: Any, self: Any, *setting: Any) -> Composition:
    return sampled_gaussian(*setting)


def of_one_tree(real: Any, self: Any, participation: Any, noise: float, rounds: int) -> Composition:
    first: Composition = real(self, participation, noise, min(rounds, ROUNDS // 3))
    return first


def forget_earlier_rounds(patch: Patch) -> None:
    """The rounds before a resume are not counted, as by an accountant that is not saved."""
    trainer = federated.FederatedTrainer
    begin, statement = trainer.begin, trainer.statement
    begun: dict[int, int] = {}

    def remember(self: Any, done: int) -> None:
        begun[id(self)] = done
        begin(self, done)

    def state(self: Any, done: int | None) -> Any:
        return statement(self, None if done is None else done - begun[id(self)])

    patch.setattr(trainer, "begin", remember)
    patch.setattr(trainer, "statement", state)


def too_low(patch: Patch) -> None:
    """Every accountant comes out a fifth too low, in runs and audits alike."""
    real = accountant._epsilon
    patch.setattr(accountant, "_epsilon", lambda *arguments: 0.8 * real(*arguments))


def half_the_rate(patch: Patch) -> None:
    def wrong(participation: Participation, noise_multiplier: float, rounds: int) -> Composition:
        right = sampled_gaussian(participation, noise_multiplier, rounds)
        rate = right.event.sampling_probability / 2.0
        return replace(right, event=dp_event.PoissonSampledDpEvent(rate, right.event.event))

    patch.setattr(clipped_sum, "sampled_gaussian", wrong)


def accountants_too_low(name: str, changes: dict[str, Any], delta: float) -> Bug:
    """A fault that stays for the audit; epsilons are remembered by delta, so each has its own."""
    return Bug(
        name,
        "an accountant that is a fifth too low, in the run and in the audit alike",
        f"`accountant._epsilon` times 0.8, {', '.join(map(str, changes.values())) or 'rdp'}",
        expects=REFEREES,
        around=too_low,
        changes={**changes, "privacy__delta": delta},
    )


ACCOUNTING_BUGS = (
    Bug(
        "quantile_unpaid",
        "the update's noise accounted as the total: the quantile query is unpaid",
        "`split_noise` gives z itself",
        expects=("noise_multiplier",),
        plant=unpaid_quantile,
        changes=ADAPTIVE,
    ),
    Bug(
        "rounds_as_epochs",
        "rounds counted as epochs: more noise than needed, and an epsilon of rounds never run",
        "`calibrate_noise_multiplier` and `Setting.epsilon` count N / C times the rounds",
        expects=BOTH,
        plant=counting_rounds(lambda rounds: rounds * USERS // COHORT),
        changes=CALIBRATED,
    ),
    Bug(
        "epochs_as_rounds",
        "epochs counted as rounds: too little noise",
        "`calibrate_noise_multiplier` and `Setting.epsilon` count C / N times the rounds",
        expects=(*BOTH, "budget"),
        plant=counting_rounds(lambda rounds: max(1, rounds * COHORT // USERS)),
        changes=CALIBRATED,
    ),
    Bug(
        "population_configured",
        "a population that the data do not have, undeclared",
        "configured: `privacy.population_size: 3000`",
        words="declare hypothetical_population",
        changes={"privacy__population_size": 3_000},
    ),
    Bug(
        "population_unplanned",
        "the same, the plan's check forgotten",
        "`plan_checks.check_users` does nothing",
        expects=("population",),
        plant=forget_populations,
        changes={"privacy__population_size": 3_000},
    ),
    Bug(
        "population_built_in",
        "a population of ten million, whatever is configured",
        "`make_plan` is asked for it",
        expects=("population",),
        plant=planning(ten_million),
    ),
    Bug(
        "delta_too_large",
        "a delta above one over the population, the plan's check forgotten",
        "`plan_checks.delta_refusal` refuses none; configured: `privacy.delta: 0.01`",
        expects=("delta",),
        plant=lambda patch: patch.setattr(plan_checks, "delta_refusal", lambda *asked: ""),
        changes={"privacy__delta": 0.01},
    ),
    Bug(
        "replacement_as_addition",
        "fixed-size cohorts accounted with the sensitivity of adding a user",
        "`sampled_gaussian` with z for z / 2",
        expects=BOTH,
        plant=sensitivity_of_one,
        changes=FIXED_SIZE,
    ),
    Bug(
        "deployment_s_noise",
        "the run's own epsilon with the deployment's noise multiplier",
        "`make_plan` leaves out C_sm / C_lg",
        expects=("configuration", "noise_multiplier"),
        plant=deployment_s_noise,
        changes=SMALLER_COHORT,
    ),
    Bug(
        "budget_not_kept",
        "rounds go on beyond the budget",
        "`PrivacyPlan.check_round` does nothing",
        expects=("budget",),
        plant=no_stop,
        changes={"privacy__epsilon": 2.0},
    ),
    Bug(
        "rounds_before_resume",
        "a resumed run forgets the rounds before in what it states",
        "`FederatedTrainer.statement` counts from the resume",
        expects=("rounds", *BOTH),
        plant=forget_earlier_rounds,
        interrupt_after=ROUNDS // 2,
    ),
    Bug(
        "local_amplified",
        "local noise accounted as if the server did not see who sends",
        "`LocalGaussian.composition` is sampled",
        expects=BOTH,
        plant=composing(LocalGaussian, amplified),
        changes=LOCAL,
    ),
    Bug(
        "bands_amplified",
        "four bands at a separation of two, accounted as amplified",
        "`BandedMatrixFactorization.composition` is sampled",
        expects=BOTH,
        plant=composing(BandedMatrixFactorization, amplified),
        changes={**BANDED, "federated__separation": 2, "privacy__noise_multiplier": 4.0},
    ),
    Bug(
        "one_tree_of_three",
        "tree aggregation: only the first of three trees is paid for",
        "`TreeAggregation.composition` of a tree's rounds",
        expects=BOTH,
        plant=composing(TreeAggregation, of_one_tree),
        changes=TREE,
    ),
    accountants_too_low("rdp_too_low", {}, 0.00101),
    accountants_too_low("pld_too_low", {"privacy__accountant": "pld"}, 0.00102),
    accountants_too_low("prv_too_low", {"privacy__accountant": "prv"}, 0.00103),
    accountants_too_low("rdp_too_low_fixed_size", FIXED_SIZE, 0.00104),
    accountants_too_low(
        "pld_too_low_fixed_size", {**FIXED_SIZE, "privacy__accountant": "pld"}, 0.00107
    ),
    accountants_too_low("pld_too_low_laplace", LAPLACE, 0.00105),
    accountants_too_low("rdp_too_low_tree", TREE, 0.00106),
    Bug(
        "rate_halved_for_good",
        "the mechanism composes half the sampling probability, in the run and in the audit alike",
        "`sampled_gaussian` of the Gaussian mechanism",
        expects=(*BOTH, *REFEREES),
        around=half_the_rate,
    ),
)
