"""From a budget to noise, and from noise to rounds.

Guarantee: at the multiplier that ``calibrate_noise_multiplier`` returns, and after the rounds that
``max_rounds`` returns, ``compute_epsilon`` with the same arguments is at most ``epsilon``: the
last thing that a search does is keep a point at which that was checked. Unit, adjacency and
sampling are those of ``privacy.amplification``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from privacy.accountant import (
    LARGEST_EPSILON,
    check_accountant,
    check_composition,
    check_delta,
    compose_epsilon,
)
from privacy.amplification import Composition, Participation, sampled_gaussian
from privacy.errors import PlanError, PrivacyError

# What a mechanism's rounds compose to: of its noise multiplier and the number of rounds.
Compose = Callable[[float, int], Composition]

# Relative tolerance of the noise multiplier.
_TOLERANCE = 5e-5
_SMALLEST_NOISE = 1e-3
_LARGEST_NOISE = 1e7
# The numerical accountants are searched on a grid this much coarser first, which is that much
# faster and, being an upper bound too, ends close by.
_COARSE = 10.0
# What PRV's upper bound adds to its estimate at small epsilon.
_PRV_OFFSET = 0.01


def default_delta(population_size: int) -> float:
    """The delta of the literature's benchmarks: N ** -1.1.

    Args:
        population_size: N, at least 2.

    Raises:
        PrivacyError: The population is smaller.
    """
    if population_size < 2:
        raise PrivacyError(
            f"population_size is {population_size!r}; population_size ** -1.1 is a delta below 1 "
            "only for 2 users or more; set delta"
        )
    return math.pow(population_size, -1.1)


def epsilon_of_rounds(
    noise_multiplier: float,
    delta: float,
    scheme: str,
    population_size: int,
    cohort_size: float,
    rounds: int,
    accountant: str,
    *,
    separation: int = 1,
    max_participations: int | None = None,
    composition: Compose | None = None,
) -> float:
    """Epsilon after so many rounds.

    Args:
        noise_multiplier: z, standard deviation of the noise in multiples of clip_norm, at least 0.
        delta: In (0, 1).
        scheme: "poisson", "fixed_size", "full", "cyclic_poisson" or "selected".
        population_size: Users to draw from.
        cohort_size: Users of a round; expected under "poisson", exact otherwise.
        rounds: Number of rounds, at least 0.
        accountant: "rdp", "pld" or "prv".
        separation: As ``Participation`` has it.
        max_participations: As ``Participation`` has it.
        composition: Of the noise multiplier and the rounds: what a mechanism's rounds compose to;
            None for the Gaussian mechanism, whose noise is drawn anew in each round.

    Raises:
        PrivacyError: An argument is out of its range, or the accountant does not know the scheme.
    """
    participation = Participation(
        scheme, population_size, cohort_size, separation, max_participations
    )
    compose = composition or partial(sampled_gaussian, participation)
    return compose_epsilon([compose(noise_multiplier, rounds)], delta, accountant)


def calibrate_noise_multiplier(
    epsilon: float,
    delta: float,
    scheme: str,
    population_size: int,
    cohort_size: float,
    rounds: int,
    accountant: str,
    *,
    separation: int = 1,
    max_participations: int | None = None,
    composition: Compose | None = None,
) -> float:
    """Smallest noise multiplier within a budget, to a relative tolerance of 5e-5.

    Args:
        epsilon: Budget, positive and finite.
        delta: In (0, 1).
        scheme: "poisson", "fixed_size", "full", "cyclic_poisson" or "selected".
        population_size: Users to draw from.
        cohort_size: Users of a round; expected under "poisson", exact otherwise.
        rounds: Number of rounds, at least 1.
        accountant: "rdp", "pld" or "prv".
        separation: As ``Participation`` has it.
        max_participations: As ``Participation`` has it.
        composition: Of the noise multiplier and the rounds: what a mechanism's rounds compose to;
            None for the Gaussian mechanism, whose noise is drawn anew in each round.

    Returns:
        z, standard deviation of the noise on the sum in multiples of clip_norm, at which the
        accountant's epsilon is at most ``epsilon``.

    Raises:
        PrivacyError: An argument is out of its range, the accountant does not know the scheme, or
            no multiplier from 1e-3 to 1e7 fits the budget.
    """
    _check(epsilon, delta)
    participation = Participation(
        scheme, population_size, cohort_size, separation, max_participations
    )
    compose = composition or _gaussian(participation, accountant)
    if rounds < 1 or rounds != int(rounds):
        raise PrivacyError(f"rounds is {rounds!r}, but must be a whole number, at least 1")

    def at(name: str, coarseness: float) -> Callable[[float], float]:
        def epsilon_of(noise: float) -> float:
            return compose_epsilon([compose(noise, rounds)], delta, name, coarseness)

        return epsilon_of

    count = participation.most_participations(rounds)
    rate = participation.sampling_probability
    guess = max(rate * math.sqrt(2.0 * count * math.log(1.0 / delta)) / epsilon, 0.5)
    if scheme == "fixed_size":
        guess *= 2.0
    if not _knows("rdp", compose(guess, rounds)):
        return _smallest_noise(at(accountant, 1.0), epsilon, guess)
    noise = _smallest_noise(at("rdp", 1.0), epsilon, guess)
    if accountant == "rdp":
        return noise
    near = epsilon - _PRV_OFFSET if accountant == "prv" and epsilon > 2 * _PRV_OFFSET else epsilon
    noise = _smallest_noise(at("pld", _COARSE), near, 0.95 * noise)
    return _smallest_noise(at(accountant, 1.0), epsilon, noise)


def max_rounds(
    epsilon: float,
    delta: float,
    scheme: str,
    population_size: int,
    cohort_size: float,
    noise_multiplier: float,
    accountant: str,
    limit: int = 1_000_000,
    *,
    separation: int = 1,
    max_participations: int | None = None,
    composition: Compose | None = None,
) -> int:
    """Largest number of rounds within a budget.

    Args:
        epsilon: Budget, positive and finite.
        delta: In (0, 1).
        scheme: "poisson", "fixed_size", "full", "cyclic_poisson" or "selected".
        population_size: Users to draw from.
        cohort_size: Users of a round; expected under "poisson", exact otherwise.
        noise_multiplier: z, standard deviation of the noise in multiples of clip_norm, at least 0.
        accountant: "rdp", "pld" or "prv".
        limit: Most rounds that matter, at least 1.
        separation: As ``Participation`` has it.
        max_participations: As ``Participation`` has it.
        composition: Of the noise multiplier and the rounds: what a mechanism's rounds compose to;
            None for the Gaussian mechanism, whose noise is drawn anew in each round.

    Returns:
        From 0 to ``limit``.

    Raises:
        PrivacyError: An argument is out of its range, or the accountant does not know the scheme.
    """
    _check(epsilon, delta)
    participation = Participation(
        scheme, population_size, cohort_size, separation, max_participations
    )
    compose = composition or _gaussian(participation, accountant)
    if limit < 1 or limit != int(limit):
        raise PrivacyError(f"limit is {limit!r}, but must be a whole number, at least 1")

    def at(name: str, coarseness: float) -> Callable[[int], float]:
        def epsilon_of(rounds: int) -> float:
            return compose_epsilon([compose(noise_multiplier, rounds)], delta, name, coarseness)

        return epsilon_of

    if not _knows("rdp", compose(noise_multiplier, limit)):
        return _most_rounds(at(accountant, 1.0), epsilon, limit, limit)
    rounds = _most_rounds(at("rdp", 1.0), epsilon, limit, limit)
    if accountant == "rdp":
        return rounds
    rounds = _most_rounds(at("pld", _COARSE), epsilon, rounds, limit)
    return _most_rounds(at(accountant, 1.0), epsilon, rounds, limit)


def _check(epsilon: float, delta: float) -> None:
    if not 0 < epsilon <= LARGEST_EPSILON:
        raise PrivacyError(
            f"epsilon is {epsilon!r}, but must be positive and at most {LARGEST_EPSILON:g}, beyond "
            "which nothing is promised; usual budgets are from 0.1 to 10"
        )
    check_delta(delta)


def _gaussian(participation: Participation, accountant: str) -> Compose:
    check_accountant(accountant, participation.scheme)
    return partial(sampled_gaussian, participation)


def _knows(accountant: str, composition: Composition) -> bool:
    try:
        check_composition(composition, accountant)
    except PlanError:
        return False
    return True


def _smallest_noise(epsilon_of: Callable[[float], float], target: float, guess: float) -> float:
    """Bracket the crossing from a guess, then close in on it in the logarithms."""
    low, high = _bracket_noise(epsilon_of, target, guess)
    pad = math.log1p(_TOLERANCE) / 3.0
    wide = math.inf
    while (width := math.log(high / low)) > 3.0 * pad:
        step = _crossing(epsilon_of(low), epsilon_of(high), target)
        # Aim just above the crossing, to end with it between two close points; then just below.
        ahead = step * width + pad
        if ahead > width - pad / 4.0:
            ahead = step * width - pad
        if not pad / 4.0 < ahead < width - pad / 4.0 or width > 0.5 * wide:
            ahead = width / 2.0
        wide = width
        middle = low * math.exp(ahead)
        if epsilon_of(middle) <= target:
            high = middle
        else:
            low = middle
    return high


def _crossing(epsilon_low: float, epsilon_high: float, target: float) -> float:
    """Where log epsilon, taken as linear, crosses the target, from 0 at low to 1 at high."""
    if not (math.isfinite(epsilon_low) and epsilon_high > 0.0):
        return 0.5
    drop = math.log(epsilon_low / epsilon_high)
    return math.log(epsilon_low / target) / drop if drop > 0.0 else 0.5


def _bracket_noise(
    epsilon_of: Callable[[float], float], target: float, guess: float
) -> tuple[float, float]:
    """Find a multiplier beyond the budget and a larger one within it."""
    noise = min(max(guess, _SMALLEST_NOISE), _LARGEST_NOISE)
    epsilon = epsilon_of(noise)
    within = epsilon <= target
    slope, step = 1.0, 0.0
    while True:
        if 0.0 < epsilon < math.inf:
            # Where a line in the logarithms crosses the target, a third of the tolerance beyond
            # it; at least twice the last step, should the line be a poor guide.
            step = max(abs(math.log(epsilon / target)) / slope + _TOLERANCE / 3.0, 2.0 * step)
        else:
            step = max(1.0, 2.0 * step)
        factor = math.exp(-step if within else step)
        following = min(max(noise * factor, _SMALLEST_NOISE), _LARGEST_NOISE)
        if following == noise:
            raise PrivacyError(_unreachable(target, within, epsilon))
        epsilon_there = epsilon_of(following)
        if (epsilon_there <= target) != within:
            return (following, noise) if within else (noise, following)
        if 0.0 < epsilon_there < math.inf and 0.0 < epsilon < math.inf:
            measured = math.log(epsilon / epsilon_there) / math.log(following / noise)
            slope = min(max(measured, 0.2), 20.0)
        noise, epsilon = following, epsilon_there


def _unreachable(target: float, within: bool, reached: float) -> str:
    if within:
        return (
            f"epsilon {target!r} is so large that noise_multiplier {_SMALLEST_NOISE} already meets "
            "it; that is no protection; set noise_multiplier yourself if it is meant"
        )
    return (
        f"epsilon {target!r} cannot be shown: at noise_multiplier {_LARGEST_NOISE:.0e} the "
        f"accountant still says {reached:.4g} (prv adds {_PRV_OFFSET} for its own error); raise "
        "epsilon or delta, lower the rounds, or use the accountant pld"
    )


def _most_rounds(epsilon_of: Callable[[int], float], target: float, guess: int, limit: int) -> int:
    """Largest count of 0 .. limit within the budget: bracket from a guess, then close in."""
    low, high = 0, limit + 1
    probe, stride, wide = min(max(guess, 1), limit), max(guess >> 10, 1), math.inf
    while high - low > 1:
        if epsilon_of(probe) <= target:
            low = probe
        else:
            high = probe
        if low == 0 or high > limit:
            probe = probe + stride if probe == low else probe - stride
            stride *= 4
        elif high - low > 0.5 * wide:
            wide, probe = high - low, (low + high) // 2
        else:
            wide = high - low
            crossing = _crossing(epsilon_of(high), epsilon_of(low), target)
            # Just beyond the estimate and just short of it in turn, so that both ends close in.
            probe = int(high * (low / high) ** crossing) + (1 if probe == low else 0)
        probe = min(max(probe, low + 1), high - 1)
    return low
