"""Poisson sampling: each user tosses a coin of its own in each round.

Guarantee: unit user (or example), adjacency add-or-remove-one. Each user takes part independently
of all else with probability q = cohort / population; a round is a Poisson-sampled Gaussian.

Source: Abadi et al. 2016.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from privacy.sampling_scheme import SamplingScheme, draw_distinct

if TYPE_CHECKING:
    from privacy.sampling_scheme import Ids, Participation, Rng


@dataclass(frozen=True, slots=True)
class Poisson(SamplingScheme):
    """The realised cohort varies around ``cohort_size`` and may be empty."""

    name = "poisson"
    title = "Poisson sampling"
    is_independent = True
    phrase = "each joins a round on its own, with probability {q}"
    assumed = (
        "Poisson. In each {step} every {unit} takes part with probability {rate}, whatever others "
        "do and whatever happened before. {secret}"
    )

    def draw(self, users: Participation, rng: Rng, round_index: int, groups: Ids | None) -> Ids:
        """Draw one round's users, shape (realised cohort,): sorted, none twice; may be empty."""
        # A binomial number of distinct users, uniformly chosen, is the same law as N coins, and
        # costs the cohort's size rather than the population's.
        size = int(rng.binomial(users.population_size, self.sampling_probability(users)))
        return draw_distinct(rng, users.population_size, size)


Scheme = Poisson
