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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from privacy.accountant import check_accountant, check_composition, check_delta
from privacy.amplification import Participation
from privacy.errors import BudgetExceededError, PlanError
from privacy.mechanism import Mechanism, NoiseScale
from privacy.plan.checks import check_not_private, check_participation, check_private, check_sizes
from privacy.plan.notes import plan_notes
from privacy.plan.types import PlanRequest, Setting
from privacy.statement.statement import NOT_COVERED, PATTERN_NOT_COVERED, PrivacyStatement, Status

if TYPE_CHECKING:
    from torch import Tensor

    from privacy.aggregate import Aggregate
    from privacy.mechanism import Release

# How the noise was drawn, for whoever reads the ledger: so runs repeat, and nobody is protected.
SEED_POLICY = "philox, a stream a round, seeded: for simulation only"

__all__ = ["PlanRequest", "PrivacyPlan", "Setting", "make_plan"]


@dataclass(frozen=True, slots=True)
class PrivacyPlan:
    """A mechanism, and the accounting that is true of it.

    Attributes:
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
        """Check, before a round is run, that the simulated epsilon stays within the budget.

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
        """Statement of the run's guarantee after so many rounds.

        They were released (status "final"), or will be at most ("planned").
        """
        private = self.mechanism.is_private
        selected = private and not self.request.scheme.is_drawn
        return PrivacyStatement(
            unit="user" if private else "none",
            adjacency=self.simulated.adjacency,
            mechanism=self.mechanism.name,
            accountant=self.simulated.accountant,
            rounds=rounds,
            status=status,
            num_parameters=self.request.num_parameters,
            clip=self.mechanism.clip_settings(),
            mechanism_description=self.mechanism.description,
            noise_multiplier=self.noise.noise_multiplier,
            update_noise_multiplier=self.mechanism.update_noise_multiplier,
            count_noise_stddev=self.mechanism.count_noise_stddev,
            simulated=self.simulated.accounted(rounds),
            actual=self.actual.accounted(rounds),
            budget_epsilon=self.request.epsilon,
            not_covered=NOT_COVERED + (PATTERN_NOT_COVERED if selected else ()),
            notes=plan_notes(self.request, self.mechanism, self.noise, self.simulated, self.actual),
        )

    def ledger_constants(self) -> dict[str, Any]:
        """Constants of every line of the run's ledger, JSON-serialisable."""
        request, simulated = self.request, self.simulated
        return {
            "unit": "user",
            "mechanism": self.mechanism.name,
            "mechanism_options": dict(request.mechanism_options or {}),
            "mechanism_description": self.mechanism.description.to_json_dict(),
            "sampling": simulated.participation.scheme.name,
            "separation": simulated.participation.min_separation,
            "max_participations": simulated.participation.max_participations,
            "adjacency": simulated.adjacency,
            "accountant": simulated.accountant,
            "weighting": request.weighting,
            "uploads": list(request.uploads),
            "batchnorm_layers": list(request.batchnorm_layers),
            "seed_policy": SEED_POLICY,
            "simulated": simulated.to_json_dict(),
            "actual": self.actual.to_json_dict(),
            "num_parameters": request.num_parameters,
            "denominator": float(self.noise.cohort_size),
            "data": request.data_checksum,
            "plugins": dict(request.plugins),
        }

    def ledger_entry(
        self,
        round_number: int,
        users: Iterable[int],
        release: Release,
        aggregate: Aggregate,
        observed: Mapping[str, Any] | None = None,
        num_canaries: int = 0,
    ) -> dict[str, Any]:
        """Line of the ledger for one round, JSON-serialisable.

        The digest of the release is there so that a replay with another sum under the same noise
        is found out, whatever else agrees.

        ``users`` are those that were drawn, canaries left out; ``aggregate`` is the merged sum that
        the release was made from; ``observed`` is what ``privacy.recording.observation`` saw of the
        round.
        """
        drawn = [int(user) for user in users]
        return {
            **self.ledger_constants(),
            "round": round_number,
            "release_sha256": tensor_digest(release.mean_update),
            "clip_norm": release.clip_norm,
            "update_noise_stddev": release.update_noise_stddev,
            "count_noise_stddev": release.count_noise_stddev,
            "noisy_fraction_unclipped": release.noisy_fraction_unclipped,
            "realised_cohort": len(drawn),
            "distinct_users": len(set(drawn)),
            "num_canaries": num_canaries,
            "num_contributions": aggregate.num_contributions,
            "num_nonfinite": aggregate.num_nonfinite,
            "num_clipped": aggregate.num_clipped,
            "total_weight": aggregate.weight,
            "largest_norm": aggregate.largest_norm,
            "largest_clipped_norm": aggregate.largest_clipped_norm,
            **(observed or {}),
        }


