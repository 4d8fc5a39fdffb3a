"""Claim of a guarantee, in the parts that words about it need.

Guarantee: none of its own. A mechanism of which nothing is known but its name is described as one
that needs a trusted server, which promises the least.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from privacy.description import DP_SGD, Description
from privacy.statement.statement import NOT_COVERED, Accounted, PrivacyStatement


@dataclass(frozen=True, slots=True)
class Guarantee:
    """Guarantee that is explained; units, adjacencies and accountants are a ``PrivacyStatement``'s.

    Attributes:
        rounds: Rounds (for examples: steps) whose releases are covered together.
        simulated: The setting whose noise is used; equal to ``actual`` if nothing is simulated.
        actual: The very run's setting.
        clip: How updates are clipped; empty if nobody says.
        planned: Whether ``rounds`` are planned, and not over.
        mechanism_description: What the mechanism says of itself; None if nobody knows.
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
    mechanism_description: Description | None = None

    @classmethod
    def of(cls, statement: PrivacyStatement, module: Description | None = None) -> Guarantee:
        """Guarantee of a run's statement.

        ``module`` is what the mechanism's module says of it, for a statement of a version that did
        not record it.
        """
        of_examples = DP_SGD if statement.unit == "example" else None
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
            mechanism_description=statement.mechanism_description or module or of_examples,
        )

    @property
    def step(self) -> str:
        """Word for a release."""
        return "step" if self.unit == "example" else "round"

    @property
    def described(self) -> Description:
        """Words for the mechanism, as far as it is described."""
        return self.mechanism_description or Description(
            f"the mechanism {self.mechanism} noises what is released, with noise multiplier {{z}}"
        )
