"""A lower bound on epsilon from canaries whose every round is seen.

Guarantee: a bound at the confidence asked for, if what it rests on holds.

What it rests on. *A step*: in each round a fair coin of its own lets each canary send clip_norm
along a coordinate of its own or not, and the auditor sees the release along that coordinate, in
parts of clip_norm: x near 1 or near 0. The step is mu-GDP for no mu below the bound, at the
confidence: by "clopper_pearson" for every noise at all (from the rates of false alarms and misses
at a threshold of one half, fixed before); by "normal" exactly if x is normal with one spread,
whether or not the canary took part. *The run*: a lower bound given the structure. The noise of
each round is drawn anew and Gaussian, so that a step at mu is a step with noise multiplier 1 / mu;
users are drawn as the sampler claims; and the rounds compose as the accountant says. What the
sampler or the composition may break is not tested here. Unit: a canary, as a user; adjacency
add-or-remove-one, under selected zero-out.

Clients' own updates move x too, unless the auditor knows them and takes them off, as the adversary
of the definition may. That makes the two cases harder to tell apart, on average over rounds, and so
the bound lower, never wrong.

Source: Nasr et al. 2023, "Tight auditing of differentially private machine learning", sections 4
and 5 (mu of a step by Clopper-Pearson, then the composition's accountant).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privacy.amplification import Composition
from privacy.empirical.gaussian_dp import largest
from privacy.empirical.membership import clopper_pearson
from privacy.empirical.trade_off import is_gaussian, sure_epsilon
from privacy.errors import PrivacyError

# Half of what a canary sends: the threshold at which false alarms and misses are equally many.
THRESHOLD = 0.5
# Beyond this many trials the law of t is normal to more digits than are asked for.
_LARGE_SAMPLE = 100_000
# Accountants are slow below it, where nothing is protected anyway.
_LEAST_NOISE = 0.02


@dataclass(slots=True)
class StepTrials:
    """Trials of all rounds so far: sums, so that memory does not grow with the rounds.

    Attributes:
        num_in: Trials in which the canary took part.
        num_out: Trials in which it did not.
        misses: Of ``num_in``, those with x at most one half.
        false_alarms: Of ``num_out``, those with x above one half.
        sum_in: Sum of x over ``num_in``.
        sum_out: Sum of x over ``num_out``.
        squares_in: Sum of x**2 over ``num_in``.
        squares_out: Sum of x**2 over ``num_out``.
    """

    num_in: int = 0
    num_out: int = 0
    misses: int = 0
    false_alarms: int = 0
    sum_in: float = 0.0
    sum_out: float = 0.0
    squares_in: float = 0.0
    squares_out: float = 0.0

    def add(self, scores: NDArray[np.float64], taking_part: NDArray[np.bool_]) -> None:
        """Take in one round's scores x of the canaries, finite, and its coins; shape (m,) each."""
        if not np.isfinite(scores).all():
            raise PrivacyError("the release is not finite along a canary; the run has diverged")
        inside, outside = scores[taking_part], scores[~taking_part]
        self.num_in += inside.size
        self.num_out += outside.size
        self.misses += int((inside <= THRESHOLD).sum())
        self.false_alarms += int((outside > THRESHOLD).sum())
        self.sum_in += float(inside.sum())
        self.sum_out += float(outside.sum())
        self.squares_in += float(np.square(inside).sum())
        self.squares_out += float(np.square(outside).sum())

    @property
    def shift(self) -> float | None:
        """Estimate of mu: difference of the means in pooled spreads; None with too few trials."""
        if self.num_in < 1 or self.num_out < 1 or self.num_in + self.num_out < 3:
            return None
        mean_in, mean_out = self.sum_in / self.num_in, self.sum_out / self.num_out
        squares = self.squares_in - self.num_in * mean_in**2
        squares += self.squares_out - self.num_out * mean_out**2
        spread = math.sqrt(max(squares, 0.0) / (self.num_in + self.num_out - 2))
        difference = mean_in - mean_out
        if spread <= 1e-12 * abs(difference):
            return math.inf if difference > 0.0 else 0.0
        return difference / spread


def mu_by_clopper_pearson(trials: StepTrials, confidence: float) -> float:
    """Lower bound of a step's mu by false alarms and misses, at least 0.

    Half of the error goes to each rate.
    """
    from scipy.special import ndtri

    _, false_alarms = clopper_pearson(trials.false_alarms, trials.num_out, confidence)
    _, misses = clopper_pearson(trials.misses, trials.num_in, confidence)
    return max(0.0, -float(ndtri(false_alarms)) - float(ndtri(misses)))


def mu_by_normal(trials: StepTrials, confidence: float) -> float:
    """Lower bound of a step's mu by the noncentral t of the difference of means, at least 0.

    The shift at which so large a t or a larger one has probability 1 - confidence; infinity if
    there is no spread at all.
    """
    shift = trials.shift
    if shift is None or shift <= 0.0:
        return 0.0
    if math.isinf(shift):
        return math.inf
    freedom = trials.num_in + trials.num_out - 2
    size = math.sqrt(trials.num_in * trials.num_out / (trials.num_in + trials.num_out))
    observed = shift * size

    def too_small(mu: float) -> bool:
        return _t_at_least(observed, freedom, mu * size) < 1.0 - confidence

    if not too_small(0.0):
        return 0.0
    return largest(too_small, 0.0, shift)


def _t_at_least(observed: float, freedom: int, noncentrality: float) -> float:
    from scipy.special import ndtr
    from scipy.stats import nct

    if freedom < _LARGE_SAMPLE:
        return float(nct.sf(observed, freedom, noncentrality))
    spread = math.sqrt(1.0 + observed**2 / (2.0 * freedom))
    return float(ndtr((noncentrality - observed * (1.0 - 0.25 / freedom)) / spread))


def epsilon_of_run(
    mu: float, rounds: int, delta: float, composition: Callable[[float, int], Composition]
) -> float | None:
    """Epsilon of a run whose steps are mu-GDP and no better, given how its rounds compose.

    None where the noise is not Gaussian (mu would not be the multiplier's inverse), or PLD does not
    know the composition.
    """
    # A mu below 1e-6 is no leak that could be seen. More noise than 1 / mu only lowers the bound.
    noise = max(1.0 / max(mu, 1e-6), _LEAST_NOISE)
    if not is_gaussian(composition(noise, rounds)):
        return None
    if mu < 1e-6 or rounds == 0:
        return 0.0
    # More noise than was seen, where the accountant cannot compute that little: a lower bound yet.
    while (epsilon := sure_epsilon(composition(noise, rounds), delta)) == 0.0 and noise < 1.0:
        noise *= 1.5
    return epsilon
