"""A lower bound on epsilon from one run, by the trade-off function that a mechanism claims.

Guarantee: a bound at the confidence asked for, if what it rests on holds.

What it rests on: as ``privacy.empirical.one_run`` (fair coins, guesses that see the release alone,
a number of guesses fixed before or corrected for), and on a family: that the mechanism is one of a
family of trade-off functions ordered by one parameter, such as mu-GDP, or so many rounds of the
sampled Gaussian of some noise multiplier. What is refuted is each member as a *claim*, and what is
reported is the epsilon of the strongest leak that is still refuted; for a mechanism outside the
family it is the epsilon of the member that leaks least and is not refuted. Unit: a canary, as a
user; adjacency add-or-remove-one, under selected zero-out.

The recursion: let p_i be the probability of exactly i correct guesses out of c. Under f-DP, for
every tail, R = sum_{j >= i} (j / m) p_j and H = sum_{j >= i - 1} ((c - j) / m) p_j satisfy
R <= 1 - f(H): of a canary guessed right, flipping its coin makes the guess wrong. Going down from
the observed count, mass at the tail forces mass below it; if the mass forced exceeds one, the tail
was less likely than assumed.

Source: Mahloujifar, Melis, Chaudhuri 2024, "Auditing f-differential privacy in one run",
theorem 3.2 and algorithm 3 (two choices a canary, with abstentions).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

from privacy.amplification import Composition
from privacy.empirical.gaussian_dp import largest
from privacy.empirical.one_run import check_counts
from privacy.empirical.trade_off import TradeOff, sure_epsilon, trade_off_of

_SMALLEST_NOISE = 0.02
_LARGEST_NOISE = 1e6
_MUCH_NOISE = 64.0
# Of the logarithm to base 2 of the noise multiplier.
_TOLERANCE = 1.0 / 128.0


def refutes(
    trade_off: TradeOff, num_canaries: int, num_guesses: int, num_correct: int, significance: float
) -> bool:
    """Whether under a claim so many correct guesses are less likely than ``significance``."""
    check_counts(num_canaries, num_guesses, num_correct)
    right = significance * num_correct / num_canaries
    wrong = significance * (num_guesses - num_correct) / num_canaries
    whole = num_guesses / num_canaries
    for index in range(num_correct - 1, -1, -1):
        forced = max(wrong, trade_off.least_false(right))
        if forced == wrong:
            break  # Neither can change any more.
        right += index / (num_guesses - index) * (forced - wrong)
        wrong = forced
        if right + wrong > whole:
            return True
    return right + wrong > whole


class ComposedFamily:
    """The claims of one mechanism and sampler over so many rounds, one a noise multiplier."""

    def __init__(self, composition: Callable[[float, int], Composition], rounds: int) -> None:
        # The claim of a multiplier, weaker as it falls; None for no claim, or none known.
        self._claim: Callable[[float], TradeOff | None] = cache(
            lambda noise: trade_off_of(composition(noise, rounds))
        )
        # Epsilon of a multiplier at a delta; None of what PLD does not know.
        self._epsilon: Callable[[float, float], float | None] = cache(
            lambda noise, delta: sure_epsilon(composition(noise, rounds), delta)
        )
        # Smallest multiplier that so many correct guesses refute: canaries, guesses, right, level.
        self._refuted: Callable[[int, int, int, float], float] = cache(
            lambda *test: self.smallest_refuted(lambda claim: refutes(claim, *test))
        )

    @property
    def is_known(self) -> bool:
        """Whether PLD knows the composition."""
        # Much noise: there is a claim, if there is one for any multiplier.
        return self._claim(_MUCH_NOISE) is not None

    def bound(
        self, num_canaries: int, num_guesses: int, num_correct: int, delta: float, confidence: float
    ) -> float:
        """Epsilon of the least noise that is not refuted: for ``one_run.audit_scores``."""
        noise = self._refuted(num_canaries, num_guesses, num_correct, 1.0 - confidence)
        return self.epsilon_of(noise, delta)

    def epsilon_of(self, noise: float, delta: float) -> float:
        """Epsilon of a noise multiplier, rounded down; 0 of infinity, and where PLD cannot say."""
        return 0.0 if math.isinf(noise) else self._epsilon(noise, delta) or 0.0

    def smallest_refuted(self, refutes_claim: Callable[[TradeOff], bool]) -> float:
        """Smallest noise multiplier whose claim a test refutes, to 0.6 % above; infinity if none.

        What refutes a claim must refute those that are stronger.
        """

        def refuted(logarithm: float) -> bool:
            claim = self._claim(2.0**logarithm)
            return claim is not None and refutes_claim(claim)

        # Logarithms to base 2 of the multiplier.
        low, high = 0.0, 1.0
        while low > math.log2(_SMALLEST_NOISE) and refuted(low):
            low, high = low - 1.0, low
        while high > 0.0 and not refuted(high):
            low, high = high, high + 1.0
            if high > math.log2(_LARGEST_NOISE):
                return math.inf
        return float(
            2.0 ** -largest(lambda negative: refuted(-negative), -high, -low, _TOLERANCE, 0.0)
        )
