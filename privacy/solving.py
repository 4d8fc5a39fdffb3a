"""Any one of epsilon, noise, rounds, cohort and population, given the other four.

Guarantee: at the answer, ``compose_epsilon`` of what the answer composes to is at most ``epsilon``
(for the unknown epsilon: it is ``epsilon``), because the last thing that a search does is keep a
point at which that was checked; and where ``Solution.beyond`` is set, it was checked there too, and
is more than ``epsilon``. Unit user; adjacency and sampling are those of ``privacy.amplification``.

What rises and what falls, with the other numbers and delta held:

- rounds: epsilon never falls with a round more, since a part of a release is no more than all of
  it. Asked for is the largest number. (With a cap on a user's rounds it may not rise either, and
  then there is none.)
- noise multiplier: epsilon never rises with it, since noise on top is post-processing. Asked for
  is the smallest, which disturbs the training least.
- cohort, at one noise multiplier: epsilon never falls with a larger one. A user takes part with a
  higher probability, and whoever takes part with probability q is a part q / q' of those who do
  with q'. Asked for is the largest, whose mean has the least noise.
- population: for the same reason epsilon never rises with a larger one. Asked for is the smallest,
  the fewest users that a deployment must have. The default delta, population ** -1.1, falls as
  the population grows, and so each population is tried at its own; that every larger one fits too
  is then true at the answer's delta.

An accountant's bound may waver where its grid changes; then an answer still fits and the next one
still does not, but another crossing may exist.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from privacy.accountant import (
    LARGEST_EPSILON,
    check_accountant,
    check_composition,
    check_delta,
    compose_epsilon,
)
from privacy.amplification import Composition, Participation, sampled_gaussian
from privacy.calibration import calibrate_noise_multiplier, default_delta, max_rounds
from privacy.errors import PlanError, PrivacyError
from privacy.integer_search import last_within

# What a mechanism's rounds compose to, of how users take part, the multiplier and the rounds.
MechanismComposition = Callable[[Participation, float, int], Composition]

UNKNOWNS = ("epsilon", "noise_multiplier", "rounds", "cohort_size", "population_size")
LARGEST_ROUNDS = 10_000_000
LARGEST_POPULATION = 10**12
_USUAL_ROUNDS = 20_000
# Less noise than the answer by this part does not fit any more.
_NEXT_NOISE = 1.0 - 1e-4
# A search by a slow accountant starts from the answer on a grid this much coarser.
_COARSE = 10.0

_RULES = {
    "epsilon": "the accountant's upper bound at these settings; nothing was searched",
    "noise_multiplier": "the smallest that fits: more noise never raises epsilon, and less noise "
    "disturbs the training less",
    "rounds": "the most that fit: a round more never lowers epsilon",
    "cohort_size": "the largest that fits: at one noise multiplier a larger cohort never lowers "
    "epsilon, because a user takes part more often, and its mean has less noise",
    "population_size": "the smallest that fits: in a larger population a user takes part less "
    "often, which at this delta never raises epsilon",
}


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
        scheme: "poisson", "fixed_size", "full", "cyclic_poisson" or "selected".
        accountant: "rdp", "pld" or "prv".
        separation: As ``Participation`` has it.
        max_participations: As ``Participation`` has it.
    """

    epsilon: float | None
    noise_multiplier: float | None
    rounds: int | None
    cohort_size: int | None
    population_size: int | None
    delta: float | None = None
    scheme: str = "poisson"
    accountant: str = "rdp"
    separation: int = 1
    max_participations: int | None = None

    @property
    def unknown(self) -> str:
        """Name of the number that is asked for.

        Raises:
            PrivacyError: None of the five is missing, or more than one.
        """
        missing = [name for name in UNKNOWNS if getattr(self, name) is None]
        if len(missing) != 1:
            raise PrivacyError(
                f"{len(missing)} of the five numbers are left out ({', '.join(missing) or 'none'}),"
                f" but exactly one can be solved for; give four of {', '.join(UNKNOWNS)}"
            )
        return missing[0]


