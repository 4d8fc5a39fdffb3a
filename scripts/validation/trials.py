"""Scores of canaries by their own law, and the bounds on epsilon that audits make of them.

Nothing is trained: along distinct coordinates a release shows a canary's participation plus normal
noise; cosines are made from real random directions. The mechanisms' epsilon is known: of one
Gaussian release, and by PLD of rounds of sampled, banded and tree mechanisms. "no effect" draws the
same scores as if no canary had moved anything: the bound must be 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from dp_accounting import get_sigma_gaussian
from numpy.typing import NDArray

from privacy.amplification import Composition, Participation, sampled_gaussian
from privacy.calibration import calibrate_noise_multiplier
from privacy.description import FRESH
from privacy.empirical.f_dp import ComposedFamily, refutes
from privacy.empirical.gaussian_audit import gaussian_bound_of, independent_bound
from privacy.empirical.gaussian_dp import epsilon_of_mu
from privacy.empirical.matched_sum import (
    MatchedSum,
    Strategy,
    expected_participation,
    noise_covariance,
)
from privacy.empirical.one_run import audit_scores, largest_refuted, log_likelihood_ratio
from privacy.empirical.one_shot import audit_final, audit_held_out
from privacy.empirical.per_round import (
    StepTrials,
    epsilon_of_run,
    mu_by_clopper_pearson,
    mu_by_normal,
)
from privacy.empirical.trade_off import GaussianTradeOff
from privacy.mechanism import NoiseScale
from privacy.mechanisms import banded_matrix_factorization, tree_aggregation
from privacy.sampling_scheme import scheme_named

Array = NDArray[np.float64]

DELTA = 1e-5
# Of the lower end of an interval at 95 %.
ONE_SIDED = 0.975
# Directions of the one-shot canaries.
NUM_PARAMETERS, NUM_ONE_SHOT = 10_000, 50


@lru_cache(maxsize=4096)
def gaussian_bound(
    num_canaries: int, num_guesses: int, num_correct: int, delta: float, confidence: float
) -> float:
    """Epsilon of the largest mu-GDP that is refuted: a bound for ``audit_scores``."""
    counts = num_canaries, num_guesses, num_correct
    mu = largest_refuted(lambda mu: refutes(GaussianTradeOff(mu), *counts, 1.0 - confidence))
    return epsilon_of_mu(mu, delta)


@dataclass(frozen=True)
class Mechanism:
    """A mechanism of known epsilon.

    Attributes:
        name: For the table.
        rounds: T.
        rate: Probability that a user takes part in a round, over all groups.
        separation: Groups, which take turns.
        module: Of a mechanism whose noise goes over rounds; None for noise that is drawn anew.
    """

    name: str
    rounds: int
    rate: float
    separation: int = 1
    module: Any = None

    def built(self) -> Any:
        """The mechanism of ``module``, without noise."""
        options: dict[str, Any] = {"clip_norm": 1.0}
        if self.module is banded_matrix_factorization:
            options["bands"] = self.separation
        scale = NoiseScale(0.0, 1.0, 1.0, num_rounds=self.rounds, separation=self.separation)
        return self.module.build(self.module.Options(**options), scale)

    @property
    def strategy(self) -> Strategy:
        """Strategy of the noise over rounds."""
        if self.module is None:
            return FRESH
        strategy: Strategy = self.built().description.strategy
        return strategy

    def participation(self) -> Participation:
        """The sampler."""
        if self.separation > 1:
            scheme = scheme_named("cyclic_poisson", self.separation)
            return Participation(scheme, 1000, 1000 * self.rate)
        if self.rate == 1.0:
            return Participation.named("full", 1000, 1000)
        return Participation.named("poisson", 1000, 1000 * self.rate)

    def compose(self, noise_multiplier: float, rounds: int) -> Composition:
        """Composition for an accountant."""
        if self.module is not None:
            composed: Composition = self.built().composition(
                self.participation(), noise_multiplier, rounds
            )
            return composed
        return sampled_gaussian(self.participation(), noise_multiplier, rounds)

    def noise_multiplier(self, epsilon: float) -> float:
        """The multiplier at which the epsilon is this one."""
        if self.module is not None:
            return calibrate_noise_multiplier(
                epsilon, DELTA, self.participation(), self.rounds, "pld", self.built().composition
            )
        if self.rate == 1.0:
            return float(np.sqrt(self.rounds)) * get_sigma_gaussian(epsilon, DELTA)
        return calibrate_noise_multiplier(epsilon, DELTA, self.participation(), self.rounds, "pld")


@lru_cache
def sums_of(mechanism: Mechanism) -> MatchedSum:
    """Matched sums of a mechanism's canaries, kept over trials."""
    rate, groups = mechanism.rate * mechanism.separation, mechanism.separation
    expected = expected_participation(rate, groups, None, mechanism.rounds)
    return MatchedSum(mechanism.strategy, expected)


