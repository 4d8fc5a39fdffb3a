"""How the centre makes one update of many where no mechanism does: plug-ins, one a file."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class LeavesRoundsOut(Protocol):
    """What an aggregation also has that makes nothing of too few updates.

    Attributes:
        name: What it is called.
        fewest: Finite updates that it needs; of a round with fewer it makes a zero update.
        rounds_left_out: Rounds so far that had fewer.
    """

    name: str
    fewest: int
    rounds_left_out: int
