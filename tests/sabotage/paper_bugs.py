"""Bugs planted by somebody who knows the papers and the code that trains, and not the audit."""

from __future__ import annotations

from tests.sabotage import (
    paper_batches,
    paper_central,
    paper_clients,
    paper_clipping,
    paper_elsewhere,
    paper_noise,
    paper_records,
    paper_reports,
    paper_sampling,
    paper_steps,
    paper_sums,
    paper_unusual,
)
from tests.sabotage.paper_planting import PaperBug

BUGS: tuple[PaperBug, ...] = (
    *paper_clipping.BUGS,
    *paper_clients.BUGS,
    *paper_sums.BUGS,
    *paper_noise.BUGS,
    *paper_reports.BUGS,
    *paper_sampling.BUGS,
    *paper_records.BUGS,
    *paper_steps.BUGS,
    *paper_central.BUGS,
    *paper_batches.BUGS,
    *paper_unusual.BUGS,
    *paper_elsewhere.BUGS,
)
