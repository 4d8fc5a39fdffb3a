"""Cyclic Poisson sampling: groups of users take turns, in which each user tosses a coin.

Guarantee: unit user, adjacency add-or-remove-one. Each user belongs to one of ``min_separation``
groups, drawn once, uniformly and independent of all other users; in round t only group
(t - 1) mod min_separation is eligible, each of its users taking part independently with probability
q_g = cohort * min_separation / population. Whatever a user's group, the user can be in at most
ceil(rounds / min_separation) rounds, in each with probability q_g, and in the others never.

Source: Choquette-Choo et al. 2023, "(Amplified) banded matrix factorization", theorem 4 with one
band.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from privacy.sampling_scheme import SamplingScheme, draw_distinct

if TYPE_CHECKING:
    from privacy.sampling_scheme import Ids, Participation, Rng


@dataclass(frozen=True, slots=True)
class CyclicPoisson(SamplingScheme):
    """Two rounds of one user are ``min_separation`` apart, or a multiple of it."""

    name = "cyclic_poisson"
    title = "cyclic Poisson sampling"
    is_independent = True
    keeps_distance = True
    pattern = "groups"
    phrase = (
        "groups of users take turns ({b} of them), and in its group's rounds each joins on its "
        "own, with probability {q}"
    )
    noted = (
        "Users belong to {b} groups that take turns: no user is in two rounds less than {b} "
        "apart. A deployment must enforce it."
    )
    assumed = (
        "cyclic Poisson. Each {unit} belongs to one of {b} groups, drawn once at random, that "
        "take turns. In a {step} of its group it takes part with probability {rate}, whatever "
        "others do. So nobody is in more than {most} {step}s, or in two that are less than {b} "
        "apart; a deployment must enforce that. {secret}"
    )

    def assign(self, users: Participation, rng: Rng) -> Ids:
        """Each user's group, shape (population_size,), int64, drawn independent of the others'."""
        return rng.integers(self.min_separation, size=users.population_size)

    def draw(self, users: Participation, rng: Rng, round_index: int, groups: Ids | None) -> Ids:
        """Draw one round's users, shape (realised cohort,): sorted, none twice; may be empty."""
        import numpy as np

        eligible = np.flatnonzero(groups == (round_index - 1) % self.min_separation)
        # Of the number of all users, not of the group's own, which is random: the probability is
        # then the same whoever else there is.
        size = int(rng.binomial(len(eligible), self.sampling_probability(users)))
        return eligible[draw_distinct(rng, len(eligible), size)]


Scheme = CyclicPoisson
