"""Selected users: devices, a clock and a selector decide, and no chance is accounted.

Guarantee: unit user, adjacency *zero-out*: one user's device sends nothing, in every round that the
user is in, while who is in which round stays the same. What is asked of the selector: no user is in
more than ``max_participations`` rounds, nor in two that are less than ``min_separation`` apart, so
that a user is in at most k = min(max_participations, ceil(rounds / min_separation)) of them, each
in full. The sum of each of those rounds moves by at most clip_norm, whichever rounds they are, and
that of no other. So the bound holds for every pattern of participation within the cap, and with the
pattern made public, if it was not made from the users' data.

Why this is not add-or-remove: a cohort of a fixed number, or of the first N who finish, gives the
place of a user who is not there to another one. The sum then moves by up to twice clip_norm; and
who has taken that place is, by cap and separation, missing from later rounds, in which others stand
in, and so on: a user moves more rounds than the user's own. No factor covers that.

Source: Kairouz et al. 2021, "Practical and private (deep) learning without sampling or shuffling"
(zero-out adjacency).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from privacy.errors import PlanError
from privacy.sampling_scheme import SamplingScheme

if TYPE_CHECKING:
    from privacy.sampling_scheme import Ids, Participation, Rng


@dataclass(frozen=True, slots=True)
class Selected(SamplingScheme):
    """Separation and cap are what the selector keeps to; ``cohort_size`` is what it aims at."""

    name = "selected"
    title = "the selection of users"
    adjacency = "zero-out"
    is_drawn = False
    keeps_distance = True
    keeps_cap = True
    pattern = "separated"
    phrase = (
        "devices and a selector decide, so that no chance is accounted; two rounds of one are at "
        "least {b} apart{k}"
    )
    noted = (
        "Devices and a selector decide who takes part: no chance is accounted. A user is in {k} "
        "rounds, each two at least {b} apart, which the selector enforces. Who takes part when is "
        "taken as public."
    )
    assumed = (
        "none that is counted on. Devices and a selector decide who takes part. A {unit} is in at "
        "most {most} {step}s, each two at least {b} apart, and counts in full in each; a "
        "deployment must enforce that. Who is chosen must not depend on what comes of the data, "
        "such as losses; a {unit} whose update is late or lost sends nothing."
    )

    def draw(self, users: Participation, rng: Rng, round_index: int, groups: Ids | None) -> Ids:
        """Refuse: nothing is drawn."""
        raise PlanError(
            "under the scheme selected devices and a selector decide who takes part, so that no "
            "users can be drawn; simulate devices, or sample by poisson"
        )

    def sampling_probability(self, users: Participation) -> float:
        """1, whatever the cohort: no chance is accounted."""
        return 1.0


Scheme = Selected
