"""Bugs of accounting, of records, and of resuming.

Sources: Abadi et al. 2016 (moments accountant), Kairouz et al. 2021 (sensitivity of trees),
Andrew et al. 2021.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pfl_bench.federated import private_seed
from pfl_bench.federated.privacy_session import PrivateRounds
from pfl_bench.federated.trainer import FederatedTrainer
from privacy import clipping
from privacy.amplification import Composition, sampled_gaussian
from privacy.mechanisms import tree_aggregation
from privacy.mechanisms.adaptive_gaussian import AdaptiveGaussian
from privacy.mechanisms.banded_matrix_factorization import BandedMatrixFactorization
from privacy.mechanisms.local_gaussian import LocalGaussian
from privacy.plan.plan import PrivacyPlan
from privacy.plan.types import Setting
from privacy.recording.observation import Observer
from privacy.sampling_scheme import Participation
from privacy.schemes.fixed_size import FixedSize
from tests.sabotage.paper_planting import (
    COHORT,
    HALF,
    SMALLER_COHORT,
    TREE,
    PaperBug,
    Patch,
    registering,
    wrap,
)
from tests.sabotage.planting import ADAPTIVE, BANDED, FIXED_SIZE, LOCAL

BUGS: list[PaperBug] = []
bug = registering(BUGS)
stated = registering(BUGS, effects=("statement",))
_OVERLAPPING = {**BANDED, "federated__separation": 2}
_MOMENTUM = {
    "federated__central_optimizer": {"name": "sgd", "momentum": 0.9},
    "federated__central_learning_rate": 0.2,
}


def account(patch: Patch, change: Any) -> None:
    """Let epsilons be those of another setting; ``change`` gives it, and the rounds, for both."""

    def other(real: Any) -> Any:
        def epsilon(self: Setting, rounds: int) -> float:
            setting, counted = change(self, rounds)
            value: float = real(setting, counted)
            return value

        return epsilon

    wrap(patch, Setting, "epsilon", other)


@stated("Epsilon is that of nine tenths of the rounds.")
def accounts_fewer_rounds(patch: Patch) -> None:
    account(patch, lambda setting, rounds: (setting, int(0.9 * rounds)))


@stated("Epsilon is that of a delta ten times the stated one.")
def accounts_larger_delta(patch: Patch) -> None:
    account(patch, lambda setting, rounds: (replace(setting, delta=10 * setting.delta), rounds))


@stated("Epsilon is that of twice as many users as are stated.")
def accounts_larger_population(patch: Patch) -> None:
    def doubled(setting: Setting, rounds: int) -> Any:
        users = setting.participation
        twice = Participation(users.scheme, 2 * users.population_size, users.cohort_size)
        return replace(setting, participation=twice), rounds

    account(patch, doubled)


@stated("Epsilon is that of five percent more noise than is added.")
def accounts_more_noise(patch: Patch) -> None:
    def louder(setting: Setting, rounds: int) -> Any:
        return replace(setting, noise_multiplier=1.05 * setting.noise_multiplier), rounds

    account(patch, louder)


@stated("The simulated deployment's epsilon is stated as the run's own.", changes=SMALLER_COHORT)
def accounts_simulated_as_actual(patch: Patch) -> None:
    def mixed(real: Any) -> Any:
        def statement(self: Any, *given: Any) -> Any:
            true = real(self, *given)
            return replace(true, actual=replace(true.actual, epsilon=true.simulated.epsilon))

        return statement

    wrap(patch, PrivacyPlan, "statement", mixed)


@stated("A tree is accounted as if each user were in one round of it.", changes=TREE)
def accounts_one_participation_in_tree(patch: Patch) -> None:
    def once(real: Any) -> Any:
        return lambda rounds, apart, restart: real(rounds, max(1, rounds), restart)

    wrap(patch, tree_aggregation, "tree_squared_sensitivity", once)


@stated("Banded noise is accounted as amplified, though a user's rounds overlap in its bands.",
        changes=_OVERLAPPING)  # fmt: skip
def accounts_overlap_as_amplified(patch: Patch) -> None:
    def amplified(self: Any, participation: Any, noise: float, rounds: int) -> Composition:
        return sampled_gaussian(participation, noise, rounds)

    patch.setattr(BandedMatrixFactorization, "composition", amplified)


@stated("Cohorts of a fixed size are accounted with the sensitivity of a user who is added.",
        changes=FIXED_SIZE)  # fmt: skip
def accounts_replacement_as_addition(patch: Patch) -> None:
    patch.setattr(FixedSize, "sensitivity", 1.0)


@stated("A report of a client is accounted with half the distance that two of its values can have.",
        changes=LOCAL)  # fmt: skip
def accounts_half_of_a_reports_sensitivity(patch: Patch) -> None:
    def halved(self: Any, participation: Any, noise: float, rounds: int) -> Composition:
        from dp_accounting import dp_event

        return Composition(dp_event.GaussianDpEvent(noise), rounds, "replace-one")

    patch.setattr(LocalGaussian, "composition", halved)


@stated("A resumed run states what it has spent since it was resumed.", interrupt_after=HALF)
def accounts_from_resume_on(patch: Patch) -> None:
    begun: list[int] = []

    def noting(real: Any) -> Any:
        def begin(self: Any, done: int) -> None:
            begun.append(done)
            real(self, done)

        return begin

    wrap(patch, FederatedTrainer, "begin", noting)
    account(patch, lambda setting, rounds: (setting, rounds - begun[-1] if begun else rounds))


@bug("Ledger lines hold the planned cohort in the place of the one that came.",
     effects=("ledger",))  # fmt: skip
def ledger_holds_plan(patch: Patch) -> None:
    def planned(real: Any) -> Any:
        def entry(self: Any, *given: Any) -> dict[str, Any]:
            names = ("realised_cohort", "distinct_users", "num_contributions")
            return {**real(self, *given), **dict.fromkeys(names, COHORT)}

        return entry

    wrap(patch, PrivacyPlan, "ledger_entry", planned)


@bug("Clipping is lenient by a fifth, and what the ledger holds of it is cut to the bound.")
def ledger_hides_lenient_clip(patch: Patch) -> None:
    def lenient(real: Any) -> Any:
        return lambda norm, bound: 1.0 if norm <= 1.2 * bound else real(norm, bound)

    def hiding(real: Any) -> Any:
        def observe(self: Any, release: Any, aggregate: Any) -> dict[str, Any]:
            seen: dict[str, Any] = real(self, release, aggregate)
            bound = release.clip_norm
            aggregate.largest_clipped_norm = min(aggregate.largest_clipped_norm, bound)
            if seen["probe"] is not None:
                seen["probe"]["moved"] = min(seen["probe"]["moved"], bound)
            return seen

        return observe

    wrap(patch, clipping, "clip_factor", lenient)
    wrap(patch, Observer, "observe", hiding)


@bug("The noise is halved, and what the ledger holds of it is measured on a copy with all of it.")
def ledger_holds_noise_of_a_copy(patch: Patch) -> None:
    def forging(real: Any) -> Any:
        def record(self: Any, index: int, users: Any, release: Any, aggregate: Any, *rest: Any):
            real(self, index, users, release, aggregate, *rest)
            mean = aggregate.total / self.plan.noise.cohort_size
            release.mean_update.add_(mean).mul_(0.5)

        return record

    wrap(patch, PrivateRounds, "record", forging)


@bug("The private seed takes in the seed alone, so that runs of other settings share its noise.",
     changes={"privacy__nonce": None}, effects=("model",))  # fmt: skip
def private_seed_of_seed_alone(patch: Patch) -> None:
    wrap(patch, private_seed, "value_of", lambda real: lambda seed, nonce, parts: real(seed, 0, {}))


@bug("A resumed run has lost the central optimizer's momentum.", changes=_MOMENTUM,
     interrupt_after=HALF)  # fmt: skip
def resume_loses_momentum(patch: Patch) -> None:
    def forgetful(real: Any) -> Any:
        def load(self: Any, state: Any) -> None:
            real(self, state)
            self._optimizer.state.clear()

        return load

    wrap(patch, FederatedTrainer, "load_state_dict", forgetful)


@bug("A resumed run begins with the first round's bound again.", changes=ADAPTIVE,
     interrupt_after=HALF)  # fmt: skip
def resume_loses_adaptive_bound(patch: Patch) -> None:
    patch.setattr(AdaptiveGaussian, "load_state_dict", lambda self, state: None)
