"""Contents of a source of Sent140, and how they compare with what was published."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tasks.common.leaf.table1 import SENT140, compare, looks_full


@dataclass(slots=True)
class Tally:
    """Counts what a source holds, before anything is dropped.

    Attributes:
        counted: Which tweets are counted, for a human.
        users: Samples of each user.
        neutral: Samples of neutral mood.
        manual: Samples labelled by hand (the published test file).
    """

    counted: str = "tweets, neutral ones too"
    users: Counter[str] = field(default_factory=Counter)
    neutral: int = 0
    manual: int = 0

    def facts(self) -> dict[str, Any]:
        """The counts of table 1, and by what they differ from it if this looks like all of it.

        Returns:
            As ``tasks.common.leaf.table1.compare``.
        """
        return compare(self.users.values(), SENT140, self.counted)

    def looks_full(self) -> bool:
        """Whether the source looks like the whole data, not a part of them."""
        return looks_full(self.users.total(), SENT140.samples)