def tensor_digest(tensor: Tensor) -> str:
    """SHA-256 of a tensor's bytes, of any shape, in hexadecimal."""
    return hashlib.sha256(tensor.detach().cpu().contiguous().numpy().data).hexdigest()


def make_plan(request: PlanRequest) -> PrivacyPlan:
    """Build mechanism and accounting together, or say why they cannot be.

    A PlanError says that the accounting would be wrong of what would run, or a budget cannot be
    met.
    """
    check_sizes(request)
    # Without noise nothing can be infeasible: only to ask what kind of mechanism this is.
    probe = request.mechanism_build(_noise_scale(request, 0.0))
    if not probe.is_private:
        check_not_private(request)
        everybody = request.participation(request.num_users, request.cohort_size)
        setting = Setting(everybody, 0.0, None, "none", None)
        noise = NoiseScale(0.0, request.cohort_size, request.cohort_size)
        return PrivacyPlan(request, probe, noise, setting, setting, max_rounds=None)
    delta = request.budget.delta_of(request.population_size)
    check_delta(delta)
    check_private(request, probe)
    check_participation(request)
    noise_cohort = request.noise_cohort_size or request.cohort_size
    deployment = request.participation(request.population_size, noise_cohort)
    if probe.description.is_sampled_gaussian:
        check_accountant(request.accountant, request.scheme)
    check_composition(probe.composition(deployment, 1.0, request.num_rounds), request.accountant)
    noise_multiplier, max_rounds = request.budget.settle(
        deployment, delta, request.num_rounds, probe.composition
    )
    noise = _noise_scale(request, noise_multiplier)
    mechanism = request.mechanism_build(noise)

    def setting_of(users: Participation, multiplier: float) -> Setting:
        delta = request.budget.delta_of(users.population_size)
        return Setting(users, multiplier, delta, request.accountant, mechanism.composition)

    actual = request.participation(request.num_users, request.cohort_size)
    plan = PrivacyPlan(
        request=request,
        mechanism=mechanism,
        noise=noise,
        simulated=setting_of(deployment, noise_multiplier),
        actual=setting_of(actual, noise_multiplier * noise.ratio),
        max_rounds=max_rounds,
    )
    if request.accountant == "prv":
        _check_prv_reaches(plan)
    return plan


def _noise_scale(request: PlanRequest, noise_multiplier: float) -> NoiseScale:
    return NoiseScale(
        noise_multiplier,
        request.cohort_size,
        request.noise_cohort_size or request.cohort_size,
        num_rounds=request.num_rounds,
        separation=request.scheme.min_separation,
    )


def _check_prv_reaches(plan: PrivacyPlan) -> None:
    """Find out now, not after the last round, whether PRV can compute what will be stated."""
    for label, setting in (("simulated", plan.simulated), ("actual", plan.actual)):
        try:
            setting.epsilon(plan.request.num_rounds)
        except PlanError as error:
            raise PlanError(f"the {label} epsilon could not be stated: {error}") from error
