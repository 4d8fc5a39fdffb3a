"""The statement of central DP-SGD: privacy of one example.

Guarantee: unit example, adjacency add-or-remove-one. Each step draws a batch by Poisson sampling
(each example independently with probability batch_size / num_examples), clips each example's
gradient to ``clip_norm`` in L2 norm, and adds Gaussian noise of standard deviation
``noise_multiplier * clip_norm`` to the sum. A user with several examples has less than that.
Nothing is simulated, so both epsilons are the same. Accounting is that of
``privacy.calibration`` with the scheme "poisson", the examples as the population, the batch as the
cohort and the steps as the rounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from privacy.calibration import (
    calibrate_noise_multiplier,
    default_delta,
    epsilon_of_rounds,
    max_rounds,
)
from privacy.description import DP_SGD
from privacy.errors import PlanError, PrivacyError
from privacy.statement.statement import (
    Accounted,
    PrivacyStatement,
    Status,
    nonce_note,
    selection_note,
)


def _check_clip_norm(clip_norm: float) -> None:
    if not 0.0 < clip_norm < float("inf"):
        raise PrivacyError(
            f"clip_norm is {clip_norm!r}, but must be positive and finite: without a bound one "
            "example could move the sum by any amount"
        )


def example_level_statement(
    num_examples: int,
    batch_size: float,
    steps: int,
    noise_multiplier: float,
    clip_norm: float,
    delta: float,
    accountant: str,
    num_parameters: int,
    *,
    budget_epsilon: float | None = None,
    status: Status = "final",
    selected_by: str | None = None,
    nonce: str | int | None = None,
) -> PrivacyStatement:
    """State what DP-SGD guarantees after so many steps.

    Args:
        num_examples: Examples to draw from.
        batch_size: Expected examples of a batch.
        steps: Steps that were run, at least 0.
        noise_multiplier: Standard deviation of the noise in multiples of clip_norm, at least 0.
        clip_norm: L2 bound of an example's gradient, positive and finite.
        delta: In (0, 1).
        accountant: "rdp", "pld" or "prv".
        num_parameters: Number of trainable parameters.
        budget_epsilon: Bound that epsilon was held to; None for none.
        status: "final", or "planned" if ``steps`` is the most that will be run.
        selected_by: Metric by which one of the models is chosen; None for the last one.
        nonce: What pins the noise, which all runs of it share; None for a run's own noise.

    Returns:
        The statement, whose simulated and actual epsilons are equal.

    Raises:
        PrivacyError: An argument is out of its range.
    """
    _check_clip_norm(clip_norm)
    epsilon = epsilon_of_rounds(
        noise_multiplier, delta, "poisson", num_examples, batch_size, steps, accountant
    )
    accounted = Accounted(
        population_size=num_examples,
        cohort_size=batch_size,
        sampling="poisson",
        sampling_probability=batch_size / num_examples,
        noise_multiplier=noise_multiplier,
        delta=delta,
        epsilon=epsilon,
    )
    notes = [
        "The unit is one example: a user who owns several is protected less than that.",
        "Nothing is simulated: simulated and actual epsilon are the same.",
    ]
    if noise_multiplier == 0.0:
        notes.append("The noise multiplier is 0: there is no guarantee.")
    if nonce is not None:
        notes.append(nonce_note(nonce))
    if selected_by is not None:
        notes.append(selection_note(selected_by))
    if delta >= 1.0 / num_examples:
        notes.append(
            f"Delta {delta:.4g} is not below one over the number of examples "
            f"({1.0 / num_examples:.4g}): publishing one example at random would satisfy it."
        )
    return PrivacyStatement(
        unit="example",
        adjacency="add-or-remove-one",
        mechanism="dp_sgd",
        accountant=accountant,
        rounds=steps,
        num_parameters=num_parameters,
        clip={"kind": "per_example", "clip_norm": clip_norm},
        mechanism_description=DP_SGD,
        noise_multiplier=noise_multiplier,
        update_noise_multiplier=noise_multiplier,
        count_noise_stddev=None,
        simulated=accounted,
        actual=accounted,
        budget_epsilon=budget_epsilon,
        notes=tuple(notes),
        status=status,
    )


@dataclass(frozen=True, slots=True)
class ExampleLevelPlan:
    """DP-SGD's noise and budget, and the accounting that is true of them.

    Attributes:
        num_examples: Examples to draw from.
        batch_size: Expected examples of a batch.
        clip_norm: L2 bound of an example's gradient.
        noise_multiplier: Standard deviation of the noise in multiples of clip_norm.
        delta: In (0, 1).
        accountant: "rdp", "pld" or "prv".
        num_parameters: Number of trainable parameters.
        epsilon: Budget; None for none.
        max_steps: Steps, of those planned, that the budget allows; None without a budget.
        selected_by: Metric by which one of the models is chosen; None for the last one.
        nonce: What pins the noise, which all runs of it share; None for a run's own noise.
    """

    num_examples: int
    batch_size: int
    clip_norm: float
    noise_multiplier: float
    delta: float
    accountant: str
    num_parameters: int
    epsilon: float | None
    max_steps: int | None
    selected_by: str | None = None
    nonce: str | int | None = None

    def ledger_constants(self, data_checksum: str) -> dict[str, Any]:
        """What is the same in every line of the run's ledger, JSON-serialisable.

        Args:
            data_checksum: Digest of the data's content.
        """
        event = {
            "population_size": self.num_examples,
            "cohort_size": self.batch_size,
            "noise_multiplier": self.noise_multiplier,
            "delta": self.delta,
        }
        return {
            "unit": "example",
            "mechanism": "dp_sgd",
            "mechanism_description": DP_SGD.to_json_dict(),
            "sampling": "poisson",
            "adjacency": "add-or-remove-one",
            "simulated": event,
            "actual": event,
            "clip_norm": self.clip_norm,
            "data": data_checksum,
        }

    def statement(self, steps_done: int, status: Status = "final") -> PrivacyStatement:
        """What the run guarantees after so many steps.

        Args:
            steps_done: Steps that were taken, those on an empty batch included.
            status: "final", or "planned" if ``steps_done`` is the most that will be taken.
        """
        return example_level_statement(
            self.num_examples,
            self.batch_size,
            steps_done,
            self.noise_multiplier,
            self.clip_norm,
            self.delta,
            self.accountant,
            self.num_parameters,
            budget_epsilon=self.epsilon,
            status=status,
            selected_by=self.selected_by,
            nonce=self.nonce,
        )


def make_example_level_plan(
    *,
    num_examples: int,
    batch_size: int,
    steps: int,
    clip_norm: float,
    epsilon: float | None,
    noise_multiplier: float | None,
    delta: float | None,
    accountant: str,
    num_parameters: int,
    selected_by: str | None = None,
    nonce: str | int | None = None,
) -> ExampleLevelPlan:
    """Settle noise and budget of DP-SGD, or say why they cannot be.

    Args:
        num_examples: Examples to draw from.
        batch_size: Expected examples of a batch.
        steps: Steps that are planned, at least 1.
        clip_norm: L2 bound of an example's gradient, positive and finite.
        epsilon: Budget; None for none.
        noise_multiplier: Standard deviation of the noise in multiples of clip_norm; None to
            calibrate it to ``epsilon``.
        delta: In (0, 1); None for num_examples ** -1.1.
        accountant: "rdp", "pld" or "prv".
        num_parameters: Number of trainable parameters.
        selected_by: Metric by which one of the models is chosen; None for the last one.
        nonce: What pins the noise, which all runs of it share; None for a run's own noise.

    Raises:
        PlanError: Neither epsilon nor noise is set, or not even one step fits the budget.
        PrivacyError: A number is out of its range.
    """
    _check_clip_norm(clip_norm)
    delta = default_delta(num_examples) if delta is None else delta
    max_steps = None if epsilon is None else steps
    if noise_multiplier is None:
        if epsilon is None:
            raise PlanError(
                "neither epsilon nor noise_multiplier is set, so nobody says how much noise a step "
                "gets; set epsilon (the noise is calibrated to it), noise_multiplier (no budget), "
                "or both (training stops before epsilon is exceeded)"
            )
        noise_multiplier = calibrate_noise_multiplier(
            epsilon, delta, "poisson", num_examples, batch_size, steps, accountant
        )
    elif epsilon is not None:
        max_steps = max_rounds(
            epsilon,
            delta,
            "poisson",
            num_examples,
            batch_size,
            noise_multiplier,
            accountant,
            limit=steps,
        )
        if max_steps == 0:
            raise PlanError(
                f"not even one step with noise_multiplier {noise_multiplier:g} is within the "
                f"budget epsilon = {epsilon:g}; raise either, or leave noise_multiplier out to "
                "have it calibrated"
            )
    plan = ExampleLevelPlan(
        num_examples=num_examples,
        batch_size=batch_size,
        clip_norm=clip_norm,
        noise_multiplier=noise_multiplier,
        delta=delta,
        accountant=accountant,
        num_parameters=num_parameters,
        epsilon=epsilon,
        max_steps=max_steps,
        selected_by=selected_by,
        nonce=nonce,
    )
    # Whatever cannot be stated after the last step should be known before the first.
    plan.statement(steps)
    return plan
