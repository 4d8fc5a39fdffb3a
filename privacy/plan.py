"""The privacy plan: sampling, clipping, weighting, noise and accounting, built as one.

Guarantee: unit user. A plan exists only if its accounting is true of what will run: every user
weighs the same, all that a client sends passes the clip, the sampler's scheme is the one that is
accounted, and the sum is divided by the configured cohort. ``check_round`` raises before a round
after which the simulated epsilon would exceed the budget.

Two settings are accounted: *simulated*, a deployment of ``population_size`` users of whom
``noise_cohort_size`` take part in a round, with multiplier z; and *actual*, this very run, of
``num_users`` users of whom ``cohort_size`` take part, with multiplier
``z * cohort_size / noise_cohort_size``.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from privacy.accountant import check_delta
from privacy.amplification import round_event
from privacy.calibration import calibrate_noise_multiplier, default_delta, max_rounds
from privacy.errors import BudgetExceededError, PlanError
from privacy.mechanism import Mechanism, NoiseScale
from privacy.plan_checks import check_not_private, check_private, check_sizes
from privacy.plan_types import PlanRequest, Setting
from privacy.statement import PrivacyStatement, Status, selection_note

if TYPE_CHECKING:
    from torch import Tensor

    from privacy.aggregate import Aggregate
    from privacy.mechanism import Release

__all__ = ["PlanRequest", "PrivacyPlan", "Setting", "make_plan"]


@dataclass(frozen=True, slots=True)
class PrivacyPlan:
    """A mechanism, and the accounting that is true of it.

    Attributes:
        request: What was asked for.
        mechanism: Clips, noises and releases.
        noise: Its multiplier and cohorts.
        simulated: The deployment that the noise stands for.
        actual: This very run.
        max_rounds: Rounds of ``num_rounds`` that the budget allows; None without a budget.
    """

    request: PlanRequest
    mechanism: Mechanism
    noise: NoiseScale
    simulated: Setting
    actual: Setting
    max_rounds: int | None

    def check_round(self, round_number: int) -> None:
        """Check, before a round is run, that the budget allows it.

        Args:
            round_number: Number of the coming round, from 1.

        Raises:
            BudgetExceededError: After it, the simulated epsilon would exceed the budget.
        """
        budget = self.request.epsilon
        if self.max_rounds is None or budget is None or round_number <= self.max_rounds:
            return
        epsilon = self.simulated.epsilon(round_number)
        if epsilon > budget:
            raise BudgetExceededError(
                f"round {round_number} would bring the simulated epsilon to {epsilon:.6g}, beyond "
                f"the budget of {budget:g}; stop after round {round_number - 1}, raise epsilon, or "
                "raise noise_multiplier"
            )

    @property
    def planned_rounds(self) -> int:
        """Rounds that the run will release at most: those planned, within the budget."""
        if self.max_rounds is None:
            return self.request.num_rounds
        return min(self.max_rounds, self.request.num_rounds)

    def statement(self, rounds: int, status: Status = "final") -> PrivacyStatement:
        """What the run guarantees after so many rounds.

        Args:
            rounds: Rounds that were released (status "final"), or will be at most ("planned").
            status: Whether the run has ended.
        """
        private = self.mechanism.is_private
        return PrivacyStatement(
            unit="user" if private else "none",
            adjacency=self.simulated.adjacency,
            mechanism=self.mechanism.name,
            accountant=self.simulated.accountant,
            rounds=rounds,
            status=status,
            num_parameters=self.request.num_parameters,
            clip=self.mechanism.clip_settings(),
            noise_multiplier=self.noise.noise_multiplier,
            update_noise_multiplier=self.mechanism.update_noise_multiplier,
            count_noise_stddev=self.mechanism.count_noise_stddev,
            simulated=self.simulated.accounted(rounds),
            actual=self.actual.accounted(rounds),
            budget_epsilon=self.request.epsilon,
            notes=_notes(self),
        )

    def ledger_constants(self) -> dict[str, Any]:
        """What is the same in every line of the run's ledger, JSON-serialisable."""

        def event(setting: Setting) -> dict[str, Any]:
            return {
                "population_size": setting.population_size,
                "cohort_size": setting.cohort_size,
                "noise_multiplier": setting.noise_multiplier,
                "delta": setting.delta,
            }

        return {
            "mechanism": self.mechanism.name,
            "sampling": self.simulated.scheme,
            "adjacency": self.simulated.adjacency,
            "simulated": event(self.simulated),
            "actual": event(self.actual),
            "data": self.request.data_checksum,
        }

    def ledger_entry(
        self, round_number: int, realised_cohort: int, release: Release, aggregate: Aggregate
    ) -> dict[str, Any]:
        """What the ledger records of one round, JSON-serialisable.

        The digest of the release is there so that a replay with another sum under the same noise
        is found out, whatever else agrees.

        Args:
            round_number: Number of the round, from 1.
            realised_cohort: Users that were drawn.
            release: What the round released.
            aggregate: The merged sum that it was released from.
        """
        return {
            **self.ledger_constants(),
            "round": round_number,
            "release_sha256": tensor_digest(release.mean_update),
            "clip_norm": release.clip_norm,
            "update_noise_stddev": release.update_noise_stddev,
            "count_noise_stddev": release.count_noise_stddev,
            "noisy_fraction_unclipped": release.noisy_fraction_unclipped,
            "realised_cohort": realised_cohort,
            "num_contributions": aggregate.num_contributions,
            "num_nonfinite": aggregate.num_nonfinite,
            "num_clipped": aggregate.num_clipped,
            "largest_norm": aggregate.largest_norm,
            "largest_clipped_norm": aggregate.largest_clipped_norm,
        }


