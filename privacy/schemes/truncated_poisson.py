"""Truncated Poisson sampling: a coin for each user, and never more users than a cap.

Guarantee: unit user, adjacency add-or-remove-one; of two neighbouring data sets the larger has N
users. In a round each user tosses a coin of its own, with probability q = cohort / population; if
more than B heads come up, B of these users are chosen uniformly and the others stay out. The cap
is derived, never configured: B = ceil(C + 4 sqrt(C)), at most N, four standard deviations above the
cohort. The divisor stays the cohort.

What the cap costs: let t be the probability that B or more of the other N - 1 users have a head.

- With fewer, the user's coin decides alone: a Poisson-sampled Gaussian of multiplier z at q.
- With B or more, the user, if let in, takes the place of another one, so that the sum moves by up
  to two bounds: given the others' B places and which of them is lost, both uniform whatever the
  number of heads, that is a sampled Gaussian of multiplier z / 2 at the probability
  p = (B / N) P(more than B of N heads) / t of the user to be let in.

The number of the others' heads has the same law in both data sets. So the round is dominated by the
mixture of the two, with t told to the attacker (joint convexity of the divergences), in each
direction; and what dominates each round dominates the adaptive composition. The accountant pld
composes it; nothing is added to delta. The others refuse it.

Source: Ganesh 2025, "Tighter privacy analysis for truncated Poisson sampling" (arXiv 2508.15089),
whose second part dp-accounting 0.6 bounds by a replaced user; Zhu, Dong, Wang 2022 (dominating
pairs and their composition).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from privacy.errors import PlanError
from privacy.sampling_scheme import SamplingScheme, draw_distinct

if TYPE_CHECKING:
    from privacy.sampling_scheme import Ids, Participation, Rng

# Standard deviations of a Poisson cohort.
_ROOM = 4.0


@dataclass(frozen=True, slots=True)
class TruncatedPoisson(SamplingScheme):
    """The realised cohort varies around ``cohort_size``, and is at most ``largest_cohort``."""

    name = "truncated_poisson"
    title = "truncated Poisson sampling"
    accountants = ("pld",)
    phrase = (
        "each joins a round on its own, with probability {q}, and of too many (four standard "
        "deviations above the cohort) some are left out at random"
    )
    noted = (
        "No cohort is larger than its expectation and four standard deviations: of more users, "
        "some are left out at random, which the accounting pays for. The population is that of "
        "the larger of two neighbouring data sets."
    )
    assumed = (
        "truncated Poisson. In each {step} every {unit} takes part with probability {rate}, "
        "whatever others do and whatever happened before; of more than the {cohort} expected and "
        "four of its square roots, some are left out at random. {secret}"
    )

    def draw(self, users: Participation, rng: Rng, round_index: int, groups: Ids | None) -> Ids:
        """Draw one round's users, shape (realised cohort,): sorted, none twice; may be empty."""
        # A uniform part of a uniform set of users is a uniform set.
        size = int(rng.binomial(users.population_size, self.sampling_probability(users)))
        return draw_distinct(rng, users.population_size, min(size, self.largest_cohort(users)))

    def largest_cohort(self, users: Participation) -> int:
        """B: the most users of a round."""
        room = math.ceil(users.cohort_size + _ROOM * math.sqrt(users.cohort_size))
        return min(int(users.population_size), room)

    def sampled_event(self, users: Participation, event: Any) -> Any:
        """The event, which must be a Gaussian, of a cohort that is cut at the cap."""
        from dp_accounting import dp_event

        if not isinstance(event, dp_event.GaussianDpEvent):
            raise PlanError(
                "truncated_poisson sampling is accounted for Gaussian noise alone: a user who "
                "takes another's place moves the sum by two bounds, which is proved here for no "
                "other noise; sample by poisson, or take the mechanism gaussian"
            )
        return dp_event.TruncatedSubsampledGaussianDpEvent(
            int(users.population_size),
            self.sampling_probability(users),
            self.largest_cohort(users),
            event.noise_multiplier,
        )


Scheme = TruncatedPoisson
