"""A lower bound on epsilon from one run in which coins included some canaries and not others.

Guarantee: a bound at the confidence asked for, if what it rests on holds.

What it rests on: m canaries, each included by a fair coin of its own, independent of all else in
the run; guesses that depend on the coins through what the run released alone; a number of guesses
fixed before (or corrected for). Nothing is assumed of the mechanism, nor of the scores. Unit: a
canary, as a user; adjacency add-or-remove-one, under selected zero-out.

Guesses: the canaries with the largest scores "in", those with the smallest "out"; of the others
there is none. Where the best of a grid of numbers of guesses is taken, each entry is tested at the
level divided by the entries (Bonferroni), and the grid depends on the number of canaries alone.

How loose: r guesses that are all right show no more than about epsilon = log(r / 3) at 95 %; and a
Gaussian release of the same epsilon is told apart less well than the randomised response that this
bound compares it with, most of all by guesses about all canaries. ``privacy.empirical.f_dp`` mends
the second.

Source: Steinke, Nasr, Jagielski 2023, "Privacy auditing with one (1) training run", theorem 5.2
and appendix D.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from privacy.empirical.gaussian_dp import largest
from privacy.errors import PrivacyError

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

_TOLERANCE = 1e-6
_LARGEST = 1e3
# Fewer guesses cannot show more than epsilon = 1.8 at 95 %, even when all are right.
_FEWEST = 20

# Lower bound of epsilon by: canaries, guesses made, guesses right, delta, confidence.
Bound = Callable[[int, int, int, float, float], float]


class Guesses(NamedTuple):
    """Number of canaries that are guessed, chosen without a look at the scores.

    Attributes:
        most_in: Canaries with the largest scores, guessed "in".
        least_out: Canaries with the smallest scores, guessed "out".
    """

    most_in: int
    least_out: int

    @property
    def total(self) -> int:
        """Guesses made; the other canaries are abstained from."""
        return self.most_in + self.least_out


def guess_grid(num_canaries: int) -> tuple[Guesses, ...]:
    """The stated grid: all canaries, a half, a quarter ... of them, by both ends and by the top."""
    grid = []
    total = num_canaries
    while total >= min(_FEWEST, num_canaries):
        grid.append(Guesses((total + 1) // 2, total // 2))
        if total <= num_canaries // 4:
            grid.append(Guesses(total, 0))
        total //= 2
    return tuple(grid)


def count_correct(scores: Array, included: Bools, guesses: Guesses) -> int:
    """Count the guesses that are right.

    Ties are broken by position, which no coin has moved.

    Scores, shape (m,), are larger when a canary seems to have been in; they must be finite. The
    coins have shape (m,), too.
    """
    if scores.shape != included.shape or scores.ndim != 1:
        raise PrivacyError(
            f"scores have shape {scores.shape} and coins {included.shape}; both must be (m,)"
        )
    if not np.isfinite(scores).all():
        raise PrivacyError("a score of a canary is not finite; the run has left float range")
    if min(guesses) < 0 or guesses.total > scores.size:
        raise PrivacyError(f"{guesses} cannot be made of {scores.size} canaries")
    order = np.argsort(scores, kind="stable")
    guessed_out = order[: guesses.least_out]
    guessed_in = order[scores.size - guesses.most_in :]
    return int(included[guessed_in].sum() + (~included[guessed_out]).sum())


def check_counts(num_canaries: int, num_guesses: int, num_correct: int) -> None:
    """Check that so many guesses can be right."""
    if not 0 <= num_correct <= num_guesses <= num_canaries or num_guesses < 1:
        raise PrivacyError(
            f"{num_correct} of {num_guesses} guesses about {num_canaries} canaries cannot be "
            "right; it must be 0 <= correct <= guesses <= canaries, with one guess or more"
        )


def p_value(
    num_canaries: int, num_guesses: int, num_correct: int, epsilon: float, delta: float
) -> float:
    """Most that (epsilon, delta) allows the probability of so many correct guesses to be.

    In [0, 1]: P[B >= v] + 2 m delta max_i P[v > B >= v - i] / i, for m canaries, r guesses of which
    v were right, and B binomial of r and 1 / (1 + exp(-epsilon)).

    Source: Steinke et al. 2023, theorem 5.2.
    """
    from scipy.special import expit
    from scipy.stats import binom

    check_counts(num_canaries, num_guesses, num_correct)
    right = float(expit(epsilon))
    # Entry i: P[B >= v - i].
    at_least = binom.sf(num_correct - 1 - np.arange(num_correct + 1), num_guesses, right)
    beta = float(at_least[0])
    if delta == 0.0 or num_correct == 0:
        return min(beta, 1.0)
    alpha = float(np.max((at_least[1:] - beta) / np.arange(1, num_correct + 1)))
    return min(beta + 2.0 * num_canaries * delta * max(alpha, 0.0), 1.0)


@lru_cache(maxsize=4096)
def epsilon_lower_bound(
    num_canaries: int, num_guesses: int, num_correct: int, delta: float, confidence: float
) -> float:
    """Largest epsilon that so many correct guesses refute, to 1e-6 below; 0 if none is refuted.

    The number of guesses must have been fixed before the run.
    """
    return largest_refuted(
        lambda epsilon: (
            p_value(num_canaries, num_guesses, num_correct, epsilon, delta) < 1.0 - confidence
        )
    )


def largest_refuted(refuted: Callable[[float], bool]) -> float:
    """Bisect for the largest value that is refuted; what is refuted refutes all that is below.

    A refuted value at most 1e-6 below one that is not; 0 if none is; 1,000 at most.
    """
    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high):
        low, high = high, 2.0 * high
        if low > _LARGEST:
            return _LARGEST
    return largest(refuted, low, high, _TOLERANCE)


@dataclass(frozen=True, slots=True)
class OneRunBound:
    """A lower bound by guesses.

    Attributes:
        epsilon: Lower bound at the confidence asked for, at least 0.
        guesses: The entry of the grid that gave it.
        num_correct: How many of its guesses were right.
        num_hypotheses: Entries of the grid, each tested at the level divided by their number.
    """

    epsilon: float
    guesses: Guesses
    num_correct: int
    num_hypotheses: int


def audit_scores(
    scores: Array,
    included: Bools,
    delta: float,
    confidence: float = 0.95,
    guesses: Guesses | None = None,
    bound: Bound = epsilon_lower_bound,
) -> OneRunBound:
    """Lower bound on epsilon from the scores of canaries.

    Scores, shape (m,), are larger when a canary seems to have been in; ``included``, shape (m,),
    are the coins. ``guesses`` were chosen before the run; None for the best of ``guess_grid``,
    corrected. ``bound`` is of any mechanism, or of a family of ``privacy.empirical.f_dp``.
    """
    grid = guess_grid(scores.size) if guesses is None else (guesses,)
    level = 1.0 - (1.0 - confidence) / len(grid)
    found = []
    for entry in grid:
        right = count_correct(scores, included, entry)
        epsilon = bound(scores.size, entry.total, right, delta, level)
        found.append(OneRunBound(epsilon, entry, right, len(grid)))
    return max(found, key=lambda one: one.epsilon)


def log_likelihood_ratio(scores: Array, rate: float, noise_multiplier: float) -> Array:
    """Evidence of one round that a canary is in the population.

    log((1 - rate) + rate * exp((x - 1/2) / z**2)), shape (m,), of the scores x, shape (m,), in
    parts of what the canary would move: near 1 if it took part. The noise multiplier z is the
    standard deviation of x; 0 takes x itself. It takes part with probability ``rate`` if it is in
    the population.
    """
    if noise_multiplier == 0.0:
        return scores
    exponent = (scores - 0.5) / noise_multiplier**2
    if rate >= 1.0:
        return exponent
    return np.asarray(np.logaddexp(math.log1p(-rate), math.log(rate) + exponent))
