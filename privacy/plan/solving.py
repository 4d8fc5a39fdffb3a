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

from privacy.accountant import check_composition
from privacy.amplification import MechanismComposition, Participation, sampled_gaussian
from privacy.calibration import calibrate_noise_multiplier, max_rounds
from privacy.errors import PlanError, PrivacyError
from privacy.plan.question import LARGEST_POPULATION, LARGEST_ROUNDS, Question, known
from privacy.search import last_within, search_in_stages

_USUAL_ROUNDS = 20_000
# Less noise than the answer by this part does not fit any more.
_NEXT_NOISE = 1.0 - 1e-4

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
class Solution:
    """The five numbers, and what they rest on.

    Attributes:
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
    """Find the number that is missing; the answer was checked by the accountant.

    The composition is the Gaussian mechanism's, whose noise is drawn anew in each round, if nothing
    is said. A PrivacyError says that no value fits the budget, or every value does and none is the
    largest (rounds) or smallest (noise).
    """
    unknown = question.unknown
    question.check()
    searches: dict[str, Callable[[Question, MechanismComposition], float]] = {
        "noise_multiplier": _solve_noise,
        "rounds": _solve_rounds,
        "cohort_size": _solve_cohort,
        "population_size": _solve_population,
    }
    full = question
    if unknown != "epsilon":
        full = question.answered(unknown, searches[unknown](question, composition))
    epsilon = full.epsilon_at(composition)
    return Solution(
        unknown=unknown,
        value=epsilon if unknown == "epsilon" else getattr(full, unknown),
        noise_multiplier=known(full.noise_multiplier),
        rounds=known(full.rounds),
        participation=full.participation,
        delta=full.delta_or_default(),
        epsilon=epsilon,
        beyond=_beyond(full, unknown, composition),
        rule=_rule(full, unknown),
    )


def _solve_noise(question: Question, composition: MechanismComposition) -> float:
    rounds = known(question.rounds)
    return calibrate_noise_multiplier(*_budget(question), rounds, question.accountant, composition)


def _solve_rounds(question: Question, composition: MechanismComposition) -> int:
    noise, accountant, rounds = known(question.noise_multiplier), question.accountant, 0
    # Few first: mechanisms whose noise is correlated go through all the rounds that are tried.
    for limit in (_USUAL_ROUNDS, LARGEST_ROUNDS):
        rounds = max_rounds(*_budget(question), noise, accountant, limit, composition)
        if rounds < limit:
            break
    if rounds == 0:
        raise PrivacyError(
            f"no number of rounds fits: one round already has epsilon "
            f"{replace(question, rounds=1).epsilon_at(composition):.4g}, more than "
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
    largest, population = _largest_cohort(question), int(known(question.population_size))
    if largest < 1:
        raise PrivacyError(
            f"separation is {question.scheme.min_separation}, more than population_size "
            f"{population}: not even one user could be drawn from a group; lower the separation"
        )
    guess = int(population / _users_for_one(replace(question, cohort_size=1)))
    cohort = _search_users(question, composition, "cohort_size", guess, good=0, bad=largest + 1)
    if cohort == 0:
        reached = replace(question, cohort_size=1).epsilon_at(composition)
        raise PrivacyError(
            f"no cohort fits: at noise_multiplier {question.noise_multiplier:g} even one user a "
            f"round has epsilon {reached:.4g}, more than {question.epsilon:g}; raise epsilon or "
            "noise_multiplier, or lower the rounds"
        )
    return cohort


def _solve_population(question: Question, composition: MechanismComposition) -> int:
    _refuse_unsampled(question)
    good, bad = LARGEST_POPULATION + 1, _smallest_population(question) - 1
    guess = int(known(question.cohort_size) * _users_for_one(question))
    population = _search_users(question, composition, "population_size", guess, good, bad)
    if population > LARGEST_POPULATION:
        reached = replace(question, population_size=LARGEST_POPULATION).epsilon_at(composition)
        raise PrivacyError(
            f"no population up to {LARGEST_POPULATION:.0e} fits: there epsilon is still "
            f"{reached:.4g}, more than {question.epsilon:g}; raise epsilon or noise_multiplier, or "
            f"lower the rounds{', or use the accountant pld' * (question.accountant == 'rdp')}"
        )
    return population


def _search_users(
    question: Question,
    composition: MechanismComposition,
    name: str,
    guess: int,
    good: int,
    bad: int,
) -> int:
    """Find how many users there may be, cohort or population, between two ends."""
    anybody = question.answered(name, max(good, bad) - 1).participation
    composed = composition(anybody, known(question.noise_multiplier), known(question.rounds))
    check_composition(composed, question.accountant)

    def search(accountant: str, coarseness: float, start: int) -> int:
        asked = replace(question, accountant=accountant)

        def epsilon_of(users: int) -> float:
            return asked.answered(name, users).epsilon_at(composition, coarseness)

        return last_within(epsilon_of, known(question.epsilon), start, good, bad)

    return search_in_stages(search, guess, question.accountant, composed)


def _users_for_one(question: Question) -> float:
    """Users that there should be for each of a cohort, by a rule of thumb: to begin a search."""
    delta = 1e-6 if question.delta is None else question.delta
    rounds, noise = known(question.rounds), known(question.noise_multiplier)
    users: float = math.sqrt(2.0 * rounds * math.log(1.0 / delta)) / (
        max(noise, 1e-3) * known(question.epsilon)
    )
    return min(max(users, 1.0), 1e6)


def _beyond(
    full: Question, unknown: str, composition: MechanismComposition
) -> tuple[float, float] | None:
    if unknown == "epsilon" or _at_the_end(full, unknown):
        return None
    value: float = {
        "noise_multiplier": known(full.noise_multiplier) * _NEXT_NOISE,
        "rounds": known(full.rounds) + 1,
        "cohort_size": known(full.cohort_size) + 1,
        "population_size": known(full.population_size) - 1,
    }[unknown]
    return value, full.answered(unknown, value).epsilon_at(composition)


def _smallest_population(question: Question) -> int:
    # One user has no default delta.
    least = 2 if question.delta is None else 1
    return max(int(known(question.cohort_size)) * question.scheme.min_separation, least)


def _largest_cohort(question: Question) -> int:
    return int(known(question.population_size)) // question.scheme.min_separation


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
    groups = f" in {full.scheme.min_separation} groups" if full.scheme.min_separation > 1 else ""
    if unknown == "cohort_size":
        return (
            f"as many as a population of {full.population_size}{groups} has: every cohort fits "
            "this epsilon"
        )
    return f"as few as a cohort of {full.cohort_size}{groups} can be drawn from: every one fits"


def _budget(question: Question) -> tuple[float, float, Participation]:
    return known(question.epsilon), question.delta_or_default(), question.participation


def _refuse_unsampled(question: Question) -> None:
    if question.scheme.takes_everybody:
        raise PlanError(
            "under full participation the cohort is the population, and how many there are does "
            "not change epsilon; solve for epsilon, noise_multiplier or rounds, or sample by "
            "poisson"
        )
    if not question.scheme.is_drawn:
        raise PlanError(
            "where users are selected no chance is accounted, so that neither cohort nor "
            "population changes epsilon; solve for epsilon, noise_multiplier or rounds"
        )
