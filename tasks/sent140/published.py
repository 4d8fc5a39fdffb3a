"""What was published of Sent140, and how what was read compares with it."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

# Source: Caldas et al. 2018, LEAF, table 1: users, samples, and mean and sd of a user's samples.
USERS, SAMPLES = 660_120, 1_600_498
MEAN, SD = 2.42, 4.71
# Sources with fewer rows than this share of the published ones are parts of the data.
FULL_SHARE = 0.9


@dataclass(slots=True)
class Tally:
    """Counts what a source holds, before anything is dropped.

    Attributes:
        users: Samples of each user.
        neutral: Samples of neutral mood.
        manual: Samples labelled by hand (the published test file).
    """

    users: Counter[str] = field(default_factory=Counter)
    neutral: int = 0
    manual: int = 0

    def facts(self) -> dict[str, Any]:
        """The counts of table 1, and by what they differ from it if this looks like all of it.

        Returns:
            "table1" with the numbers, mean and population standard deviation of a user's samples;
            "differs_from_published", a sentence for each number that differs; None for a part.
        """
        samples, users = self.users.total(), len(self.users)
        mean = samples / users if users else 0.0
        square = sum(count * count for count in self.users.values()) / users if users else 0.0
        sd = math.sqrt(max(0.0, square - mean * mean))
        differs: list[str] | None = None
        if self.looks_full():
            compared = (
                ("users", users, USERS),
                ("samples", samples, SAMPLES),
                ("mean", round(mean, 2), MEAN),
                ("sd", round(sd, 2), SD),
            )
            differs = [
                f"{what}: {found:,} here, {published:,} published"
                for what, found, published in compared
                if found != published
            ]
        return {
            "table1": {"users": users, "samples": samples, "mean": mean, "sd": sd},
            "differs_from_published": differs,
        }

    def looks_full(self) -> bool:
        """Whether the source looks like the whole data, not a part of them."""
        return self.users.total() >= FULL_SHARE * SAMPLES
