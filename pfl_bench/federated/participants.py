"""Participants that a sampler draws; ``simulation.devices.cohorts`` has those of devices."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pfl_bench.federated.sampling import Sampler
from pfl_bench.types import Participants, RoundStatistics


class SampledParticipants(Participants):
    """Participants that a sampler draws; they all finish.

    Args:
        sampler: Draws them.
        num_bytes: What each of them receives.
    """

    def __init__(self, sampler: Sampler, num_bytes: float) -> None:
        self._sampler = sampler
        self._num_bytes = num_bytes

    def draw(self, index: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Draw the round's users."""
        return self._sampler.draw(rng, index)

    def finish(
        self, index: int, users: NDArray[np.int64], counted: RoundStatistics
    ) -> dict[str, float]:
        """Those too whose update was lost have had the cost."""
        down = float(len(users) * self._num_bytes)
        return {"systems/bytes_down": down, "systems/bytes_up": counted.bytes_up}
