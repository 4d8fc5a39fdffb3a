"""Who takes part in a round: drawn by a sampler, or selected among simulated devices."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from pfl_bench.federated.sampling import Sampler
from pfl_bench.simulation.selectors import Ids
from pfl_bench.types import RoundStatistics


class Participants(Protocol):
    """Decides who is trained in a round; one that changes from round to round is a ``HasState``."""

    @property
    def rests_on(self) -> tuple[str, ...]:
        """What decides who takes part beside coins of their own; empty where nothing does."""

    @property
    def uses_data(self) -> bool:
        """Whether it depends on what clients have learned who takes part."""

    def begin(self, done: int) -> None:
        """Prepare the files of a run that has so many rounds behind it."""

    def draw(self, index: int, rng: np.random.Generator) -> Ids:
        """The users whose updates make round ``index`` (from 1), ascending; may be empty."""

    def finish(self, index: int, users: Ids, counted: RoundStatistics) -> dict[str, float]:
        """Take note that the round has ended.

        Args:
            index: The round, from 1.
            users: As ``draw`` gave them.
            counted: What their training came to.

        Returns:
            Scalars of the round, "systems/bytes_down" and "systems/bytes_up" among them.
        """


class SampledParticipants:
    """Participants that a sampler draws; they all finish.

    Args:
        sampler: Draws them.
        num_bytes: What each of them receives.
    """

    rests_on = ()
    uses_data = False

    def __init__(self, sampler: Sampler, num_bytes: float) -> None:
        self._sampler = sampler
        self._num_bytes = num_bytes

    def begin(self, done: int) -> None:
        """There are no files."""

    def draw(self, index: int, rng: np.random.Generator) -> Ids:
        """Draw the round's users."""
        return self._sampler.draw(rng, index)

    def finish(self, index: int, users: Ids, counted: RoundStatistics) -> dict[str, float]:
        """Those too whose update was lost have had the cost."""
        down = float(len(users) * self._num_bytes)
        return {"systems/bytes_down": down, "systems/bytes_up": counted.bytes_up}
