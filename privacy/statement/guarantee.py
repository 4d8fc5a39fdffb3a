"""What a guarantee claims, as the words about it need it.

Guarantee: none of its own; it holds what a statement or a calculation claims.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from privacy.statement.statement import NOT_COVERED, Accounted, PrivacyStatement


@dataclass(frozen=True, slots=True)
class Guarantee:
    """What is explained.

    Attributes:
        unit: "user", "example" or "none".
        adjacency: "add-or-remove-one", "replace-one", "zero-out" or "none".
        mechanism: Name of the mechanism.
        accountant: "rdp", "pld", "prv" or "none".
        rounds: Rounds (for examples: steps) whose releases are covered together.
        simulated: The setting whose noise is used; equal to ``actual`` if nothing is simulated.
        actual: The very run's setting.
        clip: How updates are clipped; empty if nobody says.
        notes: Sentences of the statement on this run.
        not_covered: What an observer can learn outside of the mechanism, a sentence each.
        planned: Whether ``rounds`` are planned, and not over.
    """

    unit: str
    adjacency: str
    mechanism: str
    accountant: str
    rounds: int
    simulated: Accounted
    actual: Accounted
    clip: Mapping[str, float | str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    not_covered: tuple[str, ...] = NOT_COVERED
    planned: bool = False

    @classmethod
    def of(cls, statement: PrivacyStatement) -> Guarantee:
        """What a run's statement guarantees."""
        return cls(
            unit=statement.unit,
            adjacency=statement.adjacency,
            mechanism=statement.mechanism,
            accountant=statement.accountant,
            rounds=statement.rounds,
            simulated=statement.simulated,
            actual=statement.actual,
            clip=statement.clip,
            notes=statement.notes,
            not_covered=statement.not_covered,
            planned=statement.status == "planned",
        )

    @property
    def step(self) -> str:
        """What a release is called."""
        return "step" if self.unit == "example" else "round"
