"""The last whole number within a budget, by few evaluations of an accountant.

Guarantee: what is returned was evaluated and is within the budget, and the next number was
evaluated and is not; unless it is one of the two ends, which are taken on trust and never
evaluated.
"""

from __future__ import annotations

import math
from collections.abc import Callable


def last_within(
    epsilon_of: Callable[[int], float], target: float, guess: int, good: int, bad: int
) -> int:
    """Find where epsilon crosses a budget, between an end that fits and one that does not.

    Args:
        epsilon_of: Epsilon of a number strictly between the ends; should not fall on the way to
            ``bad``, else one crossing of several is found.
        target: The budget.
        guess: Where to begin.
        good: The end that is taken to fit; returned if nothing else does.
        bad: The end that is taken not to fit, below or above ``good``; both at least 0.

    Returns:
        A number that fits, whose neighbour towards ``bad`` does not.
    """
    toward_bad = 1 if bad > good else -1
    at_good: float | None = None
    at_bad: float | None = None
    probe, stride, wide = guess, 1, math.inf
    while abs(bad - good) > 1:
        probe = min(max(probe, min(good, bad) + 1), max(good, bad) - 1)
        epsilon = epsilon_of(probe)
        onward = toward_bad if epsilon <= target else -toward_bad
        if epsilon <= target:
            good, at_good = probe, epsilon
        else:
            bad, at_bad = probe, epsilon
        if at_good is None or at_bad is None:
            # As if epsilon went with the number, or with one over it, and a little beyond.
            ahead = probe * abs(_ratio(epsilon, target) ** toward_bad - 1.0) * 1.02
            probe += max(stride, round(ahead)) * onward
            stride *= 4
            continue
        width = abs(bad - good)
        if width > 0.5 * wide:
            # The line was a poor guide: halve.
            probe = (good + bad) // 2
        else:
            estimate = good * (bad / good) ** _crossing(at_good, at_bad, target)
            # Beyond the estimate and short of it in turn, so that both ends close in.
            probe = round(estimate + max(width / 64.0, 1.0) * onward)
        wide = width
    return good


def _ratio(epsilon: float, target: float) -> float:
    """Budget over epsilon, within a factor that a guess may be wrong by."""
    return min(max(target / epsilon, 1e-2), 1e2) if epsilon > 0.0 else 1.0


def _crossing(at_good: float, at_bad: float, target: float) -> float:
    """Where log epsilon, taken as linear, crosses the target, from 0 at good to 1 at bad."""
    if at_good <= 0.0 or not math.isfinite(at_bad):
        return 0.5
    return math.log(target / at_good) / math.log(at_bad / at_good)
