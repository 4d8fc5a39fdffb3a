"""Bugs planted by somebody who knows the papers and the code that trains, and not the audit."""

from __future__ import annotations

from tests.sabotage import paper_clipping, paper_noise
from tests.sabotage.paper_planting import PaperBug

BUGS: tuple[PaperBug, ...] = (*paper_clipping.BUGS, *paper_noise.BUGS)
