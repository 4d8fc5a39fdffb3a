"""A test of guesses about users, run by run: a bet that a true claim makes unfavourable.

Guarantee: the wealth of a bet on a true claim exceeds 1 / a at any time with probability a at most
(Ville's inequality), so that one may look after every run, stop, or add runs. What it rests on: the
game of ``privacy.empirical.membership``, and that the guesses about a run depend on its release and
on earlier runs alone. The users of one run may depend on one another in any way.

The bet. In a run of U users, guess r users "in" and r others "out". For a claim (e, d), at a user
whose coin is fair, P(guessed in | in) <= exp(e) P(guessed in | out) + d, and likewise the other way
round. So the payoff
    G = (1 / U) (right guesses - exp(e) wrong guesses)
has mean at most d given the past: half of the users are in, and either side of the guesses brings
at most d / 2 a user. G is at least -exp(e) 2 r / U. The stake is multiplied by
    1 + s (G - d) / (exp(e) 2 r / U + d),
which is at least 0 for s in [0, 1] and has mean at most 1. The wealth is the mean of the stakes of
a stated grid of (e, r, s): a mean of bets is a bet, which pays for the choice of thresholds.

Sources: Waudby-Smith, Ramdas 2024, "Estimating means of bounded random variables by betting";
Gonzalez, Dulce-Rubio, Ramdas, Ribero 2025, "Sequentially auditing differential privacy"
(arXiv 2509.07055: tests of a privacy claim that may stop at any time). The payoff is ours; theirs
is a kernel's.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from privacy.empirical.trade_off import TradeOff

_EPSILONS = (0.0, 1.0, 3.0)
# Parts of the users that are guessed "in", and as many "out".
_PARTS = (0.5, 0.25, 0.0625)
_STAKES = (0.5, 1.0)


class Bets:
    """The wealth of all bets of the grid against one claim: the trade-off function of one run.

    Attributes:
        largest: The largest wealth so far, from 1.
    """

    def __init__(self, claim: TradeOff) -> None:
        self._terms = [
            (math.exp(epsilon), claim.delta_at(epsilon), part, stake)
            for epsilon in _EPSILONS
            for part in _PARTS
            for stake in _STAKES
        ]
        self._logs = np.zeros(len(self._terms))
        self.largest = 1.0

    def add(self, scores: NDArray[np.float64], members: NDArray[np.bool_]) -> float:
        """Bet on one more run, and give the wealth after it.

        Scores, shape (U,), U of 2 or more, are larger when a user seems to have been in; they must
        be of the run's release and of earlier runs alone. The coins have shape (U,).
        """
        order = np.argsort(scores, kind="stable")
        for place, (factor, delta, part, stake) in enumerate(self._terms):
            count = max(1, int(part * scores.size))
            out, inside = order[:count], order[len(order) - count :]
            right = int(members[inside].sum() + (~members[out]).sum())
            payoff = (right - factor * (2 * count - right)) / scores.size
            least = factor * 2 * count / scores.size + delta
            growth = 1.0 + stake * (payoff - delta) / least
            self._logs[place] += math.log(growth) if growth > 0.0 else -math.inf
        wealth = float(np.exp(np.minimum(self._logs, 700.0)).mean())
        self.largest = max(self.largest, wealth)
        return wealth
