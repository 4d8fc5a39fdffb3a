"""A test of a running mechanism, round by round: bets on the coins of its worst-case canaries.

Guarantee: of a mechanism that does what it claims, the wealth reaches 1 / a at any time with
probability a at most (Ville's inequality), so that one may look after every round and stop at the
first that shows a violation. What it rests on: each canary takes part in each round by a fair coin
of its own; a step is mu-GDP for one user, given the rounds before; and noise is independent from
canary to canary, as the claim of a Gaussian mechanism on distinct coordinates says, too: noise that
is not so violates the claim as well. Unit: a canary, as a user; adjacency add-or-remove-one, under
selected zero-out.

The bet. Under mu-GDP no guess of a fair coin is right more often than p = Phi(mu / 2), whatever is
guessed. A stake of s on "right" multiplies the wealth by 1 + s (1 - p) where the guess is right,
and by 1 - s p where it is wrong: at most 1 on average. The stakes are those that would gain most if
guesses were right with probability p + (1 - p) f, for a stated grid of f; the wealth is their mean,
which pays for the choice.

Sources: Gonzalez, Dulce-Rubio, Ramdas, Ribero 2025, "Sequentially auditing differential privacy"
(arXiv 2509.07055: a test of a privacy claim that may stop at any time, within one training run;
theirs bets by a kernel's statistic); Nasr et al. 2023, "Tight auditing of differentially private
machine learning" (canaries by a coin a round). The bet on mu-GDP is ours.
"""

from __future__ import annotations

import math

import numpy as np

from privacy.errors import PrivacyError

# How much more often than p guesses are right, in parts of what is left to 1.
_FRACTIONS = (0.05, 0.2, 0.5, 0.95)


class StepBets:
    """The wealth of all bets against one claim of a step: mu, finite and at least 0.

    Attributes:
        largest: The largest wealth so far, from 1.
    """

    def __init__(self, mu: float) -> None:
        from scipy.special import ndtr

        if not (math.isfinite(mu) and mu >= 0.0):
            raise PrivacyError(f"mu of a step is {mu!r}, but must be finite and at least 0")
        right = float(ndtr(mu / 2.0))
        # Against a claim that lets every guess be right there is no bet.
        gains = [right + (1.0 - right) * fraction for fraction in _FRACTIONS]
        self._right = np.log([gain / right for gain in gains])
        self._wrong = np.array(
            [math.log((1.0 - gain) / (1.0 - right)) if right < 1.0 else 0.0 for gain in gains]
        )
        self._logs = np.zeros(len(gains))
        self.largest = 1.0

    def add(self, right: int, trials: int) -> float:
        """Bet on one more round, of so many guesses, and give the wealth after it."""
        if not 0 <= right <= trials:
            raise PrivacyError(f"{right} of {trials} guesses cannot be right")
        self._logs += right * self._right + (trials - right) * self._wrong
        wealth = float(np.exp(np.minimum(self._logs, 700.0)).mean())
        self.largest = max(self.largest, wealth)
        return wealth
