"""Question to ``privacy.plan.solving``: five numbers, one of them left out.

Guarantee: none of its own; a question that the accounting cannot answer is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from privacy.accountant import check_accountant, check_delta
from privacy.amplification import MechanismComposition, Participation
from privacy.calibration import check_epsilon, default_delta, epsilon_of_rounds
from privacy.errors import PrivacyError, check_count, check_noise_multiplier
from privacy.sampling_scheme import SamplingScheme, scheme_named

UNKNOWNS = ("epsilon", "noise_multiplier", "rounds", "cohort_size", "population_size")
LARGEST_ROUNDS = 10_000_000
LARGEST_POPULATION = 10**12


@dataclass(frozen=True, slots=True)
class Question:
    """Five numbers, of which exactly one is None and asked for.

    Attributes:
        epsilon: Budget, positive and finite.
        noise_multiplier: z, standard deviation (for Laplace noise: scale) of the noise on the sum
            in multiples of clip_norm, at least 0.
        rounds: Number of rounds, at least 1.
        cohort_size: Users of a round; expected under the Poisson schemes, exact otherwise.
        population_size: Users to draw from.
        delta: In (0, 1); None for population ** -1.1.
        scheme: How users are drawn.
        accountant: "rdp", "pld" or "prv".
    """

    epsilon: float | None
    noise_multiplier: float | None
    rounds: int | None
    cohort_size: int | None
    population_size: int | None
    delta: float | None = None
    scheme: SamplingScheme = field(default_factory=partial(scheme_named, "poisson"))
    accountant: str = "rdp"

    @property
    def unknown(self) -> str:
        """Name of the number that is asked for, the only one of the five that is missing."""
        missing = [name for name in UNKNOWNS if getattr(self, name) is None]
        if len(missing) != 1:
            raise PrivacyError(
                f"{len(missing)} of the five numbers are left out ({', '.join(missing) or 'none'}),"
                f" but exactly one can be solved for; give four of {', '.join(UNKNOWNS)}"
            )
        return missing[0]

    @property
    def participation(self) -> Participation:
        """Participation of users by this scheme, once population and cohort are known."""
        return Participation(self.scheme, known(self.population_size), known(self.cohort_size))

    def delta_or_default(self) -> float:
        """Delta; of the population, if it is not given."""
        return default_delta(known(self.population_size)) if self.delta is None else self.delta

    def answered(self, name: str, value: float) -> Question:
        """The question with one of the numbers filled in."""
        changes: dict[str, Any] = {name: value}
        return replace(self, **changes)

    def epsilon_at(self, composition: MechanismComposition, coarseness: float = 1.0) -> float:
        """The accountant's epsilon, once the other numbers are known."""
        return epsilon_of_rounds(
            self.participation,
            known(self.noise_multiplier),
            known(self.rounds),
            self.delta_or_default(),
            self.accountant,
            composition,
            coarseness,
        )

    def check(self) -> None:
        """Check what no search would notice: ranges, and that the accountant knows the scheme."""
        check_accountant(self.accountant, self.scheme)
        if self.delta is not None:
            check_delta(self.delta)
        if self.rounds is not None and self.rounds > LARGEST_ROUNDS:
            raise PrivacyError(
                f"rounds is {self.rounds}, but no more than {LARGEST_ROUNDS} are accounted; lower "
                "it"
            )
        if self.epsilon is not None:
            check_epsilon(self.epsilon)
        if self.noise_multiplier is not None:
            check_noise_multiplier(self.noise_multiplier)
        counts = {name: getattr(self, name) for name in UNKNOWNS[2:]}
        counts["separation"] = self.scheme.min_separation
        counts["max_participations"] = self.scheme.max_participations
        for name, count in counts.items():
            if count is not None:
                check_count(name, count)
        population = self.population_size
        if population is not None and population > LARGEST_POPULATION:
            raise PrivacyError(
                f"population_size is {population}, but at most {LARGEST_POPULATION:.0e} is searched"
            )


def known(value: Any) -> Any:
    """A number that is given, or was filled in before anybody asks."""
    assert value is not None
    return value
