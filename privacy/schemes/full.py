"""Full participation: every user in every round.

Guarantee: unit user (or example), adjacency add-or-remove-one; sampling amplifies nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from privacy.sampling_scheme import SamplingScheme

if TYPE_CHECKING:
    from privacy.sampling_scheme import Ids, Participation, Rng


@dataclass(frozen=True, slots=True)
class Full(SamplingScheme):
    """The cohort is the population."""

    name = "full"
    title = "full participation"
    takes_everybody = True
    pattern = "groups"
    phrase = "all take part in every round"
    noted = "Every user takes part in every round: sampling amplifies nothing."
    assumed = "none. Every {unit} takes part in every {step}."

    def draw(self, users: Participation, rng: Rng, round_index: int, groups: Ids | None) -> Ids:
        """All users, shape (population_size,); ``rng`` is not used."""
        import numpy as np

        return np.arange(users.population_size, dtype=np.int64)


Scheme = Full
