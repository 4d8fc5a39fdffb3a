"""Sampling schemes: one class that sampler, accountant and statement ask.

Guarantee: a scheme draws, and says what its draws are worth, so that the two cannot disagree. Unit,
adjacency and proof are those of its module in ``privacy.schemes``.

A scheme is one module there: a frozen class, of which ``Scheme`` is the public name.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from privacy.errors import PrivacyError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ids = NDArray[np.int64]
    Rng = np.random.Generator

Adjacency = Literal["add-or-remove-one", "replace-one", "zero-out"]
Pattern = Literal["none", "groups", "separated"]

_PACKAGE = "privacy.schemes"
_LARGEST = 2**1023  # the last power of two that a float holds
# Messages name these first.
_USUAL = (
    "poisson",
    "truncated_poisson",
    "cyclic_poisson",
    "fixed_size",
    "full",
    "selected",
    "shuffled",
)


@dataclass(frozen=True, slots=True)
class SamplingScheme(ABC):
    """Law by which users are drawn, whatever their number.

    Attributes:
        min_separation: Two rounds of one user are at least so many apart; 1 for no distance.
        max_participations: Rounds that one user is in at most; None for no such cap.
        name: What configurations, ledgers and statements call the scheme.
        title: The scheme in a sentence.
        accountants: Those that know a Gaussian under it.
        adjacency: Adjacency under which it is accounted.
        sensitivity: By how many clip_norms the sum moves between neighbours.
        is_drawn: Whether ``draw`` decides who takes part.
        is_independent: Whether each user's part in a round is a secret coin of the user's own.
        takes_everybody: Whether the cohort is the population.
        keeps_distance: Whether ``min_separation`` may exceed 1.
        keeps_cap: Whether ``max_participations`` may be set.
        of_examples: Whether it draws the batches of central training, and no cohorts of users.
        pattern: In which rounds one user can be: "groups" (g, g + b, g + 2b, ... for one g),
            "separated" (any of which no two are closer than b), "none" (no such limit is kept).
        phrase: The scheme in a report: {q} is the probability, {b} the separation, {k} the cap.
        noted: What a reader of a statement should know; {b} is the separation, {k} the cap.
        assumed: What the accounting assumes, with the fields of
            ``privacy.statement.assumptions``.
    """

    min_separation: int = 1
    max_participations: int | None = None

    name: ClassVar[str]
    title: ClassVar[str]
    accountants: ClassVar[tuple[str, ...]] = ("rdp", "pld", "prv")
    adjacency: ClassVar[Adjacency] = "add-or-remove-one"
    sensitivity: ClassVar[float] = 1.0
    is_drawn: ClassVar[bool] = True
    is_independent: ClassVar[bool] = False
    takes_everybody: ClassVar[bool] = False
    keeps_distance: ClassVar[bool] = False
    keeps_cap: ClassVar[bool] = False
    of_examples: ClassVar[bool] = False
    pattern: ClassVar[Pattern] = "none"
    phrase: ClassVar[str]
    noted: ClassVar[str] = ""
    assumed: ClassVar[str]

    def assign(self, users: Participation, rng: Rng) -> Ids | None:
        """Draw what is drawn once for a whole run.

        Returns:
            Shape (population_size,), int64: each user's group; None if there are none.
        """
        return None

    @abstractmethod
    def draw(self, users: Participation, rng: Rng, round_index: int, groups: Ids | None) -> Ids:
        """Draw the users of a round.

        Args:
            users: Population and cohort.
            rng: The round's stream.
            round_index: The round, from 1.
            groups: What ``assign`` returned.

        Returns:
            Shape (realised cohort,), int64, ascending, none twice; may be empty.
        """

    def sampling_probability(self, users: Participation) -> float:
        """Probability that an eligible user takes part in a round: what is accounted of it."""
        return users.cohort_size * self.min_separation / users.population_size

    def sampled_event(self, users: Participation, event: Any) -> Any:
        """Event of one round, for an accountant.

        Args:
            users: Population and cohort.
            event: The ``dp_accounting.DpEvent`` of a round that a user is in for certain.
        """
        if not self.is_independent:
            return event
        from dp_accounting import dp_event

        return dp_event.PoissonSampledDpEvent(self.sampling_probability(users), event)

    def largest_cohort(self, users: Participation) -> int | None:
        """Most users of a round, where more are left out at random; None without such a cap."""
        return None

    def rounds_of_epoch(self, users: Participation) -> int:
        """Rounds in which the cohorts come to the population: expected passes are counted so."""
        return math.ceil(users.population_size / users.cohort_size)

    def most_participations(self, users: Participation, rounds: int) -> int:
        """Rounds of so many in which one user can take part at most.

        Args:
            users: Population and cohort.
            rounds: Number of rounds, at least 0.
        """
        apart = -(-rounds // self.min_separation)
        return apart if self.max_participations is None else min(self.max_participations, apart)

    def check(self, users: Participation) -> None:
        """Check that a cohort can be drawn from a population.

        Raises:
            PrivacyError: The sizes, the separation or the cap do not fit.
        """
        population_size, cohort_size = users.population_size, users.cohort_size
        if population_size < 1 or population_size != int(population_size):
            raise PrivacyError(
                f"population_size is {population_size!r}, but must be a whole number of users, at "
                "least 1"
            )
        if not (math.isfinite(cohort_size) and cohort_size > 0):
            raise PrivacyError(f"cohort_size is {cohort_size!r}, but must be positive and finite")
        if cohort_size > population_size:
            raise PrivacyError(
                f"cohort_size {cohort_size!r} is more than population_size {population_size}; a "
                "round cannot have more users than there are; lower the cohort or name the right "
                "population"
            )
        if self.takes_everybody and cohort_size != population_size:
            raise PrivacyError(
                f"under {self.name} participation the cohort is the population, but cohort_size is "
                f"{cohort_size!r} and population_size {population_size}; make them equal or sample "
                "by poisson"
            )
        self._check_separation(users)
        self._check_cap()

    def _check_separation(self, users: Participation) -> None:
        separation, population, cohort = (
            self.min_separation,
            users.population_size,
            users.cohort_size,
        )
        if separation < 1 or separation != int(separation):
            raise PrivacyError(
                f"separation is {separation!r}, but must be a whole number of rounds"
            )
        if separation != 1 and not self.keeps_distance:
            raise PrivacyError(
                f"separation is {separation} under {self.name} sampling, which keeps no distance "
                "between two rounds of one user; sample by cyclic_poisson, or set separation to 1"
            )
        if self.is_drawn and cohort * separation > population:
            raise PrivacyError(
                f"cohort_size {cohort:g} times separation {separation} is more than "
                f"population_size {population}: one of {separation} groups has "
                f"{population / separation:.6g} users on average; lower the cohort, or the "
                f"separation to {int(population // cohort)} or less"
            )

    def _check_cap(self) -> None:
        cap = self.max_participations
        if cap is None:
            return
        if cap < 1 or cap != int(cap):
            raise PrivacyError(
                f"max_participations is {cap!r}, but must be a whole number of rounds, at least 1, "
                "or left out for no cap"
            )
        if not self.keeps_cap:
            raise PrivacyError(
                f"max_participations is {cap} under {self.name} sampling, which does not keep "
                "users from coming more often: a user who may not come again would make who is "
                "drawn depend on the rounds before; leave it out, or account the scheme selected"
            )

    @property
    def note(self) -> str:
        """Note on the scheme for a reader of a statement; empty for none."""
        cap = f"at most {self.max_participations}"
        if self.max_participations is None:
            cap = "any number of" if self.min_separation == 1 else "as many as fit"
        return self.noted.format(b=self.min_separation, k=cap)


def draw_distinct(rng: Rng, population: int, size: int) -> Ids:
    """Draw so many of 0 .. population - 1, uniformly.

    Shape (size,), int64, ascending, none twice.
    """
    import numpy as np

    chosen = rng.choice(population, size=size, replace=False, shuffle=False)
    return np.sort(chosen.astype(np.int64, copy=False))


def check_size(name: str, size: float) -> None:
    """Refuse, by a PrivacyError, a number of users or rounds that no float holds."""
    if size > _LARGEST and size != math.inf:
        raise PrivacyError(f"{name} is larger than a float holds, about 9e307; lower it")


@dataclass(frozen=True, slots=True)
class Participation:
    """Participation of users: the sampler draws by it, and the accountant accounts it.

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
        check_size("population_size", self.population_size)
        check_size("cohort_size", self.cohort_size)
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
        """As the class, with the scheme by its name."""
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
        """Event of one round for an accountant, of the ``DpEvent`` of who is in it for certain."""
        return self.scheme.sampled_event(self, event)

    def most_participations(self, rounds: int) -> int:
        """Rounds of so many in which one user can take part at most."""
        return self.scheme.most_participations(self, rounds)


def scheme_names() -> tuple[str, ...]:
    """Names of all schemes, without importing them."""
    package = importlib.import_module(_PACKAGE)
    found = {module.name for module in pkgutil.iter_modules(package.__path__)}
    return (*_USUAL, *sorted(found - set(_USUAL)))


def scheme_type(name: str) -> type[SamplingScheme]:
    """The class of a scheme, whose module is imported."""
    names = scheme_names()
    if name not in names:
        raise PrivacyError(f"the sampling scheme is {name!r}, but must be one of {names}")
    module = importlib.import_module(f"{_PACKAGE}.{name}")
    return cast("type[SamplingScheme]", module.Scheme)


def scheme_named(
    name: str, min_separation: int = 1, max_participations: int | None = None
) -> SamplingScheme:
    """A scheme by its name; its arguments are checked with a population."""
    return scheme_type(name)(min_separation, max_participations)
