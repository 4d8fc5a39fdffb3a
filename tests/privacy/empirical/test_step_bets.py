"""Bets on the coins of a round's canaries: seldom won on a true claim, soon on a false one."""

from __future__ import annotations

import numpy as np
import pytest

from privacy.empirical.step_bets import StepBets
from privacy.errors import PrivacyError


def wealths(claimed: float, true: float, rounds: int, canaries: int, seed: int) -> list[float]:
    """Wealth after each round, of noise whose multiplier is ``true``."""
    rng, bets = np.random.default_rng(seed), StepBets(1.0 / claimed)
    found = []
    for _ in range(rounds):
        coins = rng.random(canaries) < 0.5
        seen = coins + true * rng.standard_normal(canaries)
        found.append(bets.add(int(((seen > 0.5) == coins).sum()), canaries))
    return found


def test_a_true_claim_is_seldom_refuted_at_any_round() -> None:
    lost = [max(wealths(1.5, 1.5, 100, 20, seed)) >= 20.0 for seed in range(300)]
    assert np.mean(lost) <= 0.05


@pytest.mark.parametrize(("true", "most"), [(0.01, 1), (0.5, 2), (1.0, 30)])
def test_less_noise_is_seen_in_the_first_rounds(true: float, most: int) -> None:
    """Half of 50 runs at a level of 1e-4: without noise in round 1, at 2/3 of it by round 30."""
    first = []
    for seed in range(50):
        found = np.array(wealths(1.5, true, 60, 50, seed))
        first.append(int(np.argmax(found >= 1e4)) + 1 if (found >= 1e4).any() else 61)
    assert np.median(first) <= most


def test_a_claim_that_allows_every_guess_is_not_refuted() -> None:
    assert StepBets(100.0).add(50, 50) == pytest.approx(1.0)


@pytest.mark.parametrize("mu", [-1.0, float("nan"), float("inf")])
def test_impossible_numbers_are_refused(mu: float) -> None:
    with pytest.raises(PrivacyError, match="mu of a step"):
        StepBets(mu)
    with pytest.raises(PrivacyError, match="cannot be right"):
        StepBets(1.0).add(3, 2)
