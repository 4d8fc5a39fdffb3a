"""Fixed-size sampling: exactly so many users a round, without replacement.

Guarantee: unit user (or example). A uniformly random set of exactly ``cohort_size`` users, none
twice. The population size is public, so adjacency is replace-one, under which the sum moves by
twice clip_norm: the multiplier that is accounted is z / 2. The accountant pld composes the pair of
laws that dominates a round, exact for one round (``privacy.accountants.without_replacement``); rdp
a theorem's bound, which is loose.

Source: Zhu, Dong, Wang 2022, theorem 11 (pld); Wang et al. 2019, theorem 27 (rdp).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from privacy.errors import PrivacyError
from privacy.sampling_scheme import SamplingScheme, draw_distinct

if TYPE_CHECKING:
    from privacy.sampling_scheme import Ids, Participation, Rng


@dataclass(frozen=True, slots=True)
class FixedSize(SamplingScheme):
    """Every cohort has ``cohort_size`` users."""

    name = "fixed_size"
    title = "fixed-size sampling without replacement"
    accountants = ("rdp", "pld")
    adjacency = "replace-one"
    sensitivity = 2.0
    phrase = "a fixed number is drawn each round without replacement (a fraction {q})"
    noted = (
        "Cohorts have a fixed size: adjacency is replace-one, the population size is public, and "
        "the sum's sensitivity is twice clip_norm."
    )
    assumed = (
        "fixed size. In each {step} exactly {cohort} of {population} {unit}s are drawn at random, "
        "none twice (a part {rate}). The sum can change by twice the clipping bound, which is "
        "counted. {secret}"
    )

    def draw(self, users: Participation, rng: Rng, round_index: int, groups: Ids | None) -> Ids:
        """Draw one round's users, shape (cohort_size,): sorted, none twice."""
        return draw_distinct(rng, users.population_size, int(users.cohort_size))

    def sampled_event(self, users: Participation, event: Any) -> Any:
        """The event, sampled without replacement."""
        from dp_accounting import dp_event

        return dp_event.SampledWithoutReplacementDpEvent(
            int(users.population_size), int(users.cohort_size), event
        )

    def check(self, users: Participation) -> None:
        """Check that the cohort is a whole number, too."""
        SamplingScheme.check(self, users)
        if users.cohort_size != int(users.cohort_size):
            raise PrivacyError(
                f"a fixed-size cohort must be a whole number of users, not {users.cohort_size!r}"
            )


Scheme = FixedSize
