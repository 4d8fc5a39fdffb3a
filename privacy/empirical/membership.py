"""Is what an attacker shows of real users' membership more than (epsilon, delta) allows?

Guarantee: a false alarm has probability ``1 - confidence`` at most, if what it rests on holds.

The game. Of K shadow runs of one row, each has its own seed and keeps each training user by a fair
coin of its own; users left out contribute to no round (``pfl_bench.federated.sampling``), while
sampling rate, noise and denominator stay. The attacker sees the released model and guesses coins.
Membership means membership in the training population, whether or not the user was ever drawn.
Unit: a user, with all examples. Adjacency: add-or-remove-one (zero-out where that is claimed);
under replace-one nothing is said, because leaving a user out is not replacing one.

Why the claim bounds it. Fix the coins of all other users: the two populations, with and without the
user, are neighbours, so that any test of the one against the other has false negatives of f or more
at its false positives, f being the mechanism's trade-off function. The coins of the others are
drawn independently of this one: given this user's coin, the release is a mixture over them with the
same weights either way. With a_w and b_w the false positives and negatives of one test at the
others' coins w, b_w >= f(a_w), and since f is convex, E[b_w] >= E[f(a_w)] >= f(E[a_w]): the
mixture obeys the same curve. So do means over users. What is seen (a model) is a function of all
that is released, which obeys the curve as well.

Why a pointwise interval of the ROC curve is no test. Users of one model share its noise: their
outcomes are dependent, and Clopper-Pearson, which ``rate`` gives for the eye, is too narrow by an
unknown amount. The verdict is therefore by a test that allows this: coins are independent, so that
the number of correct guesses in one release is bounded by theorem 3.2 of Mahloujifar et al. 2024
(``privacy.empirical.f_dp``). Several targets are one release of independent runs: flipping a coin
changes one of them. References must be independent of the targets' coins: the runs are cut into
folds, the targets of a fold are attacked by references of the others alone, and folds are tested
at their part of the level. So are the numbers of guesses tried (``one_run.guess_grid``: the
thresholds), and the kinds of attack. Half of the level goes to a second test, which is sharper
where there are many runs: ``privacy.empirical.betting``, each run by references before it alone.

Sources: Dong, Roth, Su 2022, "Gaussian differential privacy" (trade-off functions are convex);
Mahloujifar, Melis, Chaudhuri 2024, "Auditing f-differential privacy in one run"; Clopper, Pearson
1934. The folds and the argument on mixtures are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privacy.empirical.betting import Bets
from privacy.empirical.f_dp import refutes
from privacy.empirical.one_run import Guesses, audit_scores, count_correct, guess_grid
from privacy.empirical.trade_off import TradeOff
from privacy.errors import PrivacyError

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
# Of one target: its numbers, those of the references, and the references' members.
Score = Callable[[Array, Array, Bools], Array]

# Kinds of attack, whose tests share the level.
NUM_KINDS = 3
_MOST_FOLDS = 4


def folds_of(num_runs: int) -> tuple[tuple[int, ...], ...]:
    """Cut runs into at most four folds of nearly equal size, by their numbers alone."""
    count = min(num_runs, _MOST_FOLDS)
    return tuple(tuple(range(first, num_runs, count)) for first in range(count))


def cross_fit(
    score: Score, numbers: Array, members: Bools, folds: Sequence[Sequence[int]]
) -> Array:
    """Score each run as a target, by the runs of the other folds as references.

    ``numbers``, shape (K, U), is what each run's model shows of each user, and ``members``, shape
    (K, U), the coins. Scores, shape (K, U), are larger when a user seems to have been in.
    """
    scores = np.empty_like(numbers)
    for fold in folds:
        others = np.setdiff1d(np.arange(len(numbers)), fold)
        for target in fold:
            scores[target] = score(numbers[target], numbers[others], members[others])
    return scores


@dataclass(frozen=True, slots=True)
class Rate:
    """A true positive rate at a false positive rate.

    Attributes:
        false_positive_rate: The largest that was allowed.
        true_positive_rate: Of the threshold with the most true positives within it.
        low: Lower end of the Clopper-Pearson interval, as if trials were independent.
        high: Its upper end.
    """

    false_positive_rate: float
    true_positive_rate: float
    low: float
    high: float


def clopper_pearson(count: int, trials: int, confidence: float) -> tuple[float, float]:
    """Two-sided interval of a probability, by successes out of so many; (0, 1) without trials."""
    from scipy.stats import beta

    half = (1.0 - confidence) / 2.0
    low = 0.0 if count == 0 else float(beta.ppf(half, count, trials - count + 1))
    high = 1.0 if count == trials else float(beta.ppf(1.0 - half, count + 1, trials - count))
    return low, high


def roc_counts(scores: Array, members: Bools) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """False and true positives at every threshold, from none guessed "in" to all.

    Of scores and coins, shape (n,) each, to shape (t,) each: at each distinct score, and 0 before
    the first.
    """
    order = np.argsort(-scores, kind="stable")
    last = np.append(np.flatnonzero(np.diff(scores[order])), scores.size - 1)
    true = np.cumsum(members[order])[last]
    false = np.cumsum(~members[order])[last]
    return np.append(0, false), np.append(0, true)


def rate(scores: Array, members: Bools, allowed: float, confidence: float = 0.95) -> Rate:
    """True positive rate at the threshold with at most ``allowed`` false positives.

    Scores and coins have shape (n,); there are some members of either kind.
    """
    false, true = roc_counts(scores, members)
    within = false <= allowed * int((~members).sum())
    count, trials = int(true[within].max()), int(members.sum())
    return Rate(allowed, count / trials, *clopper_pearson(count, trials, confidence))


def area(scores: Array, members: Bools) -> float:
    """Area under the ROC curve: the probability that a member has the larger score, ties halved.

    Scores and coins have shape (n,); there are some members of either kind.
    """
    false, true = roc_counts(scores, members)
    return float(np.trapezoid(true, false) / (true[-1] * false[-1]))


@dataclass(frozen=True, slots=True)
class Verdict:
    """Verdict of the guesses on a claim.

    Attributes:
        refuted: Whether one of the tests refutes the claim; None where there is no claim to test.
        wealth: Of the bets against the claim, at most; the claim is refuted where it reaches
            ``wealth_limit``. None where there is no claim.
        wealth_limit: One over the part of the level that the bets have.
        epsilon: Lower bound of epsilon by the guesses, of any mechanism, at the confidence.
        guesses: Those of the test that refutes, or that gives the largest epsilon.
        num_correct: How many of them were right.
        num_users: Users of all targets of the fold that they are of.
        num_tests: Tests that share the level.
        confidence: Of the verdict, in (0, 1).
    """

    refuted: bool | None
    wealth: float | None
    wealth_limit: float
    epsilon: float
    guesses: Guesses
    num_correct: int
    num_users: int
    num_tests: int
    confidence: float


def bet(score: Score, numbers: Array, members: Bools, claim: TradeOff, fewest: int) -> float:
    """The largest wealth of bets on each run in turn, by the runs before it as references.

    ``numbers`` and coins are as in ``cross_fit``, shape (K, U), U of 2 or more; ``claim`` is the
    trade-off function of one run; the first target has ``fewest`` references.
    """
    bets = Bets(claim)
    for target in range(fewest, len(numbers)):
        found = score(numbers[target], numbers[:target], members[:target])
        bets.add(found, members[target])
    return bets.largest


def judge(
    scores: Array,
    members: Bools,
    folds: Sequence[Sequence[int]],
    claim: TradeOff | None,
    delta: float,
    confidence: float = 0.99,
    wealth: float | None = None,
) -> Verdict:
    """Hold the guesses of all folds, and what came of bets, against a claim.

    Scores, from ``cross_fit``, and coins have shape (K, U). ``claim`` is the trade-off function of
    one run; None where none is claimed or known. ``delta`` is for the lower bound of epsilon. A
    true claim is refuted with probability 1 - confidence at most. ``wealth`` is from ``bet``; None
    without a claim, or for no such test.
    """
    if scores.shape != members.shape or scores.ndim != 2 or not scores.size:
        raise PrivacyError(f"scores have shape {scores.shape} and coins {members.shape}")
    limit = 2.0 * NUM_KINDS / (1.0 - confidence)
    level = 1.0 / (limit * len(folds))
    is_lost = wealth is not None and wealth >= limit
    best: Verdict | None = None
    for fold in folds:
        flat, coins = scores[list(fold)].ravel(), members[list(fold)].ravel()
        grid = guess_grid(flat.size)
        found = audit_scores(flat, coins, delta, 1.0 - level)
        guesses, right, refuted = found.guesses, found.num_correct, None
        if claim is not None:
            refuted = is_lost
            for entry in grid:
                correct = count_correct(flat, coins, entry)
                if refutes(claim, flat.size, entry.total, correct, level / len(grid)):
                    guesses, right, refuted = entry, correct, True
                    break
        tests = NUM_KINDS * len(folds) * len(grid) + 1
        one = Verdict(
            refuted, wealth, limit, found.epsilon, guesses, right, flat.size, tests, confidence
        )
        if best is None or (bool(one.refuted), one.epsilon) > (bool(best.refuted), best.epsilon):
            best = one
    assert best is not None  # there is a fold
    return best


def allowed_curve(claim: TradeOff, false_positive_rates: Array) -> Array:
    """The largest true positive rate that a claim allows at each false positive rate, shape (n,).

    1 - f, by bisection of its inverse; shape (n,).
    """
    low, high = np.zeros_like(false_positive_rates), np.ones_like(false_positive_rates)
    for _ in range(40):
        middle = 0.5 * (low + high)
        least = np.array([claim.least_false(float(true)) for true in middle])
        fits = least <= false_positive_rates
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    return low
