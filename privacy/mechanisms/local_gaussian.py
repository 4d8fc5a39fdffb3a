"""Local differential privacy: every client clips and adds Gaussian noise before it sends.

Guarantee: unit user, adjacency replace-one: any two values of one user's data, while who takes
part in which round is public. It holds against the server too, and for each user alone, whatever
the others send. A report is a vector within ``clip_norm`` plus Gaussian noise of standard
deviation ``z * clip_norm`` in each element; two values of it are at most ``2 * clip_norm`` apart,
so that a report is a Gaussian mechanism of multiplier z / 2. A user sends at most
``Participation.most_participations(T)`` reports, and each counts in full: who sends is no secret
from the server, so no sampling amplifies anything. Poisson and fixed-size cohorts therefore cost
what full participation costs, T reports; only separation lowers their number.

- An update that is not finite is replaced by zeros and still noised and sent: a report that does
  not come would disclose it.
- The server adds nothing and divides the sum by the configured cohort size; an empty cohort
  releases zeros, which tells no more than who took part.
- The noise of a report does not depend on the cohort. A deployment with C_lg users a round has
  less noise in its *mean*, by sqrt(C_sm / C_lg), at the same epsilon of every user. Simulating
  that with C_sm clients would take client noise of ``z * sqrt(C_sm / C_lg)``, and so an actual
  epsilon of that multiplier; a plan's two settings are tied by C_sm / C_lg, which is untrue here,
  so any ``noise_cohort_size`` but ``cohort_size`` is refused.

Source: Kasiviswanathan et al. 2011, "What can we learn privately?" (local randomizers); Dwork et
al. 2006, "Our data, ourselves" (Gaussian noise).
"""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from privacy.aggregate import Aggregate
from privacy.amplification import Composition, Participation, check_composition_numbers
from privacy.clipping import MAX_CLIP_NORM, MIN_CLIP_NORM, ClipOutcome
from privacy.errors import PlanError, PrivacyError
from privacy.mechanism import NoiseScale, NoiseShape, Release, Stateless, mean_of
from privacy.mechanisms.gaussian import accumulate_clipped


class Options(BaseModel):
    """Settings of local Gaussian noise.

    Attributes:
        clip_norm: L2 bound of a user's update.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    clip_norm: Annotated[float, Field(ge=MIN_CLIP_NORM, le=MAX_CLIP_NORM)]


def check_own_cohort(mechanism: str, noise: NoiseScale) -> None:
    """Check that a local mechanism is not asked to simulate another cohort.

    Args:
        mechanism: Name for the error message.
        noise: Cohorts.

    Raises:
        PlanError: ``noise_cohort_size`` is not ``cohort_size``.
    """
    if noise.noise_cohort_size != noise.cohort_size:
        raise PlanError(
            f"noise_cohort_size is {noise.noise_cohort_size:g} and cohort_size "
            f"{noise.cohort_size:g} with the mechanism {mechanism}: its clients add their noise "
            "themselves, so the noise of a report, and its epsilon, do not depend on the cohort; "
            "leave noise_cohort_size out (a larger cohort is only had by drawing it)"
        )


def check_client_rng(mechanism: str, rng: np.random.Generator | None) -> np.random.Generator:
    """Check that a client has its own source of noise.

    Args:
        mechanism: Name for the error message.
        rng: The client's stream.

    Raises:
        PrivacyError: There is none.
    """
    if rng is None:
        raise PrivacyError(
            f"the {mechanism} mechanism was given an update without a source of noise: its clients "
            "add the noise themselves; pass accumulate one independent stream per client and round"
        )
    return rng


def num_reports(aggregate: Aggregate) -> int:
    """Reports in a local mechanism's sum: updates that were not finite sent one, too."""
    return aggregate.num_contributions + aggregate.num_nonfinite


