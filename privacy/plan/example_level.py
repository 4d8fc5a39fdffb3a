"""The plan of central DP-SGD: privacy of one example.

Guarantee: unit example, adjacency that of the scheme by which batches are drawn. Each step draws a
batch, clips each example's gradient to ``clip_norm`` in L2 norm, and adds Gaussian noise of
standard deviation ``noise_multiplier * clip_norm`` to the sum. A user with several examples has
less than that. Nothing is simulated, so both epsilons are the same. Accounting is that of
``privacy.calibration`` with the examples as the population, the batch as the cohort and the steps
as the rounds:

- "poisson": each example is drawn independently with probability batch_size / num_examples;
  adjacency add-or-remove-one;
- "shuffled": batches of one order of the examples an epoch; adjacency zero-out, each example in at
  most one step of an epoch, and no amplification.

Statistics of the features, where the model has such, are released once before the first step
(``privacy.noise.feature_statistics``). Their two Gaussian mechanisms are composed with the steps,
also before the first of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from privacy.amplification import (
    MechanismComposition,
    Participation,
    after_gaussians,
    sampled_gaussian,
)
from privacy.description import DP_SGD
from privacy.errors import PlanError, PrivacyError
from privacy.noise.feature_statistics import FeatureStatistics
from privacy.plan.budget import Budget
from privacy.plan.checks import delta_refusal
from privacy.plan.notes import example_level_notes, plugin_notes, sampling_notes
from privacy.plan.types import Setting
from privacy.schemes.poisson import Poisson
from privacy.statement.statement import PrivacyStatement, Status

_UNIT, _MECHANISM = "example", "dp_sgd"


@dataclass(frozen=True, slots=True)
class ExampleLevelRequest:
    """Settings of a run of DP-SGD.

    Attributes:
        batch_size: Expected examples of a batch.
        steps: Steps that are planned, at least 1.
        clip_norm: L2 bound of an example's gradient, positive and finite.
        budget: What its noise follows from.
        selected_by: Metric by which one of the models is chosen; None for the last one.
        nonce: What pins the noise, which all runs of it share; None for a run's own noise.
        plugins: Digests of the user's plug-ins, by name.
        sampling: How batches are drawn: "poisson" or "shuffled".
        statistics: What is released of the features before the first step; None for nothing.
    """

    num_examples: int
    batch_size: float
    steps: int
    clip_norm: float
    budget: Budget
    num_parameters: int
    selected_by: str | None = None
    nonce: str | int | None = None
    plugins: Mapping[str, str] = field(default_factory=dict)
    sampling: str = "poisson"
    statistics: FeatureStatistics | None = None


@dataclass(frozen=True, slots=True)
class ExampleLevelPlan:
    """DP-SGD's noise and budget, and the accounting that is true of them.

    Attributes:
        setting: Examples, batches, noise, delta and accountant.
        max_steps: Steps, of those planned, that the budget allows; None without a budget.
    """

    request: ExampleLevelRequest
    setting: Setting
    max_steps: int | None

    def ledger_constants(self, data_checksum: str) -> dict[str, Any]:
        """Constants of every line of the run's ledger, JSON-serialisable."""
        event = self.setting.to_json_dict()
        # It follows from the sizes, and has never been in these ledgers.
        del event["sampling_probability"]
        constants = {
            "unit": _UNIT,
            "mechanism": _MECHANISM,
            "mechanism_description": DP_SGD.to_json_dict(),
            "sampling": self.setting.participation.scheme.name,
            "adjacency": self.setting.adjacency,
            "simulated": event,
            "actual": event,
            "clip_norm": self.request.clip_norm,
            "data": data_checksum,
            "plugins": dict(self.request.plugins),
        }
        if self.request.statistics is not None:
            statistics = asdict(self.request.statistics)
            options = {"clip_norm": self.request.clip_norm, "statistics": statistics}
            constants["mechanism_options"] = options
        return constants

    def _as_poisson(self, steps: int) -> float | None:
        """Epsilon that these steps would have on Poisson samples; None where they are such."""
        request = self.request
        if self.setting.participation.scheme.is_independent:
            return None
        examples = Participation(Poisson(), request.num_examples, request.batch_size)
        return replace(self.setting, participation=examples).epsilon(steps)

    def statement(self, steps_done: int, status: Status = "final") -> PrivacyStatement:
        """Statement of the run's guarantee after so many steps, those on an empty batch included.

        They were taken (status "final"), or will be at most ("planned"). Simulated and actual
        epsilons are equal.
        """
        accounted, statistics = self.setting.accounted(steps_done), self.request.statistics
        clip: dict[str, float | str] = {"kind": "per_example", "clip_norm": self.request.clip_norm}
        if statistics is not None:
            clip |= {
                "statistics_noise_multiplier": statistics.noise_multiplier,
                "mean_clip_norm": statistics.mean_clip_norm,
                "square_clip_norm": statistics.square_clip_norm,
            }
        return PrivacyStatement(
            unit=_UNIT,
            adjacency=self.setting.adjacency,
            mechanism=_MECHANISM,
            accountant=self.setting.accountant,
            rounds=steps_done,
            num_parameters=self.request.num_parameters,
            clip=clip,
            mechanism_description=DP_SGD,
            noise_multiplier=self.setting.noise_multiplier,
            update_noise_multiplier=self.setting.noise_multiplier,
            count_noise_stddev=None,
            simulated=accounted,
            actual=accounted,
            budget_epsilon=self.request.budget.epsilon,
            notes=(
                *sampling_notes(self.setting, self._as_poisson(steps_done)),
                *example_level_notes(self.setting, self.request.nonce, self.request.selected_by),
                *plugin_notes(self.request.plugins),
            ),
            status=status,
        )


def example_level_composition(statistics: FeatureStatistics | None) -> MechanismComposition:
    """Composition of steps, with the statistics that are released before them; None for none."""
    if statistics is None:
        return sampled_gaussian
    return after_gaussians(statistics.noise_multipliers)


def make_example_level_plan(request: ExampleLevelRequest) -> ExampleLevelPlan:
    """Settle noise and budget of DP-SGD, or say why they cannot be."""
    if not 0.0 < request.clip_norm < float("inf"):
        raise PrivacyError(
            f"clip_norm is {request.clip_norm!r}, but must be positive and finite: without a bound "
            "one example could move the sum by any amount"
        )
    budget = request.budget
    if refused := delta_refusal(budget.delta, request.num_examples, "example"):
        raise PlanError(refused)
    delta = budget.delta_of(request.num_examples)
    examples = Participation.named(request.sampling, request.num_examples, request.batch_size)
    composition = example_level_composition(request.statistics)
    noise, max_steps = budget.settle(examples, delta, request.steps, composition, step="step")
    setting = Setting(examples, noise, delta, budget.accountant, composition)
    plan = ExampleLevelPlan(request, setting, max_steps)
    # Whatever cannot be stated after the last step should be known before the first.
    plan.statement(request.steps)
    return plan