@lru_cache
def noise_root_of(mechanism: Mechanism) -> Array:
    """A root of the covariance of the rounds' noise: shape (T, T)."""
    return np.linalg.cholesky(noise_covariance(mechanism.strategy, mechanism.rounds))


GAUSSIAN = Mechanism("Gaussian", 1, 1.0)
REPEATED = Mechanism("Gaussian, 20 rounds", 20, 1.0)
SAMPLED = Mechanism("sampled Gaussian, 200 rounds, q 0.05", 200, 0.05)

OFTEN_SAMPLED = Mechanism("sampled Gaussian, 200 rounds, q 0.2", 200, 0.2)
BANDED = Mechanism(
    "banded, 10 bands, 200 rounds, q 0.05 (0.5 of a group)",
    200,
    0.05,
    10,
    banded_matrix_factorization,
)
TREE = Mechanism("tree, 200 rounds, each 20th", 200, 0.05, 20, tree_aggregation)

Trial = Callable[[np.random.Generator, Mechanism, float, bool], dict[str, float]]


def matched_trial(
    rng: np.random.Generator, mechanism: Mechanism, noise: float, effect: bool, *, count: int
) -> dict[str, float]:
    """Canaries by run-long coins, matched sums: by their Gaussian law, and by both error rates."""
    groups = rng.integers(mechanism.separation, size=count)
    included = rng.random(count) < 0.5
    sums, rate = sums_of(mechanism), mechanism.rate * mechanism.separation
    scores = np.zeros(count)
    noises = rng.standard_normal((mechanism.rounds, count))
    if mechanism.module is not None:
        noises = noise_root_of(mechanism) @ noises
    for index in range(mechanism.rounds):
        turn = groups == index % mechanism.separation
        taking_part = included & turn & (rng.random(count) < rate)
        seen = taking_part * float(effect) + noise * noises[index]
        scores += sums.weights[groups, index] * seen
    name = f"m = {count}"
    family = family_of(mechanism)
    longest = float(sums.lengths.max())
    by_law, _ = gaussian_bound_of(scores, included, longest, DELTA, ONE_SIDED, family)
    rates = independent_bound(scores, included, noise, DELTA, ONE_SIDED, family)
    return {
        f"one_run, gaussian, {name}": by_law,
        f"one_run, independent, {name}": rates,
    }


def one_run_trial(
    rng: np.random.Generator, mechanism: Mechanism, noise: float, effect: bool, *, count: int
) -> dict[str, float]:
    """Canaries by run-long coins, seen in every round: by any mechanism, and by its f-DP."""
    included = rng.random(count) < 0.5
    scores = np.zeros(count)
    for _ in range(mechanism.rounds):
        taking_part = included & (rng.random(count) < mechanism.rate)
        seen = taking_part * float(effect) + noise * rng.standard_normal(count)
        scores += log_likelihood_ratio(seen, mechanism.rate, noise)
    name = f"m = {count}"
    plain = audit_scores(scores, included, DELTA, ONE_SIDED)
    bounds = {f"one_run, {name}": plain.epsilon}
    if mechanism.rate == 1.0:
        refined = audit_scores(scores, included, DELTA, ONE_SIDED, bound=gaussian_bound)
        bounds[f"f_dp (mu-GDP), {name}"] = refined.epsilon
    else:
        family = family_of(mechanism)
        composed = audit_scores(scores, included, DELTA, ONE_SIDED, bound=family.bound)
        bounds[f"f_dp (composed), {name}"] = composed.epsilon if family.is_known else 0.0
    return bounds


