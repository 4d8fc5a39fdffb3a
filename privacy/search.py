"""Searches for the crossing of epsilon and a budget, by few evaluations of an accountant.

Guarantee: what is returned was evaluated and is within the budget, and a number beyond it (the next
whole one; a multiplier that is smaller by the tolerance) was evaluated and is not; unless it is one
of the two ends of ``last_within``, which are taken on trust and never evaluated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

from privacy.accountant import check_composition
from privacy.amplification import Composition
from privacy.errors import PlanError, PrivacyError

Number = TypeVar("Number", int, float)

# Relative tolerance of the noise multiplier.
_TOLERANCE = 5e-5
_SMALLEST_NOISE = 1e-3
_LARGEST_NOISE = 1e7
# The numerical accountants are searched on a grid this much coarser first, which is that much
# faster and, being an upper bound too, ends close by.
COARSE = 10.0
# What PRV's upper bound adds to its estimate at small epsilon.
PRV_OFFSET = 0.01


def search_in_stages(
    search: Callable[[str, float, Number], Number],
    guess: Number,
    accountant: str,
    composed: Composition,
) -> Number:
    """Search by the quick accountants first; each starts where the one before it ended.

    ``search`` is by an accountant, on a grid so much coarser, from a guess; the last one is by
    ``accountant``. ``composed`` is a composition of the kind that is searched.
    """
    stages: list[tuple[str, float]] = [(accountant, 1.0)]
    if accountant != "rdp" and _knows_rdp(composed):
        stages = [("rdp", 1.0), ("pld", COARSE), *stages]
    for name, coarseness in stages:
        guess = search(name, coarseness, guess)
    return guess


def _knows_rdp(composed: Composition) -> bool:
    try:
        check_composition(composed, "rdp")
    except PlanError:
        return False
    return True


def last_within(
    epsilon_of: Callable[[int], float], target: float, guess: int, good: int, bad: int
) -> int:
    """Find where epsilon crosses a budget, between an end that fits and one that does not.

    Returned is a number that fits, whose neighbour towards ``bad`` does not; ``good`` if nothing
    else fits. ``bad`` lies below or above ``good``, both at least 0. Epsilon should not fall on the
    way to ``bad``, else one crossing of several is found.
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
            estimate = bad * (good / bad) ** _crossing(at_bad, at_good, target)
            # Beyond the estimate and short of it in turn, so that both ends close in.
            probe = round(estimate + max(width / 64.0, 1.0) * onward)
        wide = width
    return good


def _ratio(epsilon: float, target: float) -> float:
    """Budget over epsilon, within a factor that a guess may be wrong by."""
    return min(max(target / epsilon, 1e-2), 1e2) if epsilon > 0.0 else 1.0


def _crossing(at_bad: float, at_good: float, target: float) -> float:
    """Place where log epsilon, taken as linear, crosses the target, from 0 at bad to 1 at good."""
    if not (math.isfinite(at_bad) and at_good > 0.0):
        return 0.5
    drop = math.log(at_bad / at_good)
    return math.log(at_bad / target) / drop if drop > 0.0 else 0.5


def smallest_noise(epsilon_of: Callable[[float], float], target: float, guess: float) -> float:
    """Find the smallest multiplier within a budget, to a relative tolerance of 5e-5.

    Brackets the crossing from a guess, then closes in on it in the logarithms.

    Epsilon should not rise with the multiplier. A PrivacyError says that no multiplier from 1e-3 to
    1e7 fits, or the smallest does.
    """
    low, high = _bracket_noise(epsilon_of, target, guess)
    pad = math.log1p(_TOLERANCE) / 3.0
    wide = math.inf
    while (width := math.log(high / low)) > 3.0 * pad:
        step = _crossing(epsilon_of(low), epsilon_of(high), target)
        # Aim just above the crossing, to end with it between two close points; then just below.
        ahead = step * width + pad
        if ahead > width - pad / 4.0:
            ahead = step * width - pad
        if not pad / 4.0 < ahead < width - pad / 4.0 or width > 0.5 * wide:
            ahead = width / 2.0
        wide = width
        middle = low * math.exp(ahead)
        if epsilon_of(middle) <= target:
            high = middle
        else:
            low = middle
    return high


def _bracket_noise(
    epsilon_of: Callable[[float], float], target: float, guess: float
) -> tuple[float, float]:
    """Find a multiplier beyond the budget and a larger one within it."""
    noise = min(max(guess, _SMALLEST_NOISE), _LARGEST_NOISE)
    epsilon = epsilon_of(noise)
    within = epsilon <= target
    slope, step = 1.0, 0.0
    while True:
        if 0.0 < epsilon < math.inf:
            # Where a line in the logarithms crosses the target, a third of the tolerance beyond
            # it; at least twice the last step, should the line be a poor guide.
            step = max(abs(math.log(epsilon / target)) / slope + _TOLERANCE / 3.0, 2.0 * step)
        else:
            step = max(1.0, 2.0 * step)
        factor = math.exp(-step if within else step)
        following = min(max(noise * factor, _SMALLEST_NOISE), _LARGEST_NOISE)
        if following == noise:
            raise PrivacyError(_unreachable(target, within, epsilon))
        epsilon_there = epsilon_of(following)
        if (epsilon_there <= target) != within:
            return (following, noise) if within else (noise, following)
        if 0.0 < epsilon_there < math.inf and 0.0 < epsilon < math.inf:
            measured = math.log(epsilon / epsilon_there) / math.log(following / noise)
            slope = min(max(measured, 0.2), 20.0)
        noise, epsilon = following, epsilon_there


def _unreachable(target: float, within: bool, reached: float) -> str:
    if within:
        return (
            f"epsilon {target!r} is so large that noise_multiplier {_SMALLEST_NOISE} already meets "
            "it; that is no protection; set noise_multiplier yourself if it is meant"
        )
    return (
        f"epsilon {target!r} cannot be shown: at noise_multiplier {_LARGEST_NOISE:.0e} the "
        f"accountant still says {reached:.4g} (prv adds {PRV_OFFSET} for its own error); raise "
        "epsilon or delta, lower the rounds, or use the accountant pld"
    )
