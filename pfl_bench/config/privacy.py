"""The section ``privacy`` of a configuration: what a run claims, and by which noise."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, model_validator

from pfl_bench.config.training import PositiveFloat, PositiveInt, Strict
from privacy.empirical.canary_options import CanaryOptions


class StatisticsOptions(Strict):
    """Statistics of the training examples' features, released before the first step.

    Attributes:
        noise_multiplier: Standard deviation of the noise on either sum, in multiples of its bound.
        mean_clip_norm: L2 bound of an example's channel means. Nobody may take it from the data.
        square_clip_norm: L2 bound of an example's channel mean squares, likewise.
    """

    noise_multiplier: PositiveFloat
    mean_clip_norm: PositiveFloat
    square_clip_norm: PositiveFloat


class PrivacyOptions(Strict):
    """The run's privacy claim; without this section a run claims none.

    Attributes:
        mechanism: Plug-in name and options, such as {name: gaussian, clip_norm: 0.1}.
        population_size: Users of the deployment whose privacy is computed (federated: required, no
            default); "training_users" says that they are those of the data, however many.
        hypothetical_population: Must be true when ``population_size`` is not the number of users
            in the data; the statement then says so.
        noise_cohort_size: Cohort whose noise is simulated; null for ``cohort_size`` itself.
        epsilon: Target of the simulated deployment; with ``noise_multiplier``, a budget.
        noise_multiplier: Effective z that the accountant sees: standard deviation of the noise in
            multiples of clip_norm; null to calibrate it to epsilon.
        delta: null for N^-1.1.
        nonce: Pins the noise and the cohorts, where they have to stay while code, versions or
            machine change: all runs of one nonce and seed share them, and no two of those have a
            joint guarantee. null: they are this run's own.
        accountant: "rdp" (moments accountant), "pld" or "prv".
        audit: Canary clients that measure a lower bound of epsilon; null for none.
        statistics: Noise and bounds of the statistics of the features that a model of central
            training normalises by, such as {noise_multiplier: 8, mean_clip_norm: 1,
            square_clip_norm: 0.1}; the epsilon counts them. null for a model without.
    """

    mechanism: dict[str, Any]
    population_size: PositiveInt | Literal["training_users"] | None = None
    hypothetical_population: bool = False
    noise_cohort_size: PositiveInt | None = None
    epsilon: PositiveFloat | None = None
    noise_multiplier: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] | None = None
    accountant: Literal["rdp", "pld", "prv"] = "rdp"
    nonce: NonNegativeInt | Annotated[str, Field(min_length=1, max_length=100)] | None = None
    audit: CanaryOptions | None = None
    statistics: StatisticsOptions | None = None

    @model_validator(mode="after")
    def _noise_is_determined(self) -> PrivacyOptions:
        unset = self.epsilon is None and self.noise_multiplier is None
        if unset and self.mechanism.get("name") != "none":
            raise ValueError(
                "give epsilon (the noise is calibrated to it), noise_multiplier, or both (epsilon "
                "is then a budget that stops the run)"
            )
        return self


# Settings of a deployment of clients, and of canaries, which are clients.
OF_CLIENTS = ("population_size", "hypothetical_population", "noise_cohort_size", "audit")
