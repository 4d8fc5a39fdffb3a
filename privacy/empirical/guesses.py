"""Guesses of which canaries were in: the largest scores "in", the smallest "out", else abstain.

Guarantee: none. The bounds that count correct guesses (``one_run``, ``f_dp``) hold for a number of
guesses that was fixed before the run; where the best of a grid is taken, each entry of the grid is
tested at the level divided by the entries (Bonferroni), and the grid depends on the number of
canaries alone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from privacy.errors import PrivacyError

# Fewer guesses cannot show more than epsilon = 1.8 at 95 %, even when all are right.
_FEWEST = 20


class Guesses(NamedTuple):
    """How many canaries are guessed, chosen without a look at the scores.

    Attributes:
        most_in: Canaries with the largest scores, guessed "in".
        least_out: Canaries with the smallest scores, guessed "out".
    """

    most_in: int
    least_out: int

    @property
    def total(self) -> int:
        """Guesses made; the other canaries are abstained from."""
        return self.most_in + self.least_out


def guess_grid(num_canaries: int) -> tuple[Guesses, ...]:
    """The stated grid: all canaries, a half, a quarter ... of them, by both ends and by the top.

    Args:
        num_canaries: m, at least 1.
    """
    grid = []
    total = num_canaries
    while total >= min(_FEWEST, num_canaries):
        grid.append(Guesses((total + 1) // 2, total // 2))
        if total <= num_canaries // 4:
            grid.append(Guesses(total, 0))
        total //= 2
    return tuple(grid)


def count_correct(
    scores: NDArray[np.float64], included: NDArray[np.bool_], guesses: Guesses
) -> int:
    """Count the guesses that are right.

    Ties are broken by position, which no coin has moved.

    Args:
        scores: Shape (m,): larger when a canary seems to have been in; finite.
        included: Shape (m,): the coins.
        guesses: How many.

    Raises:
        PrivacyError: The shapes differ, a score is not finite, or the guesses are more than m.
    """
    if scores.shape != included.shape or scores.ndim != 1:
        raise PrivacyError(
            f"scores have shape {scores.shape} and coins {included.shape}; both must be (m,)"
        )
    if not np.isfinite(scores).all():
        raise PrivacyError("a score of a canary is not finite; the run has left float range")
    if min(guesses) < 0 or guesses.total > scores.size:
        raise PrivacyError(f"{guesses} cannot be made of {scores.size} canaries")
    order = np.argsort(scores, kind="stable")
    guessed_out = order[: guesses.least_out]
    guessed_in = order[scores.size - guesses.most_in :]
    return int(included[guessed_in].sum() + (~included[guessed_out]).sum())