@lru_cache
def family_of(mechanism: Mechanism) -> ComposedFamily:
    """The claims of a mechanism, kept over trials."""
    return ComposedFamily(mechanism.compose, mechanism.rounds)


def per_round_trial(
    rng: np.random.Generator, mechanism: Mechanism, noise: float, effect: bool, *, count: int
) -> dict[str, float]:
    """Canaries by a coin a round: mu of a step by two ways, composed."""
    trials = StepTrials()
    for _ in range(mechanism.rounds):
        coins = rng.random(count) < 0.5
        trials.add(coins * float(effect) + noise * rng.standard_normal(count), coins)
    bounds = {}
    for name, bound in (("Clopper-Pearson", mu_by_clopper_pearson), ("normal", mu_by_normal)):
        # Rounded down to a grid of 1 %, for compositions that can be kept over trials.
        mu = bound(trials, ONE_SIDED)
        mu = float(1.01 ** np.floor(np.log(mu) / np.log(1.01))) if mu > 0.0 else 0.0
        epsilon = epsilon_of_run(mu, mechanism.rounds, DELTA, mechanism.compose)
        bounds[f"worst_case, {name}, m = {count}"] = epsilon or 0.0
    return bounds


def one_shot_trial(
    rng: np.random.Generator, mechanism: Mechanism, noise: float, effect: bool
) -> dict[str, float]:
    """Random directions that all take part: the final cosine, and the largest of all rounds'.

    The noise is drawn inside the span of the directions, and as a chi-squared norm outside it,
    which is the same law as drawing it whole.
    """
    used, rounds = NUM_ONE_SHOT, mechanism.rounds
    directions = rng.standard_normal((2 * used, NUM_PARAMETERS), dtype=np.float32)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    gram = (directions @ directions.T).astype(np.float64)
    taking_part = rng.random((rounds, used)) < mechanism.rate
    weights = np.zeros((rounds, 2 * used))
    weights[:, :used] = taking_part * float(effect)
    inside = rng.standard_normal((rounds, 2 * used))
    outside = rng.chisquare(NUM_PARAMETERS - 2 * used, size=rounds)
    root = np.linalg.cholesky(gram)
    sent = weights @ gram
    products = sent + noise * inside @ root.T
    # |sum + noise|**2, from its parts: within the span, and what is outside it.
    whitened = weights @ root + noise * inside
    norms = np.sqrt(np.square(whitened).sum(axis=1) + noise**2 * outside)
    total = whitened.sum(axis=0)
    beyond = noise**2 * rounds * rng.chisquare(NUM_PARAMETERS - 2 * used)
    final = products.sum(axis=0) / np.sqrt(np.square(total).sum() + beyond)
    bound = audit_final(final[:used], NUM_PARAMETERS, DELTA, ONE_SIDED)
    largest = (products / norms[:, None]).max(axis=0)
    held_out = audit_held_out(largest[:used], largest[used:], DELTA, ONE_SIDED)
    name = f"k = {used}, P = {NUM_PARAMETERS}"
    return {
        f"one_shot, final, {name}": bound.epsilon,
        f"one_shot, final, {name} (estimate)": bound.estimate,
        f"one_shot, every round, {name}": held_out.epsilon,
        f"one_shot, every round, {name} (estimate)": held_out.estimate,
    }


def run_trials(
    mechanism: Mechanism, trial: Trial, epsilon: float, effect: bool, trials: int, seed: int
) -> dict[str, Array]:
    """Bounds of so many independent trials: name to shape (trials,).

    Args:
        mechanism: Of known epsilon.
        trial: Draws scores and bounds epsilon.
        epsilon: The truth.
        effect: Whether canaries move anything.
        trials: How many.
        seed: Of the draws.
    """
    noise = mechanism.noise_multiplier(epsilon)
    rng = np.random.default_rng([seed, int(1000 * epsilon), effect])
    drawn = [trial(rng, mechanism, noise, effect) for _ in range(trials)]
    return {name: np.array([bounds[name] for bounds in drawn]) for name in drawn[0]}
