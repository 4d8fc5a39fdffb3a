"""What one round is worth to an accountant, given how its users are drawn.

Guarantee: unit user (or example); the round's release is a Gaussian mechanism with multiplier z
on a sum that one unit changes by at most ``clip_norm`` (added, removed or zeroed out).

- poisson: each user takes part independently with probability q = cohort / population; adjacency
  add-or-remove-one; sensitivity clip_norm.
- fixed_size: a uniformly random set of exactly ``cohort_size`` users, none twice; the population
  size is public, so adjacency is replace-one, under which the sum moves by twice clip_norm and
  the multiplier is z / 2.
- full: every user in every round, no amplification; adjacency add-or-remove-one.
- cyclic_poisson: each user belongs to one of ``separation`` groups, drawn once, uniformly and
  independent of all other users; in round t only group (t - 1) mod separation is eligible, each of
  its users taking part independently with probability q_g = cohort * separation / population.
  Adjacency add-or-remove-one; sensitivity clip_norm. Whatever a user's group, the user can be in at
  most ceil(rounds / separation) rounds, in each with probability q_g, and in the others never.
- selected: devices, a clock and a selector decide who takes part, and no chance is accounted. What
  is asked of them: no user is in more than ``max_participations`` rounds, nor in two that are less
  than ``separation`` apart, so that a user is in at most k = min(max_participations,
  ceil(rounds / separation)) of them, each in full. Adjacency *zero-out*: one user's device sends
  nothing, in every round that the user is in, while who is in which round stays the same. The sum
  of each of those rounds moves by at most clip_norm, whichever rounds they are, and that of no
  other. So the bound holds for every pattern of participation within the cap, and with the pattern
  made public, if it was not made from the users' data.

Why selected is not add-or-remove: a cohort of a fixed number, or of the first N who finish, gives
the place of a user who is not there to another one. The sum then moves by up to twice clip_norm;
and who has taken that place is, by cap and separation, missing from later rounds, in which others
stand in, and so on: a user moves more rounds than the user's own. No factor covers that.

The scheme must be the one that the sampler draws by; accounting a fixed-size cohort as Poisson is
a claim about another algorithm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from privacy.errors import PrivacyError

Scheme = Literal["poisson", "fixed_size", "full", "cyclic_poisson", "selected"]
Adjacency = Literal["add-or-remove-one", "replace-one", "zero-out"]

SCHEMES: tuple[str, ...] = get_args(Scheme)
ADJACENCY: dict[str, Adjacency] = {
    "poisson": "add-or-remove-one",
    "fixed_size": "replace-one",
    "full": "add-or-remove-one",
    "cyclic_poisson": "add-or-remove-one",
    "selected": "zero-out",
}
# Under which a user's part in a round is a coin of the user's own, tossed in secret.
SAMPLED: tuple[str, ...] = ("poisson", "cyclic_poisson")


@dataclass(frozen=True, slots=True)
class Participation:
    """Who takes part when: what the sampler draws by, and the accountant accounts.

    Attributes:
        scheme: "poisson", "fixed_size", "full", "cyclic_poisson" or "selected".
        population_size: Users to draw from.
        cohort_size: Users of a round; expected under the Poisson schemes, wanted under "selected",
            exact otherwise.
        separation: Two rounds of one user are at least so many apart: by the groups of
            "cyclic_poisson", or as the selector of "selected" enforces; 1 under the other schemes.
        max_participations: Rounds that one user is in at most, as the selector of "selected"
            enforces; None for no such cap, and under the other schemes.

    Raises:
        PrivacyError: The scheme is unknown, or the sizes do not fit.
    """

    scheme: str
    population_size: int
    cohort_size: float
    separation: int = 1
    max_participations: int | None = None

    def __post_init__(self) -> None:
        check_population(self.scheme, self.population_size, self.cohort_size, self.separation)
        _check_cap(self.scheme, self.max_participations)

    @property
    def sampling_probability(self) -> float:
        """Probability that an eligible user takes part in a round: what is accounted of it.

        Under "selected" it is 1, whatever the cohort: no chance is accounted.
        """
        if self.scheme == "selected":
            return 1.0
        return self.cohort_size * self.separation / self.population_size

    @property
    def adjacency(self) -> Adjacency:
        """Adjacency under which the scheme is accounted."""
        return ADJACENCY[self.scheme]

    def most_participations(self, rounds: int) -> int:
        """Rounds of so many in which one user can take part at most.

        Args:
            rounds: Number of rounds, at least 0.
        """
        apart = -(-rounds // self.separation)
        return apart if self.max_participations is None else min(self.max_participations, apart)


@dataclass(frozen=True, slots=True)
class Composition:
    """What an accountant composes: so many equal events, under an adjacency.

    Attributes:
        event: A ``dp_accounting.DpEvent``.
        count: How often it is composed, at least 0.
        adjacency: "add-or-remove-one", "replace-one" or "zero-out".
    """

    event: Any
    count: int
    adjacency: str


def check_scheme(scheme: str) -> None:
    """Check the name of a sampling scheme.

    Raises:
        PrivacyError: It is unknown.
    """
    if scheme not in SCHEMES:
        raise PrivacyError(f"the sampling scheme is {scheme!r}, but must be one of {SCHEMES}")


def check_population(
    scheme: str, population_size: int, cohort_size: float, separation: int = 1
) -> None:
    """Check that a cohort can be drawn from a population by a scheme.

    Args:
        scheme: "poisson", "fixed_size", "full", "cyclic_poisson" or "selected".
        population_size: Users to draw from.
        cohort_size: Users of a round; expected under the Poisson schemes, wanted under "selected",
            exact otherwise.
        separation: As ``Participation`` has it.

    Raises:
        PrivacyError: The sizes do not fit.
    """
    check_scheme(scheme)
    if population_size < 1 or population_size != int(population_size):
        raise PrivacyError(
            f"population_size is {population_size!r}, but must be a whole number of users, at "
            "least 1"
        )
    if not (math.isfinite(cohort_size) and cohort_size > 0):
        raise PrivacyError(f"cohort_size is {cohort_size!r}, but must be positive and finite")
    if cohort_size > population_size:
        raise PrivacyError(
            f"cohort_size {cohort_size!r} is more than population_size {population_size}; a round "
            "cannot have more users than there are; lower the cohort or name the right population"
        )
    if scheme == "full" and cohort_size != population_size:
        raise PrivacyError(
            f"under full participation the cohort is the population, but cohort_size is "
            f"{cohort_size!r} and population_size {population_size}; make them equal or sample by "
            "poisson"
        )
    if scheme == "fixed_size" and cohort_size != int(cohort_size):
        raise PrivacyError(
            f"a fixed-size cohort must be a whole number of users, not {cohort_size!r}"
        )
    _check_separation(scheme, population_size, cohort_size, separation)


def _check_separation(
    scheme: str, population_size: int, cohort_size: float, separation: int
) -> None:
    if separation < 1 or separation != int(separation):
        raise PrivacyError(f"separation is {separation!r}, but must be a whole number of rounds")
    if scheme == "selected":
        return
    if scheme != "cyclic_poisson":
        if separation != 1:
            raise PrivacyError(
                f"separation is {separation} under {scheme} sampling, which keeps no distance "
                "between two rounds of one user; sample by cyclic_poisson, or set separation to 1"
            )
        return
    if cohort_size * separation > population_size:
        raise PrivacyError(
            f"cohort_size {cohort_size:g} times separation {separation} is more than "
            f"population_size {population_size}: one of {separation} groups has "
            f"{population_size / separation:.6g} users on average; lower the cohort, or the "
            f"separation to {int(population_size // cohort_size)} or less"
        )


def _check_cap(scheme: str, max_participations: int | None) -> None:
    if max_participations is None:
        return
    if max_participations < 1 or max_participations != int(max_participations):
        raise PrivacyError(
            f"max_participations is {max_participations!r}, but must be a whole number of rounds, "
            "at least 1, or left out for no cap"
        )
    if scheme != "selected":
        raise PrivacyError(
            f"max_participations is {max_participations} under {scheme} sampling, which does not "
            "keep users from coming more often: a user who may not come again would make who is "
            "drawn depend on the rounds before; leave it out, or account the scheme selected"
        )


def check_composition_numbers(noise_multiplier: float, rounds: int) -> None:
    """Check the numbers that a composition is asked for.

    Args:
        noise_multiplier: Finite, at least 0.
        rounds: A whole number, at least 0.

    Raises:
        PrivacyError: One is out of its range.
    """
    if not (math.isfinite(noise_multiplier) and noise_multiplier >= 0):
        raise PrivacyError(
            f"noise_multiplier is {noise_multiplier!r}, but must be finite and at least 0"
        )
    if rounds < 0 or rounds != int(rounds):
        raise PrivacyError(f"rounds is {rounds!r}, but must be a whole number, at least 0")


def sampled_gaussian(
    participation: Participation, noise_multiplier: float, rounds: int
) -> Composition:
    """Compose rounds of a Gaussian mechanism whose noise is drawn anew in each.

    Args:
        participation: How users are drawn.
        noise_multiplier: z, standard deviation of the noise in multiples of clip_norm, at least 0.
        rounds: Number of rounds, at least 0.

    Returns:
        Sampled Gaussians: a round each, or, under "cyclic_poisson", each round for which a user
        can be eligible. Under "full" and "selected", plain ones: each round that a user can be in.

    Raises:
        PrivacyError: The multiplier or the rounds are not allowed.

    Source: Abadi et al. 2016 (poisson); Wang et al. 2019, theorem 27 (fixed_size); Choquette-Choo
    et al. 2023, "(Amplified) banded matrix factorization", theorem 4 with one band
    (cyclic_poisson); Kairouz et al. 2021, "Practical and private (deep) learning without sampling
    or shuffling" (zero-out adjacency, of selected).
    """
    check_composition_numbers(noise_multiplier, rounds)
    from dp_accounting import dp_event

    count = participation.most_participations(int(rounds))
    event: Any
    if participation.scheme == "fixed_size":
        event = dp_event.SampledWithoutReplacementDpEvent(
            int(participation.population_size),
            int(participation.cohort_size),
            dp_event.GaussianDpEvent(noise_multiplier / 2.0),
        )
    elif participation.scheme in SAMPLED:
        event = dp_event.PoissonSampledDpEvent(
            participation.sampling_probability, dp_event.GaussianDpEvent(noise_multiplier)
        )
    else:
        event = dp_event.GaussianDpEvent(noise_multiplier)
    return Composition(event, count, participation.adjacency)


def round_event(
    scheme: str, noise_multiplier: float, population_size: int, cohort_size: float
) -> tuple[Any, Adjacency]:
    """Describe one round of the Gaussian mechanism to an accountant.

    Args:
        scheme: How users are drawn: "poisson", "fixed_size" or "full".
        noise_multiplier: z, standard deviation of the noise in multiples of clip_norm, at least 0.
        population_size: Users to draw from.
        cohort_size: Users of a round; expected under "poisson", exact otherwise.

    Returns:
        A ``dp_accounting.DpEvent`` and the adjacency under which it holds.

    Raises:
        PrivacyError: The scheme is unknown, or the sizes or the multiplier are not allowed.
    """
    participation = Participation(scheme, population_size, cohort_size)
    composed = sampled_gaussian(participation, noise_multiplier, 1)
    return composed.event, participation.adjacency
