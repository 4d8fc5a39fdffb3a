"""The fifth list: bugs of bounds that adapt, of what is accounted, and of what is stated."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

from pfl_bench.federated import privacy_session, private_seed
from pfl_bench.federated.trainer import FederatedTrainer
from pfl_bench.runs import runner
from pfl_bench.trainers import central
from pfl_bench.types.trainer import Trainer
from privacy import calibration
from privacy.mechanisms import adaptive_gaussian, banded_matrix_factorization, tree_aggregation
from privacy.mechanisms.local_gaussian import LocalGaussian
from privacy.plan import budget, types
from privacy.plan.example_level import ExampleLevelPlan
from privacy.plan.plan import PrivacyPlan
from privacy.schemes.fixed_size import FixedSize
from privacy.schemes.poisson import Poisson
from tests.sabotage.fifth_planting import (
    ADAPTIVE,
    CENTRAL_DP,
    EPOCHS,
    PLD,
    REPORTS,
    RESTARTED_TREE,
    FifthBug,
    Patch,
    gaussian_with,
    mechanism,
)
from tests.sabotage.paper_planting import registering, wrap

BUGS: list[FifthBug] = []
bug = registering(BUGS, FifthBug)


@bug(
    "The bound moves by the count before noise, while the ledger has the noised one.",
    settings=ADAPTIVE,
    shared=True,
)
def bound_from_raw_count(patch: Patch) -> None:
    def releasing(real: Any) -> Any:
        def release(self: Any, aggregate: Any, rng: Any) -> Any:
            before = self._clip_norm
            released = real(self, aggregate, rng)
            fraction = aggregate.bit_sum / self._noise.cohort_size + 0.5
            self._clip_norm = math.exp(math.log(before) - 0.2 * (fraction - 0.3))
            return released

        return release

    wrap(patch, adaptive_gaussian.AdaptiveGaussian, "release", releasing)


@bug(
    "The update has all of the noise multiplier, although a noised count is released too.",
    settings=(
        *ADAPTIVE,
        mechanism("adaptive_gaussian", 0.5, quantile=0.3, count_noise_stddev=1.0),
    ),
    shared=True,
)
def count_not_paid(patch: Patch) -> None:
    patch.setattr(adaptive_gaussian, "split_noise", lambda multiplier, count_noise: multiplier)


@bug("After a resume the statement counts the rounds since then alone.", killed_after=8)
def statement_counts_since_resume(patch: Patch) -> None:
    resumed_at = [0]

    def beginning(real: Any) -> Any:
        def begin(self: Any, done: int) -> None:
            resumed_at[0] = done
            real(self, done)

        return begin

    def claiming(real: Any) -> Any:
        def claim(self: Any, done: int | None) -> Any:
            return real(self, done if done is None else done - resumed_at[0])

        return claim

    wrap(patch, FederatedTrainer, "begin", beginning)
    wrap(patch, FederatedTrainer, "claim", claiming)


@bug(
    "The accountant's sampling probability is half of the sampler's, in calibration and statement.",
    shared=True,
)
def q_too_small(patch: Patch) -> None:
    def sampled_event(self: Any, users: Any, event: Any) -> Any:
        from dp_accounting import dp_event

        return dp_event.PoissonSampledDpEvent(self.sampling_probability(users) / 2, event)

    patch.setattr(Poisson, "sampled_event", sampled_event)


@bug("Epsilon is computed at ten times the delta that is stated.", shared=True)
def delta_larger_than_said(patch: Patch) -> None:
    of_rounds, calibrate = types.epsilon_of_rounds, calibration.calibrate_noise_multiplier

    def epsilon_of_rounds(
        users: Any, multiplier: float, rounds: int, delta: float, *rest: Any, **more: Any
    ) -> Any:
        return of_rounds(users, multiplier, rounds, min(10 * delta, 0.5), *rest, **more)

    def calibrated(epsilon: float, delta: float, *rest: Any, **more: Any) -> Any:
        return calibrate(epsilon, 10 * delta, *rest, **more)

    patch.setattr(types, "epsilon_of_rounds", epsilon_of_rounds)
    patch.setattr(budget, "calibrate_noise_multiplier", calibrated)


@bug(
    "A fixed cohort size is accounted, under replacement, at a sensitivity of one bound, not two.",
    settings=gaussian_with("federated.sampling=fixed_size", PLD),
    shared=True,
)
def fixed_size_sensitivity_one(patch: Patch) -> None:
    patch.setattr(FixedSize, "sensitivity", 1.0)


@bug(
    "DP-SGD accounts epochs in place of steps.",
    config=CENTRAL_DP,
    settings=EPOCHS,
    shared=True,
)
def epochs_for_steps(patch: Patch) -> None:
    steps_of_epoch = [1]

    def planning(real: Any) -> Any:
        def make(request: Any) -> Any:
            steps_of_epoch[0] = request.steps // 4
            return replace(real(replace(request, steps=4)), max_steps=None)

        return make

    def stating(real: Any) -> Any:
        def statement(self: Any, steps: int, status: str = "final") -> Any:
            accounted = max(1, steps // steps_of_epoch[0]) if steps > 4 else steps
            return real(self, accounted, status)

        return statement

    wrap(patch, central, "make_example_level_plan", planning)
    wrap(patch, ExampleLevelPlan, "statement", stating)


@bug(
    "Rounds go on beyond the budget of epsilon.",
    settings=gaussian_with("privacy.epsilon=6.0", "privacy.noise_multiplier=1.0"),
)
def budget_not_kept(patch: Patch) -> None:
    patch.setattr(PrivacyPlan, "check_round", lambda self, index: None)


@bug(
    "Canaries are counted among the users: sampling probability and delta are too small.",
    settings=gaussian_with(
        "privacy.audit={kind: one_run, count: 100}", "privacy.population_size=training_users"
    ),
    shared=True,
)
def canaries_in_population(patch: Patch) -> None:
    def planning(real: Any) -> Any:
        def make(request: Any) -> Any:
            population = request.population_size + request.num_canaries
            users = request.num_users + request.num_canaries
            return real(replace(request, population_size=population, num_users=users))

        return make

    wrap(patch, privacy_session, "make_plan", planning)


@bug(
    "The population is counted in examples, not in users.",
    settings=gaussian_with("privacy.population_size=training_users"),
    shared=True,
)
def examples_as_users(patch: Patch) -> None:
    def planning(real: Any) -> Any:
        return lambda request: real(replace(request, population_size=1400, num_users=1400))

    wrap(patch, privacy_session, "make_plan", planning)


@bug(
    "The private seed leaves out the data: runs on neighbouring data share their noise.",
    shared=True,
)
def private_seed_without_data(patch: Patch) -> None:
    def deriving(real: Any) -> Any:
        return lambda resolved, checksum, *rest, **more: real(resolved, "", *rest, **more)

    wrap(patch, private_seed, "derive", deriving)


@bug(
    "A tree restarts every four rounds, and is accounted as if a user were in one tree only.",
    settings=RESTARTED_TREE,
    shared=True,
)
def tree_restart_not_paid(patch: Patch) -> None:
    def limiting(real: Any) -> Any:
        def squared(rounds: int, apart: int, restart: int | None = None) -> Any:
            return real(min(rounds, restart or rounds), apart, restart)

        return squared

    wrap(patch, tree_aggregation, "tree_squared_sensitivity", limiting)


@bug(
    "Banded noise is accounted as if each user took part once.",
    settings=(
        *ADAPTIVE,
        mechanism("banded_matrix_factorization", bands=4),
        "federated.sampling=cyclic_poisson",
        "federated.separation=2",
        "privacy.noise_cohort_size=60",
    ),
    shared=True,
)
def band_sensitivity_k_ignored(patch: Patch) -> None:
    def squared(column: Any, participation: Any, rounds: int) -> float:
        return float((column() ** 2).sum())

    patch.setattr(banded_matrix_factorization, "pattern_squared_sensitivity", squared)


@bug(
    "Clients' own reports are accounted as of users added or removed: z, where z / 2 holds.",
    settings=(*ADAPTIVE, mechanism("local_gaussian"), *REPORTS),
    shared=True,
)
def local_z_not_halved(patch: Patch) -> None:
    def doubling(real: Any) -> Any:
        return lambda self, users, multiplier, rounds: real(self, users, 2 * multiplier, rounds)

    wrap(patch, LocalGaussian, "composition", doubling)


@bug(
    "Epsilons in metrics.jsonl are those of half the rounds.",
    settings=gaussian_with("evaluation.every=2"),
)
def metrics_epsilon_low(patch: Patch) -> None:
    def halving(real: Any) -> Any:
        return lambda self, done: real(self, max(1, done // 2))

    wrap(patch, Trainer, "epsilons", halving)


@bug(
    "summary.json has the epsilon of the simulated cohort in the place of the run's own.",
    settings=ADAPTIVE,
)
def summary_states_simulated_for_actual(patch: Patch) -> None:
    def summarising(real: Any) -> Any:
        def summarise(self: Any, *arguments: Any) -> Any:
            summary = real(self, *arguments)
            if summary["privacy"]:
                summary["privacy"]["actual"] = dict(summary["privacy"]["simulated"])
            return summary

        return summarise

    wrap(patch, runner._Run, "_summarise", summarising)


@bug("privacy.json, and so report.html, has half of epsilon.")
def report_epsilon_halved(patch: Patch) -> None:
    def writing(real: Any) -> Any:
        def write_json(path: Any, value: Any) -> Any:
            if path.name == "privacy.json" and value.get("status") == "final":
                value = copy.deepcopy(value)
                for of in ("simulated", "actual"):
                    value[of]["epsilon"] /= 2
            return real(path, value)

        return write_json

    wrap(patch, runner, "write_json", writing)