@dataclass(frozen=True, slots=True)
class Solution:
    """The five numbers, and what they rest on.

    Attributes:
        unknown: Which of them was asked for.
        value: The answer.
        noise_multiplier: z.
        rounds: Number of rounds.
        participation: Population, cohort and how users are drawn.
        delta: In (0, 1).
        epsilon: The accountant's at the answer; infinite without a guarantee.
        beyond: The next value (a round, a user of the cohort more; a user of the population, a
            ten-thousandth of the noise less) and its epsilon, which is over the budget; None
            where nothing was searched, or the population bounds the answer and not the budget.
        rule: Which of the values that fit it is, and why, in words.
    """

    unknown: str
    value: float
    noise_multiplier: float
    rounds: int
    participation: Participation
    delta: float
    epsilon: float
    beyond: tuple[float, float] | None
    rule: str


def solve(question: Question, composition: MechanismComposition = sampled_gaussian) -> Solution:
    """Find the number that is missing.

    Args:
        question: Four of five numbers, and how users are drawn and accounted.
        composition: What a mechanism's rounds compose to; the Gaussian mechanism's, whose noise is
            drawn anew in each round, if nothing is said.

    Returns:
        The answer, checked by the accountant.

    Raises:
        PrivacyError: A number is out of its range, no value fits the budget, or every value does
            and none is the largest (rounds) or smallest (noise).
        PlanError: The accountant does not know the mechanism under the sampling scheme.
    """
    unknown = question.unknown
    _check(question)
    searches: dict[str, Callable[[Question, MechanismComposition], float]] = {
        "noise_multiplier": _solve_noise,
        "rounds": _solve_rounds,
        "cohort_size": _solve_cohort,
        "population_size": _solve_population,
    }
    full = question
    if unknown != "epsilon":
        full = _with(question, unknown, searches[unknown](question, composition))
    epsilon = _epsilon(full, composition)
    return Solution(
        unknown=unknown,
        value=epsilon if unknown == "epsilon" else getattr(full, unknown),
        noise_multiplier=_given(full.noise_multiplier),
        rounds=_given(full.rounds),
        participation=_participation(full),
        delta=_delta(full),
        epsilon=epsilon,
        beyond=_beyond(full, unknown, composition),
        rule=_rule(full, unknown),
    )


def _solve_noise(question: Question, composition: MechanismComposition) -> float:
    participation = _participation(question)
    return calibrate_noise_multiplier(
        _given(question.epsilon),
        _delta(question),
        question.scheme,
        participation.population_size,
        participation.cohort_size,
        _given(question.rounds),
        question.accountant,
        separation=question.separation,
        max_participations=question.max_participations,
        composition=partial(composition, participation),
    )


def _solve_rounds(question: Question, composition: MechanismComposition) -> int:
    participation, rounds = _participation(question), 0
    # Few first: mechanisms whose noise is correlated go through all the rounds that are tried.
    for limit in (_USUAL_ROUNDS, LARGEST_ROUNDS):
        rounds = max_rounds(
            _given(question.epsilon),
            _delta(question),
            question.scheme,
            participation.population_size,
            participation.cohort_size,
            _given(question.noise_multiplier),
            question.accountant,
            limit=limit,
            separation=question.separation,
            max_participations=question.max_participations,
            composition=partial(composition, participation),
        )
        if rounds < limit:
            break
    if rounds == 0:
        raise PrivacyError(
            f"no number of rounds fits: one round already has epsilon "
            f"{_epsilon(replace(question, rounds=1), composition):.4g}, more than "
            f"{question.epsilon:g}; raise epsilon or noise_multiplier, or lower the cohort"
        )
    if rounds == LARGEST_ROUNDS:
        raise PrivacyError(
            f"every number of rounds up to {LARGEST_ROUNDS} fits epsilon {question.epsilon:g}, so "
            "none is the largest; lower noise_multiplier or epsilon, or raise the cohort (where "
            "users are selected: max_participations)"
        )
    return rounds


