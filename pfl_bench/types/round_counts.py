"""Counts of a round, beside the sum of updates."""

from __future__ import annotations

from dataclasses import dataclass, field, fields


@dataclass(slots=True)
class RoundStatistics:
    """Statistics of a round's training, beside the sum.

    Attributes:
        loss: Sum over clients, whose updates count, of their mean training loss.
        num_examples: Examples that these trained on, once each.
        num_steps: Their local steps.
        weight: What they count for.
        scalar: Sum of the scalars that they sent beside their updates, each times its weight.
        steps: Steps of all clients, those too whose update was lost: they have had the cost.
        processed: Examples that went through them.
        lost: Users whose update was not finite.
        bytes_up: What sending took all clients.
        users: Whose updates were taken in, in that order, as often as they were.
        clients: Of each client, its user, mean training loss and examples; kept for a selection
            that learns from them.
    """

    loss: float = 0.0
    num_examples: int = 0
    num_steps: int = 0
    weight: float = 0.0
    scalar: float = 0.0
    steps: int = 0
    processed: int = 0
    lost: list[int] = field(default_factory=list)
    bytes_up: float = 0.0
    users: list[int] = field(default_factory=list)
    clients: list[tuple[int, float, int]] = field(default_factory=list)

    def merge(self, other: RoundStatistics) -> None:
        """Take in what was counted of other clients of the same round."""
        for each in fields(self):
            own = getattr(self, each.name)
            own += getattr(other, each.name)  # in place, of lists
            setattr(self, each.name, own)
