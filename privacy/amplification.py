"""Composition of rounds for an accountant, given how their users are drawn.

Guarantee: unit user (or example); the round's release is a Gaussian mechanism with multiplier z
on a sum that one unit changes by at most ``clip_norm`` (added, removed or zeroed out; twice that if
replaced). Probability, adjacency and proof are those of the scheme, a module in
``privacy.schemes``.

The scheme must be the one that the sampler draws by; accounting a fixed-size cohort as Poisson is
a claim about another algorithm. Both therefore take the same ``Participation``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from privacy.errors import check_count, check_noise_multiplier
from privacy.sampling_scheme import Participation as Participation
from privacy.sampling_scheme import check_size


@dataclass(frozen=True, slots=True)
class Composition:
    """Events that an accountant composes: so many equal ones, under an adjacency.

    Attributes:
        event: A ``dp_accounting.DpEvent``.
        count: How often it is composed, at least 0.
        adjacency: "add-or-remove-one", "replace-one" or "zero-out".
        beside: Further events, each composed once whatever the count, such as statistics of the
            data that are released before the first round.
    """

    event: Any
    count: int
    adjacency: str
    beside: tuple[Any, ...] = ()

    @property
    def parts(self) -> tuple[tuple[Any, int], ...]:
        """All events, and how often each is composed."""
        return ((self.event, self.count), *((event, 1) for event in self.beside))


# What a mechanism's rounds compose to, of how users take part, the multiplier and the rounds.
MechanismComposition = Callable[[Participation, float, int], Composition]


def check_composition_numbers(noise_multiplier: float, rounds: int) -> None:
    """Check a noise multiplier, finite and at least 0, and whole rounds, at least 0."""
    check_noise_multiplier(noise_multiplier)
    check_size("rounds", rounds)
    check_count("rounds", rounds, least=0)


def sampled_gaussian(
    participation: Participation, noise_multiplier: float, rounds: int
) -> Composition:
    """Compose rounds of a Gaussian mechanism whose noise is drawn anew in each.

    Gaussians as the scheme samples them: one for each round that a user can be in.
    """
    check_composition_numbers(noise_multiplier, rounds)
    from dp_accounting import dp_event

    plain = dp_event.GaussianDpEvent(noise_multiplier / participation.scheme.sensitivity)
    count = participation.most_participations(int(rounds))
    return Composition(participation.sampled(plain), count, participation.adjacency)


def after_gaussians(noise_multipliers: tuple[float, ...]) -> MechanismComposition:
    """Compose rounds of a Gaussian mechanism with Gaussians that were released before them.

    As ``sampled_gaussian``, with those releases beside, whatever the rounds. Each has a multiplier:
    the standard deviation of its noise in multiples of the most that one unit moves it under the
    scheme's adjacency; positive.
    """

    def composition(
        participation: Participation, noise_multiplier: float, rounds: int
    ) -> Composition:
        from dp_accounting import dp_event

        composed = sampled_gaussian(participation, noise_multiplier, rounds)
        beside = tuple(dp_event.GaussianDpEvent(noise) for noise in noise_multipliers)
        return replace(composed, beside=beside)

    return composition
