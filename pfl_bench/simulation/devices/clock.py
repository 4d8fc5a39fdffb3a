"""The virtual clock: simulated time of a run, and who takes part in its rounds.

It is apart from real time: a round that takes a second to compute may take hours here, and what is
trained does not depend on the clock but for who takes part.

Source: Lai et al. 2022 (FedScale), section 5 (over-commitment).
"""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np

from pfl_bench.simulation.devices.availability import Ids
from pfl_bench.simulation.devices.devices import Fleet
from pfl_bench.simulation.devices.timeline import Outcome, RoundTimeline


class VirtualClock:
    """Simulated time of a run: from round to round it moves on by what the rounds take.

    For N wanted participants, ceil(overcommitment * N) are selected. Some user must be available
    at some time.
    """

    def __init__(self, fleet: Fleet, overcommitment: float) -> None:
        fleet.check_available()
        self._fleet = fleet
        self._overcommitment = overcommitment
        self._totals = dict.fromkeys(("lost", "stragglers", "waited_seconds"), 0.0)
        self.now = 0.0

    def num_selected(self, wanted: int) -> int:
        """Number to select so that ``wanted`` finish: ceil(overcommitment * wanted)."""
        # A product such as 1.1 * 50 can come out just above the whole number that is meant.
        return ceil(round(self._overcommitment * wanted, 9))

    def next_start(self, users: Ids) -> float:
        """The first moment from now on at which one of some users is available.

        Now, if none of them ever is: then there is nobody to wait for.
        """
        first = float(np.min(self._fleet.next_available(users, self.now), initial=np.inf))
        return self.now if first == np.inf else first

    def advance(self, timeline: RoundTimeline) -> None:
        """Move on to the end of a round that was played."""
        self._totals["waited_seconds"] += timeline.start - self.now
        self._totals["lost"] += timeline.num(Outcome.LOST)
        self._totals["stragglers"] += timeline.num(Outcome.STRAGGLER)
        self.now = timeline.end

    def scalars(self, timeline: RoundTimeline) -> dict[str, float]:
        """Scalars of a round, to whose end the clock has advanced, and of the run so far."""
        return {
            "systems/simulated_seconds": timeline.end - timeline.start,
            "systems/total_simulated_seconds": self.now,
            "systems/total_waited_seconds": self._totals["waited_seconds"],
            "systems/selected": float(len(timeline.users)),
            "systems/counted": float(timeline.num(Outcome.COUNTED)),
            "systems/stragglers": float(timeline.num(Outcome.STRAGGLER)),
            "systems/lost": float(timeline.num(Outcome.LOST)),
            "systems/total_stragglers": self._totals["stragglers"],
            "systems/total_lost": self._totals["lost"],
            "systems/bytes_down": float(timeline.bytes_down.sum()),
            "systems/bytes_up": float(timeline.bytes_up.sum()),
        }

    def state_dict(self) -> dict[str, Any]:
        """All that changes from round to round."""
        return {"now": self.now, "totals": dict(self._totals)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` gave."""
        self.now = float(state["now"])
        self._totals = dict(state["totals"])
