"""Scores of canaries that run-long coins include, from which their bounds follow.

Guarantee: none is claimed; each result says in words what its lower bound rests on
(``rests_on``). Unit: a canary, as a user; adjacency add-or-remove-one, under selected zero-out.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privacy.empirical.canary_options import CanaryOptions
from privacy.empirical.canary_scores import (
    COINS,
    Array,
    ArrayScores,
    CanaryObservation,
    Compose,
    nothing,
)
from privacy.empirical.f_dp import ComposedFamily
from privacy.empirical.gaussian_audit import Bools, gaussian_bound_of, independent_bound
from privacy.empirical.gaussian_dp import epsilon_of_mu
from privacy.empirical.matched_sum import MatchedSum
from privacy.empirical.one_run import Guesses, audit_scores, log_likelihood_ratio

# Assumptions of guesses, in words.
_GUESSED = (
    COINS,
    "a fair coin included each canary; guesses see the release alone; the number of guesses was "
    "chosen before the run, or each of a stated grid of numbers was tested at its part of the "
    "level",
)


class OneRunScores(ArrayScores):
    """A score a canary: by the final model, or the log-likelihood ratio of all rounds.

    The score uses the noise multiplier that the run claims; the bound does not trust it.
    """

    def __init__(
        self, options: CanaryOptions, included: Bools, rate: float, noise_multiplier: float
    ) -> None:
        zeros = np.zeros(options.count)
        super().__init__(options, scores=zeros, matched=zeros)
        self._included = included
        self._rate = rate
        self._noise = noise_multiplier
        self._sums: MatchedSum | None = None
        self._groups = np.zeros(options.count, dtype=np.int64)

    def match(self, sums: MatchedSum, groups: NDArray[np.int64]) -> None:
        """Keep matched sums of the run's mechanism and sampler too; the groups have shape (m,)."""
        self._sums, self._groups = sums, groups

    def observe(self, seen: CanaryObservation) -> None:
        """Add a round to both kinds of scores."""
        super().observe(seen)
        if self._sums is not None:
            weights = self._sums.weights[self._groups, seen.round_number - 1]
            self._kept["matched"] = self._kept["matched"] + weights * seen.release

    def _after(self, seen: CanaryObservation) -> Array:
        evidence = log_likelihood_ratio(seen.release, self._rate, self._noise)
        return self._kept["scores"] + np.where(seen.eligible, evidence, 0.0)

    def result(self, rounds: int, delta: float, compose: Compose) -> dict[str, Any]:
        """The better-founded bound, the refined one, and the scores."""
        options, included, scores = self._options, self._included, self._kept["scores"]
        if rounds == 0 or not np.isfinite(scores).all():
            return nothing([*_GUESSED])
        family = ComposedFamily(compose, rounds)
        found = guess_bounds(scores, included, options, delta, family)
        found |= {"scores": scores.tolist(), "included": included.tolist()}
        return found if options.bound == "f_dp" else found | self._by_sums(rounds, delta, family)

    def _by_sums(self, rounds: int, delta: float, family: ComposedFamily) -> dict[str, Any]:
        """The bound of matched sums that was chosen before the run."""
        assert self._sums is not None  # another bound was refused
        deviations, lengths = self._sums.after(rounds)
        # Of groups that have had no turn nothing is seen.
        seen = deviations[self._groups] > 0.0
        kind, bound, noise = self._options.bound, 0.0, math.inf
        if seen.any():
            scores = self._kept["matched"][seen] / deviations[self._groups[seen]]
            coins, level = self._included[seen], self._options.one_sided
            longest = float(lengths[np.unique(self._groups[seen])].max())
            if kind == "gaussian":
                bound, noise = gaussian_bound_of(scores, coins, longest, delta, level, family)
            elif family.is_known:
                bound = independent_bound(scores, coins, self._noise, delta, level, family)
        return {
            "method": f"one_run_{kind}",
            "lower_bound": bound,
            "noise_multiplier_upper_bound": noise if math.isfinite(noise) else None,
            "rests_on": sums_rest_on(kind),
        }


def sums_rest_on(bound: str) -> list[str]:
    """Assumptions of a bound of matched sums, "gaussian" or "independent", in words."""
    rests_on = [
        COINS,
        "a fair coin included each canary; noise is independent from canary to canary, and "
        "goes from round to round as the mechanism's strategy says; included canaries take "
        "part as the sampler claims; rounds compose as the accountant says",
    ]
    if bound == "gaussian":
        rests_on.append("the noise is normal, and so are means of scores of many canaries")
    return rests_on


def guess_bounds(
    scores: Array, included: Bools, options: CanaryOptions, delta: float, family: ComposedFamily
) -> dict[str, Any]:
    """Members of ``canaries.json`` that follow from scores and coins, shape (m,) each."""
    guesses = None if options.guesses is None else Guesses(*options.guesses)
    asked = (scores, included, delta, options.one_sided, guesses)
    best = plain = audit_scores(*asked)
    method, rests_on = "one_run", [*_GUESSED]
    if options.bound == "f_dp" and family.is_known:
        best, method = audit_scores(*asked, family.bound), "one_run_f_dp"
        rests_on.append(
            "the release is as private as so many rounds of the claimed mechanism at some "
            "noise multiplier (f-DP); lower_bound_any_mechanism does without this"
        )
    return {
        "method": method,
        "rests_on": rests_on,
        "estimate": epsilon_of_mu(_pooled_shift(scores, included), delta),
        "lower_bound": best.epsilon,
        "lower_bound_any_mechanism": plain.epsilon,
        "guesses": best.guesses._asdict(),
        "num_correct": best.num_correct,
        "num_hypotheses": best.num_hypotheses,
    }


def _pooled_shift(scores: Array, included: Bools) -> float:
    """Difference of the means of scores, shape (n,), in pooled standard deviations; at least 0."""
    inside, outside = scores[included], scores[~included]
    if min(inside.size, outside.size) < 2:
        return 0.0
    squares = inside.var(ddof=1) * (inside.size - 1) + outside.var(ddof=1) * (outside.size - 1)
    spread = math.sqrt(float(squares) / (scores.size - 2))
    difference = float(inside.mean() - outside.mean())
    return max(0.0, difference / spread) if spread > 0.0 else 0.0