def _solve_cohort(question: Question, composition: MechanismComposition) -> int:
    _refuse_unsampled(question)
    largest, population = _largest_cohort(question), int(_given(question.population_size))
    if largest < 1:
        raise PrivacyError(
            f"separation is {question.separation}, more than population_size {population}: not "
            "even one user could be drawn from a group; lower the separation"
        )

    def at(name: str, coarseness: float) -> Callable[[int], float]:
        return lambda cohort: _epsilon(
            replace(question, cohort_size=cohort, accountant=name), composition, coarseness
        )

    guess = int(population / _users_for_one(replace(question, cohort_size=1)))
    cohort = _staged(question, composition, at, guess, good=0, bad=largest + 1)
    if cohort == 0:
        raise PrivacyError(
            f"no cohort fits: at noise_multiplier {question.noise_multiplier:g} even one user a "
            f"round has epsilon {at(question.accountant, 1.0)(1):.4g}, more than "
            f"{question.epsilon:g}; raise epsilon or noise_multiplier, or lower the rounds"
        )
    return cohort


def _solve_population(question: Question, composition: MechanismComposition) -> int:
    _refuse_unsampled(question)
    smallest = _smallest_population(question)

    def at(name: str, coarseness: float) -> Callable[[int], float]:
        return lambda population: _epsilon(
            replace(question, population_size=population, accountant=name), composition, coarseness
        )

    guess = int(_given(question.cohort_size) * _users_for_one(question))
    population = _staged(
        question, composition, at, guess, good=LARGEST_POPULATION + 1, bad=smallest - 1
    )
    if population > LARGEST_POPULATION:
        reached = at(question.accountant, 1.0)(LARGEST_POPULATION)
        raise PrivacyError(
            f"no population up to {LARGEST_POPULATION:.0e} fits: there epsilon is still "
            f"{reached:.4g}, more than {question.epsilon:g}; raise epsilon or noise_multiplier, or "
            f"lower the rounds{', or use the accountant pld' * (question.accountant == 'rdp')}"
        )
    return population


def _staged(
    question: Question,
    composition: MechanismComposition,
    at: Callable[[str, float], Callable[[int], float]],
    guess: int,
    good: int,
    bad: int,
) -> int:
    """Search by the quick accountants first; each starts where the one before it ended."""
    target, stages = _given(question.epsilon), [(question.accountant, 1.0)]
    anybody = max(good, bad) - 1
    name = "cohort_size" if question.cohort_size is None else "population_size"
    known = _participation(_with(question, name, anybody))
    composed = composition(known, _given(question.noise_multiplier), _given(question.rounds))
    check_composition(composed, question.accountant)
    if question.accountant != "rdp" and _knows("rdp", composed):
        stages = [("rdp", 1.0), ("pld", _COARSE), *stages]
    for accountant, coarseness in stages:
        guess = last_within(at(accountant, coarseness), target, guess, good, bad)
    return guess


def _users_for_one(question: Question) -> float:
    """Users that there should be for each of a cohort, by a rule of thumb: to begin a search."""
    delta = 1e-6 if question.delta is None else question.delta
    rounds, noise = _given(question.rounds), _given(question.noise_multiplier)
    users: float = math.sqrt(2.0 * rounds * math.log(1.0 / delta)) / (
        max(noise, 1e-3) * _given(question.epsilon)
    )
    return min(max(users, 1.0), 1e6)


def _beyond(
    full: Question, unknown: str, composition: MechanismComposition
) -> tuple[float, float] | None:
    if unknown == "epsilon" or _at_the_end(full, unknown):
        return None
    value: float = {
        "noise_multiplier": _given(full.noise_multiplier) * _NEXT_NOISE,
        "rounds": _given(full.rounds) + 1,
        "cohort_size": _given(full.cohort_size) + 1,
        "population_size": _given(full.population_size) - 1,
    }[unknown]
    return value, _epsilon(_with(full, unknown, value), composition)


