"""Price of choosing the best of several private runs: selection with random stopping.

Guarantee: a trial draws one point of a grid, uniformly and independently of all else, trains with
noise and cohorts of its own, and gives a model and a score. The number of trials K is drawn from
one of the distributions below, independently of the data. The best trial by its score is released,
and nothing else: not K, and not the other trials' points, models or scores. With K = 0, which
Poisson's can be, nothing is released. Then what is released has the epsilon of
``selection_epsilon``, under the unit and adjacency of a trial.

Assumed: each point of the grid has one of the plans that are accounted, all under one adjacency;
grid, distribution and metric were fixed without looking at the data; ties are broken by what does
not depend on the data, as the order in which trials were drawn. The score must be computed from the
trial's releases and from data that the unit has no part in (held-out users), or be private itself
and a part of the trial's plan. Held-out users are not covered: the choice reads their data without
noise.

A trial is a mixture, over its public point, of runs under these plans. Its Renyi divergence is at
most the largest of theirs, order by order, also with the point released.

The accounting is Renyi's: dp-accounting's ``RepeatAndSelectDpEvent``, under its "rdp" accountant,
which alone knows it. That event has one plan, and eta from 0 on. For other selections the same
theorems are applied to the Renyi divergences here; tests hold the two together.

Source: Papernot and Steinke 2022, "Hyperparameter tuning with Renyi differential privacy",
theorem 2 (truncated negative binomial), theorem 6 (Poisson).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from privacy.accountant import LARGEST_EPSILON, check_composition, check_delta, has_no_noise
from privacy.accountants.renyi import renyi_epsilon, renyi_of
from privacy.amplification import Composition, MechanismComposition, Participation
from privacy.calibration import calibrate_noise_multiplier, check_epsilon
from privacy.errors import PlanError, PrivacyError
from privacy.search import smallest_noise

Distribution = Literal["poisson", "geometric", "truncated_negative_binomial"]
DISTRIBUTIONS: tuple[str, ...] = get_args(Distribution)
# Beyond it nobody trains, and sampling by its cumulative sum would take long.
_LARGEST_MEAN = 1e6
# Of a gamma that is searched for, an eta and a first mass: beyond it digits are lost.
_SMALLEST = 1e-300


@dataclass(frozen=True, slots=True)
class Trials:
    """Distribution of the number of trials.

    Attributes:
        distribution: One of ``DISTRIBUTIONS``.
        mean: Expected number of trials, at least 1.
        eta: Shape of the truncated negative binomial, above -1: 0 is the logarithmic distribution,
            1 the geometric; infinite for Poisson's.
        gamma: Its probability of success, in (0, 1]; None for Poisson's.
    """

    distribution: str
    mean: float
    eta: float
    gamma: float | None

    @classmethod
    def named(
        cls,
        distribution: str,
        mean: float | None = None,
        eta: float | None = None,
        gamma: float | None = None,
    ) -> Trials:
        """A distribution by its name, with the mean or gamma that is given.

        The mean is from 1 to a million; ``eta`` is of "truncated_negative_binomial" alone, above
        -1; ``gamma``, in (0, 1], stands for the mean, but not of "poisson".
        """
        if distribution not in DISTRIBUTIONS:
            raise PrivacyError(
                f"the distribution of the number of trials is {distribution!r}, but must be one of "
                f"{', '.join(DISTRIBUTIONS)}"
            )
        is_general = distribution == "truncated_negative_binomial"
        if is_general == (eta is None):
            raise PrivacyError(
                f"{distribution}: eta is {eta!r}, but "
                + ("must be set, to a number above -1" if is_general else "it has none")
                + "; geometric is truncated_negative_binomial with eta 1"
            )
        if distribution == "poisson" and gamma is not None:
            raise PrivacyError("poisson: has no gamma; give the mean number of trials alone")
        if (mean is None) == (gamma is None):
            has = "mean" if distribution == "poisson" else "mean or gamma, and not both"
            raise PrivacyError(f"{distribution}: give {has}; mean is {mean!r}, gamma {gamma!r}")
        if mean is not None and not 1.0 <= mean <= _LARGEST_MEAN:
            raise PrivacyError(
                f"mean is {mean!r}, but must be an expected number of trials from 1 to "
                f"{_LARGEST_MEAN:g}"
            )
        if distribution == "poisson":
            assert mean is not None
            return cls(distribution, float(mean), math.inf, None)
        shape = 1.0 if eta is None else float(eta)
        if not -1.0 < shape < 1e6:
            raise PrivacyError(f"eta is {eta!r}, but must be above -1, and at most 1e6")
        if gamma is None:
            assert mean is not None
            return cls(distribution, float(mean), shape, _gamma_of(float(mean), shape))
        if not 0.0 < gamma <= 1.0 or mean_of(gamma, shape) > _LARGEST_MEAN:
            raise PrivacyError(
                f"gamma is {gamma!r}, but must be above 0 and at most 1, with a mean of at most "
                f"{_LARGEST_MEAN:g} trials"
            )
        return cls(distribution, mean_of(gamma, shape), shape, float(gamma))

    @property
    def probability_of_none(self) -> float:
        """Probability that there is no trial, and nothing is released."""
        return math.exp(-self.mean) if self.gamma is None else 0.0

    def draw(self, rng: np.random.Generator) -> int:
        """Draw the number of trials: at least 0 for Poisson's, at least 1 for the others.

        Draws of ``rng`` must not depend on the data.
        """
        if self.gamma is None:
            return int(rng.poisson(self.mean))
        point, number, mass = float(rng.random()), 1, self.probability_of_one
        if mass < _SMALLEST:
            # The untruncated law, whose mass at 0 is smaller still where eta is large.
            return max(1, int(rng.negative_binomial(self.eta, self.gamma)))
        # A mass that underflows here is beyond every point that a float can be.
        while point >= mass > 0.0:
            point -= mass
            mass *= (1.0 - self.gamma) * (number + self.eta) / (number + 1)
            number += 1
        return number

    @property
    def probability_of_one(self) -> float:
        """Probability of a single trial."""
        if self.gamma is None:
            return self.mean * math.exp(-self.mean)
        return float(self.mean * self.gamma ** (self.eta + 1.0))

    def to_json_dict(self) -> dict[str, Any]:
        """As a run's record holds it; what Poisson's has not is None."""
        eta = None if math.isinf(self.eta) else self.eta
        return {
            "distribution": self.distribution,
            "mean": self.mean,
            "eta": eta,
            "gamma": self.gamma,
        }

    @classmethod
    def from_json_dict(cls, document: dict[str, Any]) -> Trials:
        """Read what ``to_json_dict`` wrote."""
        name, gamma = document.get("distribution"), document.get("gamma")
        eta = document.get("eta") if name == "truncated_negative_binomial" else None
        mean = document.get("mean") if gamma is None else None
        return cls.named(str(name), mean, eta, gamma)


def mean_of(gamma: float, eta: float) -> float:
    """Mean of the truncated negative binomial of a gamma in (0, 1] and an eta above -1."""
    if gamma == 1.0:
        return 1.0
    log = math.log(gamma)
    # (1 - gamma ** eta) / eta, whose limit at 0 is -log(gamma).
    spread = -log if abs(eta) < _SMALLEST else -math.expm1(eta * log) / eta
    return (1.0 - gamma) / (gamma * spread)


def _gamma_of(mean: float, eta: float) -> float:
    """Gamma of a mean, never above the true one."""
    if eta == 1.0 or mean == 1.0:
        return 1.0 / mean
    low, high = _SMALLEST, 1.0
    if mean > mean_of(low, eta):
        raise PrivacyError(
            f"mean is {mean!r}, but at eta {eta!r} must be an expected number of trials below "
            f"{mean_of(low, eta):.4g}; a larger eta allows more"
        )
    while high / low > 1.0 + 1e-13:
        middle = math.sqrt(low * high)
        if not low < middle < high:
            break
        if mean_of(middle, eta) < mean:
            high = middle
        else:
            low = middle
    return low


def selection_epsilon(plans: Sequence[Composition], trials: Trials, delta: float) -> float:
    """Upper bound of epsilon of releasing the best of a random number of trials.

    There is a plan for each point of the grid, at least one: what one trial composes to. Epsilon is
    infinite without noise or above ``LARGEST_EPSILON``.

    Raises:
        PrivacyError: An argument is out of its range.
        PlanError: Renyi's accounting does not know a plan, or their adjacencies differ.
    """
    check_delta(delta)
    distinct = tuple(dict.fromkeys(plans))
    if not distinct:
        raise PrivacyError("a selection needs the plan of at least one trial")
    for plan in distinct:
        try:
            check_composition(plan, "rdp")
        except PlanError as error:
            raise PlanError(f"selection is accounted by rdp alone: {error}") from None
    if len({plan.adjacency for plan in distinct}) > 1:
        raise PlanError(
            "the points of the grid have plans under different adjacencies, which have no epsilon "
            "together; keep the sampling out of the grid"
        )
    if any(has_no_noise(plan) for plan in distinct):
        return math.inf
    if all(not count for plan in distinct for _, count in plan.parts):
        return 0.0
    epsilon = _epsilon(distinct, trials, delta)
    return epsilon if epsilon <= LARGEST_EPSILON else math.inf


def _epsilon(plans: Sequence[Composition], trials: Trials, delta: float) -> float:
    from dp_accounting import rdp

    parts = [[(event, int(count)) for event, count in plan.parts if count] for plan in plans]
    singles = [0.0]
    if trials.eta >= 0.0:
        law = (trials.mean, trials.eta)
        singles = [renyi_epsilon(part, delta, law) for part in parts if part]
        if len(plans) == 1:
            return singles[0]
    trial = [renyi_of(part) for part in parts]
    orders = np.asarray(trial[0].orders, dtype=np.float64)
    divergences = np.max([_monotone(orders, one.rdp) for one in trial], axis=0)
    selected = selected_divergences(orders, divergences, trials)
    # A grid never costs less than one of its points, whose bound may be the looser one.
    return max(float(rdp.compute_epsilon(orders, selected, delta)[0]), *singles)


def selected_divergences(
    orders: NDArray[np.float64], divergences: NDArray[np.float64], trials: Trials
) -> NDArray[np.float64]:
    """Renyi divergences of the best trial's release: bounds at the same orders, shape (k,).

    Of orders above 1 and one trial's divergences, infinite where there is no bound; shape (k,)
    each.

    Source: the module's paper, theorems 2 and 6.
    """
    from dp_accounting.rdp.rdp_privacy_accountant import compute_delta

    base = divergences + math.log(trials.mean) / (orders - 1.0)
    if trials.gamma is None:
        # One trial's delta at the epsilon that the theorem asks for, order by order.
        deltas = [
            compute_delta(orders, divergences, math.log1p(1.0 / (order - 1.0)))[0]
            for order in orders
        ]
        return np.asarray(base + trials.mean * np.asarray(deltas))
    # The theorem's second order is free: the one with the smallest bound.
    stopping = (1.0 - 1.0 / orders) * divergences - math.log(trials.gamma) / orders
    bounds = base + (1.0 + trials.eta) * np.min(stopping)
    return _monotone(orders, bounds)


def _monotone(orders: NDArray[np.float64], bounds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Tighten bounds: divergences grow with their order, so one holds at each order below it."""
    tight, descending = bounds.copy(), np.argsort(orders)[::-1]
    tight[descending] = np.minimum.accumulate(bounds[descending])
    return tight


def calibrate_selection(
    epsilon: float,
    delta: float,
    participation: Participation,
    rounds: int,
    composition: MechanismComposition,
    trials: Trials,
) -> float:
    """Smallest noise multiplier of each trial at which the selection is within a budget.

    To a relative tolerance of 5e-5; a PrivacyError says that no multiplier fits.
    """
    check_epsilon(epsilon)

    def epsilon_of(noise: float) -> float:
        return selection_epsilon([composition(participation, noise, rounds)], trials, delta)

    guess = calibrate_noise_multiplier(
        epsilon / 2.0, delta, participation, rounds, "rdp", composition
    )
    return smallest_noise(epsilon_of, epsilon, guess)


def repeated(plan: Composition, runs: int) -> Composition:
    """So many runs under one plan, each with noise and cohorts of its own, all released."""
    return replace(plan, count=plan.count * runs, beside=plan.beside * runs)
