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

import numpy as np
import torch
from torch import Tensor

from privacy.amplification import Composition, Participation, check_composition_numbers
from privacy.description import FRESH, OF_THE_BOUND, Description
from privacy.mechanism import NoiseScale
from privacy.noise.client_reports import ClientReports
from privacy.noise.clipped_sum import ClipOptions

DESCRIPTION = Description(
    "each client adds Gaussian noise to its own clipped update before it sends; its standard "
    f"deviation is {OF_THE_BOUND}",
    law="gaussian",
    stddev=1.0,
    strategy=FRESH,
    reports="noised",
)


class Options(ClipOptions):
    """Settings of local Gaussian noise: the bound."""


class LocalGaussian(ClientReports):
    """Clip and noise each client's update, then sum.

    Both cohorts must be one.
    """

    name = "local_gaussian"
    description = DESCRIPTION

    def composition(
        self, participation: Participation, noise_multiplier: float, rounds: int
    ) -> Composition:
        """Unsampled Gaussians of multiplier z / 2, one for each report of a user."""
        check_composition_numbers(noise_multiplier, rounds)
        from dp_accounting import dp_event

        count = participation.most_participations(int(rounds))
        return Composition(dp_event.GaussianDpEvent(noise_multiplier / 2.0), count, "replace-one")

    def _report_stddev(self, num_parameters: int) -> float:
        return self._noise.noise_multiplier * self._clip_norm

    def _randomize(self, report: Tensor, rng: np.random.Generator) -> None:
        """Add P normal draws (none if the multiplier is 0)."""
        stddev = self._report_stddev(report.numel())
        if stddev > 0.0:
            noise = rng.standard_normal(report.numel())
            noise *= stddev
            report.add_(
                torch.from_numpy(noise).to(torch.float32).to(report.device, non_blocking=True)
            )


def build(options: Options, noise: NoiseScale) -> LocalGaussian:
    """Build the mechanism."""
    return LocalGaussian(options.clip_norm, noise)