def _smallest_population(question: Question) -> int:
    # One user has no default delta.
    least = 2 if question.delta is None else 1
    return max(int(_given(question.cohort_size)) * question.separation, least)


def _largest_cohort(question: Question) -> int:
    return int(_given(question.population_size)) // question.separation


def _at_the_end(full: Question, unknown: str) -> bool:
    """Whether the answer is bounded by who there is, and not by the budget."""
    if unknown == "cohort_size":
        return bool(full.cohort_size == _largest_cohort(full))
    if unknown == "population_size":
        return bool(full.population_size == _smallest_population(full))
    return False


def _rule(full: Question, unknown: str) -> str:
    if not _at_the_end(full, unknown):
        return _RULES[unknown]
    groups = f" in {full.separation} groups" if full.separation > 1 else ""
    if unknown == "cohort_size":
        return (
            f"as many as a population of {full.population_size}{groups} has: every cohort fits "
            "this epsilon"
        )
    return f"as few as a cohort of {full.cohort_size}{groups} can be drawn from: every one fits"


def _epsilon(
    question: Question, composition: MechanismComposition, coarseness: float = 1.0
) -> float:
    composed = composition(
        _participation(question), _given(question.noise_multiplier), _given(question.rounds)
    )
    return compose_epsilon([composed], _delta(question), question.accountant, coarseness)


def _participation(question: Question) -> Participation:
    return Participation(
        question.scheme,
        _given(question.population_size),
        _given(question.cohort_size),
        question.separation,
        question.max_participations,
    )


def _delta(question: Question) -> float:
    if question.delta is not None:
        return question.delta
    return default_delta(_given(question.population_size))


def _knows(accountant: str, composed: Composition) -> bool:
    try:
        check_composition(composed, accountant)
    except PlanError:
        return False
    return True


def _with(question: Question, name: str, value: float) -> Question:
    changes: dict[str, Any] = {name: value}
    return replace(question, **changes)


def _given(value: Any) -> Any:
    assert value is not None  # the one unknown is filled in before anybody asks
    return value


def _refuse_unsampled(question: Question) -> None:
    if question.scheme == "full":
        raise PlanError(
            "under full participation the cohort is the population, and how many there are does "
            "not change epsilon; solve for epsilon, noise_multiplier or rounds, or sample by "
            "poisson"
        )
    if question.scheme == "selected":
        raise PlanError(
            "where users are selected no chance is accounted, so that neither cohort nor "
            "population changes epsilon; solve for epsilon, noise_multiplier or rounds"
        )


def _check(question: Question) -> None:
    """Check what no search would notice.

    Raises:
        PrivacyError: A number is out of its range.
    """
    check_accountant(question.accountant, question.scheme)
    if question.delta is not None:
        check_delta(question.delta)
    if question.rounds is not None and question.rounds > LARGEST_ROUNDS:
        raise PrivacyError(
            f"rounds is {question.rounds}, but no more than {LARGEST_ROUNDS} are accounted; lower "
            "it"
        )
    epsilon, noise = question.epsilon, question.noise_multiplier
    if epsilon is not None and not 0.0 < epsilon <= LARGEST_EPSILON:
        raise PrivacyError(
            f"epsilon is {epsilon!r}, but must be positive and at most {LARGEST_EPSILON:g}, beyond "
            "which nothing is promised; usual budgets are from 0.1 to 10"
        )
    if noise is not None and not (math.isfinite(noise) and noise >= 0.0):
        raise PrivacyError(f"noise_multiplier is {noise!r}, but must be finite and at least 0")
    counts = ("rounds", "cohort_size", "population_size", "separation", "max_participations")
    for name in counts:
        count = getattr(question, name)
        if count is not None and (count < 1 or count != int(count)):
            raise PrivacyError(f"{name} is {count!r}, but must be a whole number, at least 1")
    population = question.population_size
    if population is not None and population > LARGEST_POPULATION:
        raise PrivacyError(
            f"population_size is {population}, but at most {LARGEST_POPULATION:.0e} is searched"
        )
