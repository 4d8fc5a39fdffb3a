"""Cohorts of a fixed size: their privacy loss against pairs of data sets, integrated directly."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, stats

from privacy.accountant import compute_epsilon
from privacy.accountants.without_replacement import replaced_pld
from privacy.amplification import Participation, sampled_gaussian

INTERVAL = 1e-4


def delta_of_pair(rate: float, noise: float, epsilon: float, user: float, other: float) -> float:
    """Hockey-stick divergence of one round of two data sets whose other users send -1.

    Args:
        rate: Cohort over population.
        noise: Standard deviation of the noise, in clipping bounds.
        epsilon: At which.
        user: What the user sends, in [-1, 1].
        other: What who takes the user's place sends.
    """

    def density(x: float, sent: float) -> float:
        # If drawn, the user takes the place of one who sends -1.
        return float(
            (1.0 - rate) * stats.norm.pdf(x, 0.0, noise)
            + rate * stats.norm.pdf(x, sent + 1.0, noise)
        )

    def excess(x: float) -> float:
        return max(0.0, density(x, user) - math.exp(epsilon) * density(x, other))

    ends = (-12.0 * noise, 2.0 + 12.0 * noise)
    return float(integrate.quad(excess, *ends, limit=2000, epsabs=1e-14)[0])


@pytest.mark.parametrize(("rate", "noise"), [(0.01, 1.0), (0.2, 2.0), (0.7, 4.0)])
def test_one_round_is_the_worst_pair_of_data_sets_exactly(rate: float, noise: float) -> None:
    loss = replaced_pld(noise / 2.0, rate, INTERVAL)
    for epsilon in (0.1, 0.5, 1.5):
        worst = delta_of_pair(rate, noise, epsilon, 1.0, -1.0)
        assert loss.get_delta_for_epsilon(epsilon) == pytest.approx(worst, rel=2e-3, abs=1e-13)


def test_no_pair_of_data_sets_is_worse() -> None:
    loss = replaced_pld(0.5, 0.1, INTERVAL)
    for epsilon in (0.05, 0.7):
        bound = loss.get_delta_for_epsilon(epsilon) * (1.0 + 1e-6)
        for user in np.linspace(-1.0, 1.0, 3):
            for other in np.linspace(-1.0, 1.0, 3):
                assert delta_of_pair(0.1, 1.0, epsilon, float(user), float(other)) <= bound


def test_losses_below_zero_are_those_of_a_user_added() -> None:
    # Orders below 1 are what composition with other rounds needs: exchanged, the same divergence.
    loss = replaced_pld(0.5, 0.2, INTERVAL)
    for epsilon in (0.3, 1.0):
        above, below = (loss.get_delta_for_epsilon(sign * epsilon) for sign in (1.0, -1.0))
        exchanged = 1.0 - math.exp(-epsilon) + math.exp(-epsilon) * above
        assert below == pytest.approx(exchanged, rel=1e-6)


@pytest.mark.parametrize("rounds", [1, 100])
def test_epsilon_is_between_the_worst_pair_s_and_the_theorem_s(rounds: int) -> None:
    users = Participation.named("fixed_size", 1000, 10)
    composed = sampled_gaussian(users, 1.0, rounds)
    rdp, pld = (
        compute_epsilon(composed.event, rounds, 1e-5, name, composed.adjacency)
        for name in ("rdp", "pld")
    )
    # The pair of a user removed, two bounds from the others, whom Poisson sampling draws.
    poisson = sampled_gaussian(Participation.named("poisson", 1000, 10), 0.5, rounds)
    least = compute_epsilon(poisson.event, rounds, 1e-5, "pld", poisson.adjacency)
    assert least * (1.0 - 1e-3) <= pld < 0.65 * rdp
    # Documented (docs/privacy.md).
    assert (pld, least, rdp) == pytest.approx(
        {1: (3.025, 3.025, 4.955), 100: (6.641, 6.476, 11.21)}[rounds], rel=1e-3
    )


def test_everybody_is_a_gaussian_of_half_the_multiplier() -> None:
    whole = sampled_gaussian(Participation.named("fixed_size", 50, 50), 4.0, 20)
    full = sampled_gaussian(Participation.named("full", 50, 50), 2.0, 20)
    epsilons = [
        compute_epsilon(composed.event, 20, 1e-6, "pld", composed.adjacency)
        for composed in (whole, full)
    ]
    assert epsilons[0] == pytest.approx(epsilons[1], rel=1e-3)
