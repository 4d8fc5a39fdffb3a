"""The Gaussian mechanism with a fixed clipping bound.

Guarantee: unit user; each user moves the sum by at most ``clip_norm`` in L2 norm (added or
removed; twice that if replaced), and the sum gets Gaussian noise of standard deviation
``z * C_sm / C_lg * clip_norm`` in each element, once a round, an empty cohort included. The sum is
divided by the configured cohort size. For a deployment with cohort C_lg = C_sm that is the
Gaussian mechanism with multiplier z; this very run has the multiplier ``z * C_sm / C_lg``.

Source: McMahan et al. 2018, "Learning differentially private recurrent language models",
algorithm 1 (flat clipping, fixed-denominator estimator).
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from privacy.aggregate import Aggregate
from privacy.amplification import Composition, Participation, sampled_gaussian
from privacy.clipping import MAX_CLIP_NORM, MIN_CLIP_NORM, ClipOutcome, add_clipped_
from privacy.mechanism import (
    NoiseScale,
    NoiseShape,
    Release,
    Stateless,
    check_unit_weight,
    noised_mean,
)


class Options(BaseModel):
    """Settings of the Gaussian mechanism.

    Attributes:
        clip_norm: L2 bound of a user's update.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    clip_norm: Annotated[float, Field(ge=MIN_CLIP_NORM, le=MAX_CLIP_NORM)]


def accumulate_clipped(
    mechanism: str, aggregate: Aggregate, update: Tensor, weight: float, clip_norm: float
) -> ClipOutcome:
    """Clip one update into the sum and keep the counts.

    Args:
        mechanism: Name for the error message.
        aggregate: The round's sum, changed in place.
        update: Shape (P,), a float dtype; not changed.
        weight: Must be 1.
        clip_norm: L2 bound.

    Raises:
        PlanError: The weight is not 1.
    """
    check_unit_weight(mechanism, weight)
    outcome = add_clipped_(aggregate.total, update, clip_norm)
    aggregate.count(outcome)
    return outcome


class Gaussian(Stateless):
    """Clip to a fixed bound, sum, noise once, divide by the configured cohort size.

    Args:
        clip_norm: L2 bound of a user's update.
        noise: Multiplier and cohorts.
    """

    name = "gaussian"
    is_private = True
    noise_shape: NoiseShape = "gaussian"
    correlates_rounds = False
    randomizes_clients = False
    begins_with_normals = True
    count_noise_stddev: float | None = None

    def __init__(self, clip_norm: float, noise: NoiseScale) -> None:
        self._clip_norm = clip_norm
        self._noise = noise

    @property
    def clip_norm(self) -> float | None:
        """The bound, the same in every round."""
        return self._clip_norm

    @property
    def update_noise_multiplier(self) -> float:
        """All of z goes to the update."""
        return self._noise.noise_multiplier

    def clip_settings(self) -> dict[str, float | str]:
        """How updates are clipped: to a fixed L2 bound."""
        return {"kind": "fixed", "clip_norm": self._clip_norm}

    def composition(
        self, participation: Participation, noise_multiplier: float, rounds: int
    ) -> Composition:
        """Sampled Gaussians: noise is drawn anew in each round.

        Args:
            participation: How users are drawn.
            noise_multiplier: z, at least 0.
            rounds: Number of rounds, at least 0.

        Raises:
            PrivacyError: A number is out of its range.
        """
        return sampled_gaussian(participation, noise_multiplier, rounds)

    def accumulate(
        self,
        aggregate: Aggregate,
        update: Tensor,
        weight: float,
        rng: np.random.Generator | None = None,
    ) -> ClipOutcome:
        """Clip one update into the sum.

        Args:
            aggregate: The round's sum, changed in place.
            update: Shape (P,), a float dtype; not changed.
            weight: Must be 1.
            rng: Not used.

        Raises:
            PlanError: The weight is not 1.
        """
        return accumulate_clipped(self.name, aggregate, update, weight, self._clip_norm)

    def release(self, aggregate: Aggregate, rng: np.random.Generator) -> Release:
        """Noise the sum once and divide it by the configured cohort size.

        Args:
            aggregate: The merged sum of all workers; not changed. May be empty.
            rng: Gives P normal draws (none if the multiplier is 0).
        """
        stddev = self._noise.noise_multiplier * self._noise.ratio * self._clip_norm
        return Release(
            mean_update=noised_mean(aggregate.total, stddev, self._noise.cohort_size, rng),
            clip_norm=self._clip_norm,
            update_noise_stddev=stddev,
            count_noise_stddev=None,
            noisy_fraction_unclipped=None,
        )


def build(options: Options, noise: NoiseScale) -> Gaussian:
    """Build the mechanism.

    Args:
        options: The clipping bound.
        noise: Multiplier and cohorts.
    """
    return Gaussian(options.clip_norm, noise)
