"""Aggregations of updates where no mechanism sums them: plug-ins, one a file."""

from __future__ import annotations

from pfl_bench.types import Stateful
from privacy.mechanisms.none import NoPrivacy


class Aggregation(Stateful, NoPrivacy):
    """Base of aggregations: the weighted mean of the updates, as they are.

    Attributes:
        name: What it is called.
        keeps_updates: Whether it keeps each update of a round. One process then trains all clients,
            each counts alike and sends an update alone.
        fewest: Finite updates that it needs; of a round with fewer it makes a zero update.
        rounds_left_out: Rounds so far that had fewer.
    """

    keeps_updates = False
    fewest = 0
    rounds_left_out = 0
