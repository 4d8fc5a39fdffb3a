"""Base of mechanisms whose clients randomise their own updates, so that no server is trusted.

Guarantee: unit user. Each client clips its update to ``clip_norm`` in L2 norm and makes a report of
it with its own source of noise; what a report gives away is each mechanism's own to say. An update
that is not finite is reported as zeros would be: a report that does not come would disclose it. The
server adds nothing and divides the sum of reports by the configured cohort size.
"""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from privacy.aggregate import Aggregate
from privacy.clipping import ClipOutcome
from privacy.errors import PlanError, PrivacyError
from privacy.mechanism import NoiseScale, Release, mean_of
from privacy.noise.clipped_sum import ClippedSum, accumulate_clipped


class ClientReports(ClippedSum):
    """Base of mechanisms whose clients clip and randomise their own updates.

    A subclass gives ``name``, ``description``, ``composition``, ``_randomize`` and
    ``_report_stddev``.

    ``noise_cohort_size`` must be ``cohort_size``.
    """

    def __init__(self, clip_norm: float, noise: NoiseScale) -> None:
        if noise.noise_cohort_size != noise.cohort_size:
            raise PlanError(
                f"noise_cohort_size is {noise.noise_cohort_size:g} and cohort_size "
                f"{noise.cohort_size:g} with the mechanism {self.name}: its clients add their "
                "noise themselves, so the noise of a report, and its epsilon, do not depend on the "
                "cohort; leave noise_cohort_size out (a larger cohort is only had by drawing it)"
            )
        super().__init__(clip_norm, noise)

    def _randomize(self, report: Tensor, rng: np.random.Generator) -> None:
        """Turn a clipped update, shape (P,), float32, into its report, in place.

        It is of zeros if the update was not finite. ``rng`` is the client's stream. A PrivacyError
        says that no report of this length can keep what is promised.
        """
        raise NotImplementedError

    def _report_stddev(self, num_parameters: int) -> float:
        """Standard deviation of the noise in each element of one report, at most."""
        raise NotImplementedError

    def accumulate(
        self,
        aggregate: Aggregate,
        update: Tensor,
        weight: float,
        rng: np.random.Generator | None = None,
    ) -> ClipOutcome:
        """Make one client's report, by the client's stream, and add it to the sum.

        ``clipped_total`` of the aggregate keeps the sum bare of noise.
        """
        if rng is None:
            raise PrivacyError(
                f"the {self.name} mechanism was given an update without a source of noise: its "
                "clients add the noise themselves; pass accumulate one independent stream per "
                "client and round"
            )
        report = Aggregate.zeros(update.numel(), update.device)
        outcome = accumulate_clipped(self.name, report, update, weight, self._clip_norm)
        report.clipped_total = report.total.clone()
        self._randomize(report.total, rng)
        aggregate.merge(report)
        return outcome

    def release(self, aggregate: Aggregate, rng: np.random.Generator) -> Release:
        """Divide the sum of the reports, which have the noise, by the configured cohort size."""
        # Updates that were not finite sent a report, too.
        num_reports = aggregate.num_contributions + aggregate.num_nonfinite
        stddev = math.sqrt(num_reports) * self._report_stddev(aggregate.total.numel())
        mean = mean_of(aggregate.total, self._noise.cohort_size)
        return Release(mean, self._clip_norm, stddev)