def tensor_digest(tensor: Tensor) -> str:
    """SHA-256 of a tensor's bytes, in hexadecimal."""
    return hashlib.sha256(tensor.detach().cpu().contiguous().numpy().data).hexdigest()


def make_plan(request: PlanRequest) -> PrivacyPlan:
    """Build mechanism and accounting together, or say why they cannot be.

    Args:
        request: What the run is configured to do.

    Raises:
        PlanError: The accounting would be wrong of what would run, or a budget cannot be met.
        PrivacyError: A number is out of its range.
    """
    check_sizes(request)
    noise_cohort = request.noise_cohort_size or request.cohort_size
    # Without noise nothing can be infeasible: only to ask what kind of mechanism this is.
    probe = request.mechanism_build(NoiseScale(0.0, request.cohort_size, noise_cohort))
    if not probe.is_private:
        check_not_private(request)
        setting = Setting(
            request.num_users, request.cohort_size, request.scheme, 0.0, None, "none", None, "none"
        )
        noise = NoiseScale(0.0, request.cohort_size, request.cohort_size)
        return PrivacyPlan(request, probe, noise, setting, setting, max_rounds=None)
    check_private(request, probe.clip_norm)
    delta = request.delta if request.delta is not None else default_delta(request.population_size)
    check_delta(delta)
    noise = NoiseScale(
        _noise_multiplier(request, delta, noise_cohort), request.cohort_size, noise_cohort
    )
    plan = PrivacyPlan(
        request=request,
        mechanism=request.mechanism_build(noise),
        noise=noise,
        simulated=_setting(
            request, request.population_size, noise_cohort, noise.noise_multiplier, delta
        ),
        actual=_setting(
            request,
            request.num_users,
            request.cohort_size,
            noise.noise_multiplier * noise.ratio,
            request.delta if request.delta is not None else default_delta(request.num_users),
        ),
        max_rounds=_max_rounds(request, delta, noise_cohort),
    )
    if request.accountant == "prv":
        _check_prv_reaches(plan)
    return plan