class LocalGaussian(Stateless):
    """Clip and noise each client's update, then sum.

    Args:
        clip_norm: L2 bound of a user's update.
        noise: Multiplier and cohorts, which must be one.

    Raises:
        PlanError: ``noise_cohort_size`` is not ``cohort_size``.
    """

    name = "local_gaussian"
    is_private = True
    noise_shape: NoiseShape = "gaussian"
    correlates_rounds = False
    randomizes_clients = True
    count_noise_stddev: float | None = None

    def __init__(self, clip_norm: float, noise: NoiseScale) -> None:
        check_own_cohort(self.name, noise)
        self._clip_norm = clip_norm
        self._noise = noise

    @property
    def clip_norm(self) -> float | None:
        """The bound, the same in every round."""
        return self._clip_norm

    @property
    def update_noise_multiplier(self) -> float:
        """Noise of one report in multiples of clip_norm; a sum of n has sqrt(n) times that."""
        return self._noise.noise_multiplier

    def clip_settings(self) -> dict[str, float | str]:
        """How updates are clipped: to a fixed L2 bound, by each client."""
        return {"kind": "fixed", "clip_norm": self._clip_norm}

    def composition(
        self, participation: Participation, noise_multiplier: float, rounds: int
    ) -> Composition:
        """Unsampled Gaussians of multiplier z / 2, one for each report of a user.

        Args:
            participation: How users are drawn; it only limits how often one can be.
            noise_multiplier: z, noise of a report in multiples of clip_norm, at least 0.
            rounds: Number of rounds, at least 0.

        Raises:
            PrivacyError: A number is out of its range.
        """
        check_composition_numbers(noise_multiplier, rounds)
        from dp_accounting import dp_event

        count = participation.most_participations(int(rounds))
        return Composition(dp_event.GaussianDpEvent(noise_multiplier / 2.0), count, "replace-one")

    def accumulate(
        self,
        aggregate: Aggregate,
        update: Tensor,
        weight: float,
        rng: np.random.Generator | None = None,
    ) -> ClipOutcome:
        """Make one client's report and add it to the sum.

        Args:
            aggregate: The round's sum, changed in place; ``clipped_total`` keeps it bare of noise.
            update: Shape (P,), a float dtype; not changed. If it is not finite, the report is
                noise alone.
            weight: Must be 1.
            rng: The client's stream: gives P normal draws (none if the multiplier is 0).

        Raises:
            PlanError: The weight is not 1.
            PrivacyError: There is no stream.
        """
        rng = check_client_rng(self.name, rng)
        report = Aggregate.zeros(update.numel(), update.device)
        outcome = accumulate_clipped(self.name, report, update, weight, self._clip_norm)
        report.clipped_total = report.total.clone()
        stddev = self._noise.noise_multiplier * self._clip_norm
        if stddev > 0.0:
            noise = rng.standard_normal(report.total.numel())
            noise *= stddev
            report.total.add_(torch.from_numpy(noise).to(torch.float32).to(report.total.device))
        aggregate.merge(report)
        return outcome

    def release(self, aggregate: Aggregate, rng: np.random.Generator) -> Release:
        """Divide the sum of the reports by the configured cohort size.

        Args:
            aggregate: The merged sum of all workers; not changed. May be empty.
            rng: Not used: the noise is in the reports.
        """
        stddev = self._noise.noise_multiplier * self._clip_norm
        return Release(
            mean_update=mean_of(aggregate.total, self._noise.cohort_size),
            clip_norm=self._clip_norm,
            update_noise_stddev=math.sqrt(num_reports(aggregate)) * stddev,
            count_noise_stddev=None,
            noisy_fraction_unclipped=None,
        )


def build(options: Options, noise: NoiseScale) -> LocalGaussian:
    """Build the mechanism.

    Args:
        options: The clipping bound.
        noise: Multiplier and cohorts, which must be one.

    Raises:
        PlanError: ``noise_cohort_size`` is not ``cohort_size``.
    """
    return LocalGaussian(options.clip_norm, noise)
