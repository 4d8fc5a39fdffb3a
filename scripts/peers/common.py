"""Shared by the rows on peers' errors: the row, the accountants, a lower bound, refusals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from privacy.accountant import compose_epsilon
from privacy.amplification import Participation, sampled_gaussian
from privacy.errors import PrivacyError
from privacy.mechanism import Mechanism, NoiseScale
from privacy.mechanisms import gaussian
from privacy.plan.plan import PlanRequest
from privacy.schemes.poisson import Poisson

# FLAIR's private setting: training users, cohort, rounds.
USERS, COHORT, ROUNDS = 41_131, 5_000, 5_000


@dataclass(frozen=True, slots=True)
class Row:
    """One error.

    Attributes:
        peer: Project, and release or commit (the first digits of its hash).
        files: Where it was read.
        error: What the code does.
        setting: At which the numbers hold.
        quantity: What is compared.
        claimed: What the peer claims, or its user asked for.
        true: What holds, as a lower and an upper bound; infinite above where none is known.
        here: What excludes it in this project.
        test: A test that holds that.
        evidence: What this project answered when the row ran it.
    """

    peer: str
    files: str
    error: str
    setting: str
    quantity: str
    claimed: float
    true: tuple[float, float]
    here: str
    test: str
    evidence: str


def epsilon(
    participation: Participation, noise: float, rounds: int, delta: float, by: str
) -> float:
    """Epsilon of sampled Gaussians by an accountant."""
    return compose_epsilon([sampled_gaussian(participation, noise, rounds)], delta, by)


def exactly(value: float) -> tuple[float, float]:
    """One number for both bounds."""
    return value, value


def poisson(users: int, cohort: float) -> Participation:
    """Poisson sampling of users."""
    return Participation(Poisson(), users, cohort)


def least_epsilon(
    weights: Sequence[float], other: int, noise: float, rounds: int, delta: float, mesh: float
) -> float:
    """Lower bound of epsilon from one pair of data sets, composed over the rounds.

    One user sends an update of norm 1 in the one data set, ``other`` times it in the other, and is
    taken in k times in a round with probability ``weights[k]``; all other updates are zero.

    Args:
        weights: Probability of each count from 0.
        other: 0 (a zero update) or -1 (the opposite one).
        noise: Standard deviation.
        rounds: Number of rounds.
        delta: In (0, 1).
        mesh: Of the grid of privacy losses; each round's loss is rounded down to it.
    """
    from dp_accounting.pld import privacy_loss_distribution
    from scipy.stats import norm

    reach = 9.0 * noise + len(weights)
    bins = np.linspace(-reach, reach, 20_001)

    def log_masses(step: int) -> dict[int, float]:
        masses = sum(
            weight * np.diff(norm.cdf(bins, loc=step * count, scale=noise))
            for count, weight in enumerate(weights)
        )
        return {i: math.log(mass) for i, mass in enumerate(masses) if mass > 1e-250}

    losses = privacy_loss_distribution.from_two_probability_mass_functions(
        log_masses(other),
        log_masses(1),
        pessimistic_estimate=False,
        value_discretization_interval=mesh,
    )
    return float(losses.self_compose(rounds).get_epsilon_for_delta(delta))


def least_shuffled_epsilon(
    examples: Participation, noise: float, epochs: int, delta: float
) -> float:
    """Lower bound of epsilon of shuffled batches, from one pair of data sets and one test.

    All examples but one have a gradient of -1, the one has 1 in the one data set and 0 in the
    other. Where it is not, a batch of B sums to -B, and where it is to 2 or 1 more. Seen is the
    largest sum of an epoch alone.

    Args:
        examples: How batches are cut.
        noise: Standard deviation.
        epochs: Number of epochs.
        delta: In (0, 1).

    Source: Chua et al. 2024, "How private are DP-SGD implementations?", section 4.
    """
    from dp_accounting.pld import privacy_loss_distribution
    from scipy.stats import norm

    steps = examples.scheme.rounds_of_epoch(examples)
    taken = steps * examples.cohort_size / examples.population_size
    bins = np.concatenate([[-np.inf], np.linspace(-2.0, 7.0, 4001) * noise, [np.inf]])

    def log_masses(more: float) -> dict[int, float]:
        others = norm.cdf(bins / noise) ** (steps - 1)
        largest = others * norm.cdf((bins - more) / noise) * taken
        largest += others * norm.cdf(bins / noise) * (1.0 - taken)
        masses = np.diff(largest)
        return {i: math.log(mass) for i, mass in enumerate(masses) if mass > 1e-250}

    losses = privacy_loss_distribution.from_two_probability_mass_functions(
        log_masses(1.0),
        log_masses(2.0),
        pessimistic_estimate=False,
        value_discretization_interval=1e-3,
    )
    return float(losses.self_compose(epochs).get_epsilon_for_delta(delta))


def refusal(ask: Callable[[], object]) -> str:
    """The message with which this project refuses something; an error if it does not."""
    try:
        ask()
    except PrivacyError as error:
        return str(error)
    raise AssertionError("this should have been refused")


def plan_request(**changes: Any) -> PlanRequest:
    """A private run on FLAIR's users, as far as privacy is concerned."""

    def build(noise: NoiseScale) -> Mechanism:
        return gaussian.build(gaussian.Options(clip_norm=0.1), noise)

    settings: dict[str, Any] = {
        "mechanism": "gaussian",
        "mechanism_build": build,
        "scheme": Poisson(),
        "population_size": USERS,
        "num_users": USERS,
        "hypothetical_population": False,
        "cohort_size": 200,
        "noise_cohort_size": COHORT,
        "num_rounds": ROUNDS,
        "weighting": "uniform",
        "epsilon": 2.0,
        "noise_multiplier": None,
        "delta": None,
        "accountant": "rdp",
        "uploads": ("update",),
        "batchnorm_layers": (),
        "num_parameters": 10,
    }
    return PlanRequest(**{**settings, **changes})