def _noise_multiplier(request: PlanRequest, delta: float, noise_cohort: int) -> float:
    if request.noise_multiplier is not None:
        return request.noise_multiplier
    if request.epsilon is None:
        raise PlanError(
            "neither epsilon nor noise_multiplier is set, so nobody says how much noise a round "
            "gets; set epsilon (the noise is calibrated to it), noise_multiplier (no budget), or "
            "both (rounds stop before epsilon is exceeded)"
        )
    return calibrate_noise_multiplier(
        request.epsilon,
        delta,
        request.scheme,
        request.population_size,
        noise_cohort,
        request.num_rounds,
        request.accountant,
    )


def _max_rounds(request: PlanRequest, delta: float, noise_cohort: int) -> int | None:
    if request.epsilon is None:
        return None
    if request.noise_multiplier is None:
        return request.num_rounds
    rounds = max_rounds(
        request.epsilon,
        delta,
        request.scheme,
        request.population_size,
        noise_cohort,
        request.noise_multiplier,
        request.accountant,
        limit=request.num_rounds,
    )
    if rounds == 0:
        raise PlanError(
            f"not even one round with noise_multiplier {request.noise_multiplier:g} is within the "
            f"budget epsilon = {request.epsilon:g}; raise either, or leave noise_multiplier out to "
            "have it calibrated"
        )
    return rounds


def _setting(
    request: PlanRequest, population: int, cohort: int, noise_multiplier: float, delta: float
) -> Setting:
    event, adjacency = round_event(request.scheme, noise_multiplier, population, cohort)
    return Setting(
        population_size=population,
        cohort_size=cohort,
        scheme=request.scheme,
        noise_multiplier=noise_multiplier,
        delta=delta,
        accountant=request.accountant,
        event=event,
        adjacency=adjacency,
    )


def _check_prv_reaches(plan: PrivacyPlan) -> None:
    """Find out now, not after the last round, whether PRV can compute what will be stated."""
    for label, setting in (("simulated", plan.simulated), ("actual", plan.actual)):
        try:
            setting.epsilon(plan.request.num_rounds)
        except PlanError as error:
            raise PlanError(f"the {label} epsilon could not be stated: {error}") from error


def _notes(plan: PrivacyPlan) -> tuple[str, ...]:
    request, simulated, actual = plan.request, plan.simulated, plan.actual
    if not plan.mechanism.is_private:
        return ()
    notes = []
    if plan.noise.noise_multiplier == 0.0:
        notes.append(
            "The noise multiplier is 0: there is no guarantee, both epsilons are infinite."
        )
    if plan.noise.ratio != 1.0:
        notes.append(
            f"The noise of a cohort of {simulated.cohort_size} is simulated with cohorts of "
            f"{actual.cohort_size}: it is scaled by {plan.noise.ratio:g}, and only the deployment "
            "has the simulated epsilon."
        )
    if request.population_size != request.num_users:
        notes.append(
            f"The simulated population of {request.population_size} users is hypothetical: the "
            f"data have {request.num_users}."
        )
    if request.scheme == "fixed_size":
        notes.append(
            "Cohorts have a fixed size: adjacency is replace-one, the population size is public, "
            "and the sum's sensitivity is twice clip_norm."
        )
    if request.scheme == "full":
        notes.append("Every user takes part in every round: sampling amplifies nothing.")
    if request.artificial_users:
        notes.append(
            "The users of these data are artificial: a guarantee for one of them protects no "
            "person."
        )
    if request.selected_by is not None:
        notes.append(selection_note(request.selected_by))
    for label, setting in (("simulated", simulated), ("actual", actual)):
        if setting.delta is not None and setting.delta >= 1.0 / setting.population_size:
            notes.append(
                f"The {label} delta {setting.delta:.4g} is not below one over the population "
                f"({1.0 / setting.population_size:.4g}): publishing one user at random would "
                "satisfy it."
            )
    return tuple(notes)
