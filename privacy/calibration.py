"""From a budget to noise, and from noise to rounds.

Guarantee: at the multiplier that ``calibrate_noise_multiplier`` returns, and after the rounds that
``max_rounds`` returns, ``epsilon_of_rounds`` with the same arguments is at most ``epsilon``: the
last thing that a search does is keep a point at which that was checked. Unit, adjacency and
sampling are those of ``privacy.amplification``.
"""

from __future__ import annotations

import math

from privacy.accountant import LARGEST_EPSILON, check_accountant, check_delta, compose_epsilon
from privacy.amplification import MechanismComposition, Participation, sampled_gaussian
from privacy.errors import PrivacyError, check_count
from privacy.sampling_scheme import check_size
from privacy.search import PRV_OFFSET, last_within, search_in_stages, smallest_noise


def default_delta(population_size: int) -> float:
    """The delta of the literature's benchmarks: N ** -1.1, of a population of 2 or more."""
    if population_size < 2:
        raise PrivacyError(
            f"population_size is {population_size!r}; population_size ** -1.1 is a delta below 1 "
            "only for 2 users or more; set delta"
        )
    return math.pow(population_size, -1.1)


def epsilon_of_rounds(
    participation: Participation,
    noise_multiplier: float,
    rounds: int,
    delta: float,
    accountant: str,
    composition: MechanismComposition = sampled_gaussian,
    coarseness: float = 1.0,
) -> float:
    """Epsilon after so many rounds.

    z is the standard deviation of the noise in multiples of clip_norm, at least 0. ``composition``
    is what a mechanism's rounds compose to; by default the Gaussian mechanism's, whose noise is
    drawn anew in each round. ``coarseness`` is as in ``compose_epsilon``.
    """
    composed = composition(participation, noise_multiplier, rounds)
    return compose_epsilon([composed], delta, accountant, coarseness)


def calibrate_noise_multiplier(
    epsilon: float,
    delta: float,
    participation: Participation,
    rounds: int,
    accountant: str,
    composition: MechanismComposition = sampled_gaussian,
) -> float:
    """Smallest noise multiplier within a budget, to a relative tolerance of 5e-5.

    z is the standard deviation of the noise on the sum in multiples of clip_norm, at which the
    accountant's epsilon is at most ``epsilon``. A PrivacyError says that no multiplier from 1e-3 to
    1e7 fits the budget.
    """
    _check(epsilon, delta, participation, accountant, composition)
    check_size("rounds", rounds)
    check_count("rounds", rounds)
    near = epsilon
    if accountant == "prv" and epsilon > 2 * PRV_OFFSET:
        near -= PRV_OFFSET

    def search(name: str, coarseness: float, guess: float) -> float:
        def epsilon_of(noise: float) -> float:
            return epsilon_of_rounds(
                participation, noise, rounds, delta, name, composition, coarseness
            )

        if coarseness == 1.0:
            return smallest_noise(epsilon_of, epsilon, guess)
        # From RDP's answer, which is mostly above.
        return smallest_noise(epsilon_of, near, 0.95 * guess)

    count = participation.most_participations(rounds)
    rate = participation.sampling_probability
    guess = max(rate * math.sqrt(2.0 * count * math.log(1.0 / delta)) / epsilon, 0.5)
    guess *= participation.scheme.sensitivity
    return search_in_stages(search, guess, accountant, composition(participation, guess, rounds))


def max_rounds(
    epsilon: float,
    delta: float,
    participation: Participation,
    noise_multiplier: float,
    accountant: str,
    limit: int = 1_000_000,
    composition: MechanismComposition = sampled_gaussian,
) -> int:
    """Largest number of rounds within a budget, from 0 to ``limit``, the most that matter.

    z is the standard deviation of the noise in multiples of clip_norm, at least 0.
    """
    _check(epsilon, delta, participation, accountant, composition)
    check_count("limit", limit)

    def search(name: str, coarseness: float, guess: int) -> int:
        def epsilon_of(rounds: int) -> float:
            return epsilon_of_rounds(
                participation, noise_multiplier, rounds, delta, name, composition, coarseness
            )

        return last_within(epsilon_of, epsilon, guess, good=0, bad=limit + 1)

    composed = composition(participation, noise_multiplier, limit)
    return search_in_stages(search, limit, accountant, composed)


def check_epsilon(epsilon: float) -> None:
    """Check that a budget is in (0, ``LARGEST_EPSILON``]."""
    if not 0 < epsilon <= LARGEST_EPSILON:
        raise PrivacyError(
            f"epsilon is {epsilon!r}, but must be positive and at most {LARGEST_EPSILON:g}, beyond "
            "which nothing is promised; usual budgets are from 0.1 to 10"
        )


def _check(
    epsilon: float,
    delta: float,
    participation: Participation,
    accountant: str,
    composition: MechanismComposition,
) -> None:
    check_epsilon(epsilon)
    check_delta(delta)
    if composition is sampled_gaussian:
        # It says what to do in the words of the scheme, before any event is made.
        check_accountant(accountant, participation.scheme)
