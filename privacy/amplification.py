"""What rounds are worth to an accountant, given how their users are drawn.

Guarantee: unit user (or example); the round's release is a Gaussian mechanism with multiplier z
on a sum that one unit changes by at most ``clip_norm`` (added, removed or zeroed out; twice that if
replaced). Probability, adjacency and proof are those of the scheme, a module in
``privacy.schemes``.

The scheme must be the one that the sampler draws by; accounting a fixed-size cohort as Poisson is
a claim about another algorithm. Both therefore take the same ``Participation``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from privacy.errors import PrivacyError
from privacy.sampling_scheme import Adjacency, SamplingScheme
from privacy.schemes import scheme_named


@dataclass(frozen=True, slots=True)
class Participation:
    """Who takes part when: what the sampler draws by, and the accountant accounts.

    Attributes:
        scheme: How users are drawn, how far apart and how often.
        population_size: Users to draw from.
        cohort_size: Users of a round; expected under the Poisson schemes, wanted under "selected",
            exact otherwise.

    Raises:
        PrivacyError: The sizes do not fit the scheme.
    """

    scheme: SamplingScheme
    population_size: int
    cohort_size: float

    def __post_init__(self) -> None:
        self.scheme.check(self)

    @classmethod
    def named(
        cls,
        scheme: str,
        population_size: int,
        cohort_size: float,
        min_separation: int = 1,
        max_participations: int | None = None,
    ) -> Participation:
        """As the class, with the scheme by its name.

        Raises:
            PrivacyError: The scheme is unknown, or the sizes do not fit it.
        """
        known = scheme_named(scheme, min_separation, max_participations)
        return cls(known, population_size, cohort_size)

    @property
    def min_separation(self) -> int:
        """Rounds that two of one user are apart at least."""
        return self.scheme.min_separation

    @property
    def max_participations(self) -> int | None:
        """Rounds that one user is in at most; None for no cap."""
        return self.scheme.max_participations

    @property
    def sampling_probability(self) -> float:
        """Probability that an eligible user takes part in a round: what is accounted of it."""
        return self.scheme.sampling_probability(self)

    @property
    def adjacency(self) -> Adjacency:
        """Adjacency under which the scheme is accounted."""
        return self.scheme.adjacency

    def sampled(self, event: Any) -> Any:
        """What one round is to an accountant, of the ``DpEvent`` of who is in it for certain."""
        return self.scheme.sampled_event(self, event)

    def most_participations(self, rounds: int) -> int:
        """Rounds of so many in which one user can take part at most."""
        return self.scheme.most_participations(rounds)


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


# What a mechanism's rounds compose to, of how users take part, the multiplier and the rounds.
MechanismComposition = Callable[[Participation, float, int], Composition]


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
        Gaussians as the scheme samples them: one for each round that a user can be in.

    Raises:
        PrivacyError: The multiplier or the rounds are not allowed.
    """
    check_composition_numbers(noise_multiplier, rounds)
    from dp_accounting import dp_event

    plain = dp_event.GaussianDpEvent(noise_multiplier / participation.scheme.sensitivity)
    count = participation.most_participations(int(rounds))
    return Composition(participation.sampled(plain), count, participation.adjacency)
