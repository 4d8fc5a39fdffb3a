"""Local differential privacy by PrivUnit: every client sends a random direction near its own.

Guarantee: unit user, adjacency replace-one: any two values of one user's data, while who takes
part in which round is public. It holds against the server too. A report is pure epsilon-DP with
**epsilon = 1 / z**: as a Laplace mechanism of multiplier z is (1 / z)-DP, so is a report here,
which makes z the one number that is configured, calibrated and accounted, as under every
mechanism. Any pure epsilon-DP mechanism is dominated by randomized response between two answers
with that epsilon, so a user's reports, at most ``Participation.most_participations(T)`` of them,
compose as so many randomized responses. That is never more than the sum of their epsilons, and
the least that pure DP allows. No sampling amplifies anything: who sends is no secret from the
server.

- PrivUnit takes unit vectors. The norm is carried by a coin, not by a second mechanism that would
  take its part of epsilon, and not by scaling every update to the bound: an update clipped to
  length r * clip_norm becomes its own direction with probability (1 + r) / 2, else the opposite
  one, whose mean is r times the direction. So the report's mean is the *clipped* update, not a
  rescaled one. What is done before a DP mechanism costs no epsilon.
- A zero update, or one that is not finite, sends a report that is uniform on the sphere.
- All reports have one length, ``clip_norm / mean_length`` (``privacy.noise.privunit``).
- The server adds nothing and divides the sum by the configured cohort size; an empty cohort
  releases zeros. ``noise_cohort_size`` must be ``cohort_size``, as for ``local_gaussian``.

The noise has no fixed law that could be drawn apart from the update: its description has none,
and the standard deviation of a release is that of its elements' root mean square, at most.

Source: Bhowmick et al. 2018, algorithm 1; Kairouz et al. 2015, "The composition theorem for
differential privacy", theorem 3.3 (randomized response dominates); the coin after pfl-research's
PrivUnit (238775c; pfl 0.6.0 has none).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from privacy.amplification import Composition, Participation, check_composition_numbers
from privacy.description import FRESH, Description
from privacy.errors import PlanError
from privacy.mechanism import NoiseScale
from privacy.noise.client_reports import ClientReports
from privacy.noise.clipped_sum import ClipOptions
from privacy.noise.privunit import LARGEST_REPORT_EPSILON, CapDesign, design, randomize

DESCRIPTION = Description(
    "each client sends a random direction near that of its own clipped update; one report has "
    "epsilon one over the noise multiplier {z}, and delta 0",
    strategy=FRESH,
    reports="direction",
)


class Options(ClipOptions):
    """Settings of PrivUnit: the bound; a report's epsilon is 1 / noise_multiplier."""


class PrivUnit(ClientReports):
    """Clip each client's update, send a random direction in its place, sum.

    The noise multiplier is one over a report's epsilon; both cohorts must be one.
    """

    name = "privunit"
    description = DESCRIPTION

    def __init__(self, clip_norm: float, noise: NoiseScale) -> None:
        super().__init__(clip_norm, noise)
        multiplier = noise.noise_multiplier
        if multiplier > 0.0 and 1.0 / multiplier > LARGEST_REPORT_EPSILON:
            raise PlanError(
                f"noise_multiplier is {multiplier:.6g} with the mechanism privunit, where a report "
                f"has epsilon 1 / noise_multiplier = {1.0 / multiplier:.6g}; it must be at most "
                f"{LARGEST_REPORT_EPSILON:g}, so noise_multiplier at least "
                f"{1.0 / LARGEST_REPORT_EPSILON:g}"
            )

    def clip_settings(self) -> dict[str, float | str]:
        """Settings of the clip, and the epsilon of one report."""
        multiplier = self._noise.noise_multiplier
        return {
            "kind": "fixed",
            "clip_norm": self._clip_norm,
            "report_epsilon": 1.0 / multiplier if multiplier > 0.0 else "inf",
        }

    def composition(
        self, participation: Participation, noise_multiplier: float, rounds: int
    ) -> Composition:
        """Randomized responses of epsilon 1 / z, one for each report; z 0 is no guarantee."""
        check_composition_numbers(noise_multiplier, rounds)
        from dp_accounting import dp_event

        # Of two answers, one drawn uniformly with probability p: e**epsilon = (2 - p) / p.
        unlike = math.exp(-1.0 / noise_multiplier) if noise_multiplier > 0.0 else 0.0
        # dp-accounting takes no p of exactly 1.
        noise_parameter = min(2.0 * unlike / (1.0 + unlike), math.nextafter(1.0, 0.0))
        event = dp_event.RandomizedResponseDpEvent(noise_parameter, 2)
        return Composition(event, participation.most_participations(int(rounds)), "replace-one")

    def _randomize(self, report: Tensor, rng: np.random.Generator) -> None:
        """A random direction of fixed length; at multiplier 0 the clipped update itself."""
        plan = self._design(report.numel())
        if plan is not None:
            report.copy_(_report(report, self._clip_norm, plan, rng))

    def _report_stddev(self, num_parameters: int) -> float:
        plan = self._design(num_parameters)
        if plan is None:
            return 0.0
        # A report has its length squared of variance over all elements, less what it means.
        return self._clip_norm / plan.mean_length / math.sqrt(num_parameters)

    def _design(self, num_parameters: int) -> CapDesign | None:
        multiplier = self._noise.noise_multiplier
        return design(1.0 / multiplier, num_parameters) if multiplier > 0.0 else None


def _report(clipped: Tensor, clip_norm: float, plan: CapDesign, rng: np.random.Generator) -> Tensor:
    """A random vector of fixed length whose mean is the clipped update, float32 of shape (P,).

    It is on the CPU, of length ``clip_norm / plan.mean_length``. ``rng`` gives one uniform draw for
    the coin, then those of ``randomize``.
    """
    vector = clipped.detach().cpu().to(torch.float64).numpy()
    norm = float(np.linalg.norm(vector))
    opposite = rng.random() >= 0.5 * (1.0 + min(norm / clip_norm, 1.0))
    direction = None
    if norm > 0.0:
        direction = vector / (-norm if opposite else norm)
    report = randomize(direction, plan, rng)
    report *= clip_norm
    return torch.from_numpy(report).to(torch.float32)


def build(options: Options, noise: NoiseScale) -> PrivUnit:
    """Build the mechanism."""
    return PrivUnit(options.clip_norm, noise)
