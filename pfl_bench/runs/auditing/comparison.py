"""Comparisons of sketches that a run recorded with those that the reference computes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from privacy.audit.check import Finding

Array = NDArray[np.float64]


@dataclass(slots=True)
class Comparison:
    """Comparisons of one check: its finding, over how many steps.

    ``largest`` is the largest difference, in multiples of what is allowed.
    """

    finding: Finding = field(default_factory=Finding)
    steps: int = 0
    largest: float = 0.0

    def compare(self, what: str, recorded: Array, own: Array, allowed: float) -> None:
        """Add a problem if two sketches, shape (BLOCKS + 1,), differ by more than is allowed."""
        off = float(np.abs(recorded - own).max())
        self.largest = max(self.largest, float(off / allowed))
        self.finding.add(
            not off <= allowed,
            f"{what} is not what the reference computes: its norm is {recorded[0]:.6g} instead of "
            f"{own[0]:.6g}, its sketch off by {off:.2g}, rounding makes {allowed:.1g} at most",
        )

    def seen(self, text: str) -> Finding:
        """Say what was looked at."""
        if self.largest:
            text += f"; largest difference {self.largest:.2g} of what rounding may make"
        return self.finding.seen(text, steps=self.steps, largest=self.largest)
