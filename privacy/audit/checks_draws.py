"""Has every element noise, none of it cut, and is no draw used twice within a round?

Guarantee: what is tested is the noise as seen from outside the mechanism, in multiples of the
standard deviation that the round claims; see ``privacy.noise_record`` for what is recorded of it.
Of rounds whose noise is correlated each is tested alone, but for elements without noise: there it
is assumed that at least a hundredth of an element's variance in each round is drawn anew, so that
its density, given all other rounds, is ten times the claimed one at most.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from privacy.audit import tails
from privacy.audit.check import LEVEL, Finding, check
from privacy.audit.checks_noise import Noise, recorded
from privacy.audit.evidence import Evidence
from privacy.audit.inputs import AuditInputs
from privacy.noise_record import (
    CHOSEN,
    CORRELATED,
    FIRST,
    NEAR_ZERO,
    SAME,
    TAILS,
    TWIN,
    WINDOW,
    middle_width,
)

# Of correlated noise: how much denser an element may be, given its other rounds.
DENSER = 10.0
# Rounding may be this part of the distance within which elements are the same.
MOST_OF_SAME = 0.1
# More draws than any ledger has.
_COUNTABLE = 1e15
# Two draws are closer than x with probability below this times x: Laplace's density.
DENSITY = 0.71

Array = NDArray[np.float64]


@check("noise_tails", "The noise is neither cut off nor drawn again where it is large.")
def check_noise_tails(evidence: Evidence, inputs: AuditInputs) -> Finding:
    """The tails of the claimed law: exact binomial counts, and the exact law of the largest.

    A cut noise has finite support: whatever one user adds beyond the cut is told with certainty.
    """
    from scipy import stats

    noise, found = recorded(evidence, inputs, "tails")
    bounds, counts = np.asarray(TAILS), noise["tails"]
    size, largest = noise["count"][:, None], noise["largest"][:, None]
    stretch = 1.0 + 4.0 * noise.rounding[:, None] ** 2
    stretches = stretch, 1.0 / stretch
    low, high = (tails.beyond(noise.shape, bounds * by) for by in stretches)
    # Minus the logarithm of the probability of no larger one: exponential.
    logs = [
        -size * np.log1p(-np.minimum(1.0 - 1e-16, tails.beyond(noise.shape, largest * by)))
        for by in stretches
    ]
    of_largest = 2.0 * np.minimum(np.exp(-logs[0]), -np.expm1(-logs[1]))
    each = np.nan_to_num(np.hstack([tails.binomials(counts, size, low, high), of_largest]), nan=0.0)
    for column, values in enumerate(each.T):
        what = f"beyond {TAILS[column]:g}" if column < len(TAILS) else "the largest"
        what = f"the noise has other tails ({what}) than claimed"
        found.test_rounds(what, values, noise.rounds, 2.0, each.size)
    smallest = {"smallest_p": float(each.min())}
    total, draws = counts.sum(axis=0), float(size.sum())
    parts, visible = 2.0 * each.size, float(size.max())
    if not noise.correlated:
        parts, visible = 2.0 * (len(TAILS) + 1), draws
        pooled = tails.binomials(total, draws, low.min(axis=0), high.max(axis=0))
        few, many = (float(values.sum()) for values in logs)
        law = stats.gamma(len(size))
        of_all = float(min(1.0, 2.0 * min(law.sf(few), law.cdf(many))))
        smallest["pooled_p"] = min(float(pooled.min()), of_all)
        for bound, count, value in zip(TAILS, total, pooled, strict=True):
            expected = draws * float(tails.beyond(noise.shape, bound))
            what = f"beyond {bound:g} standard deviations are {count:g} draws"
            found.test(f"{what}, {expected:.4g} expected", value, parts)
        found.test(
            "the largest draws of all rounds are not those of the claimed law", of_all, parts
        )
    # The largest bound beyond which no draw at all is too few.
    few_enough = math.log(2.0 * parts / LEVEL)
    seen = [b for b in TAILS if visible * float(tails.beyond(noise.shape, b)) >= few_enough]
    return found.seen(
        f"{total[2]:g} of {draws:.4g} draws beyond {TAILS[2]:g} standard deviations, the largest "
        f"at {float(largest.max()):.4g}; smallest p = {min(smallest.values()):.3g}{noise.note}",
        f"a cut of the noise at {max(seen):g} standard deviations or less, always"
        if seen
        else "no cut: it has too few draws",
        **smallest,
    )


@check("noise_complete", "Every element of the sum gets noise, in every round.")
def check_noise_complete(evidence: Evidence, inputs: AuditInputs) -> Finding:
    """Exact binomial bounds of the elements next to zero."""
    from scipy import stats

    noise, found = recorded(evidence, inputs, "near_zero")
    counts, size = noise["near_zero"], noise["count"][:, None]
    # Rounding moves a draw by no more than this next to zero, on average.
    reach = np.asarray(NEAR_ZERO) + 2.0 * noise.rounding[:, None]
    likely = np.minimum(1.0, 2.0 * tails.law(noise.shape).pdf(0.0) * reach)
    each = np.nan_to_num(stats.binom.sf(counts - 1, size, likely))
    found.test_rounds("elements have no noise", each.min(axis=1), noise.rounds, 2.0, each.size)
    total, mean = counts.sum(axis=0), (size * likely).sum(axis=0)
    parts = 2.0 * len(NEAR_ZERO)

    def pooled(number: float, expected: float) -> float:
        if noise.correlated:
            return tails.rare(number, DENSER * expected)
        return float(stats.binom.sf(number - 1, size.sum(), min(1.0, expected / size.sum())))

    values = [pooled(*pair) for pair in zip(total, mean, strict=True)]
    for bound, number, expected, value in zip(NEAR_ZERO, total, mean, values, strict=True):
        what = f"{number:g} draws are within {bound:g} of zero, at most {expected:.3g} expected"
        found.test(what, value, parts)
    few = min(_fewest(float(expected), LEVEL / parts, pooled) for expected in mean)
    elements = max(1, math.ceil(few / len(noise.rounds)))
    return found.seen(
        f"{total[1]:g} of {float(size.sum()):.4g} draws within {NEAR_ZERO[1]:g} of zero, "
        f"{total[-1]:g} within {NEAR_ZERO[-1]:g}; p = {min(values):.3g}{noise.note}",
        f"{elements} element{'s' * (elements > 1)} without noise in each round, or {few} in all, "
        "always",
        pooled_p=min(values),
        smallest_p=float(each.min()),
    )


def _fewest(expected: float, level: float, pooled: Callable[[float, float], float]) -> int:
    """Events that are too many, by doubling and halving."""
    if not expected < _COUNTABLE:
        return int(_COUNTABLE)
    high = max(1, math.ceil(expected))
    while pooled(high, expected) >= level:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if pooled(middle, expected) >= level else (low, middle)
    return high


@check("noise_repeats", "Within a round, no part of the noise repeats another or goes with it.")
def check_noise_repeats(evidence: Evidence, inputs: AuditInputs) -> Finding:
    """No part of a round's noise is another part of it, as it is, negated or reversed."""
    noise, found = recorded(evidence, inputs, "windows")
    size, windows, repeats = noise["count"], noise["windows"], noise["repeats"]
    visible = noise.rounding <= MOST_OF_SAME * SAME
    every = np.maximum(0.0, size - WINDOW + 1)
    low = np.where(size <= 2 * CHOSEN, every, CHOSEN / 4.0)
    left_out = ~((windows >= low) & (windows <= np.minimum(every, 4.0 * CHOSEN)))
    found.where("windows of the noise were left out", left_out, noise.rounds)
    expected = _expected_repeats(size, windows)
    number, mean = float(repeats[visible].sum()), float(expected[visible].sum())
    # Markov's inequality, which asks for no independence.
    value = 1.0 if number == 0.0 else min(1.0, mean / number)
    if not value >= LEVEL / 3.0:
        again = visible & (repeats > 0)
        found.where("a part of the noise repeats another part", again, noise.rounds)
    twins, grid = _twins(noise)
    found.test("too many elements are the same, as of a coarse grid", twins, 3.0)
    lag, length = noise["self_lag"], np.minimum(size, CORRELATED)
    spread, scale = tails.product_law(noise.shape)
    spread *= 1.0 + 4.0 * float(noise.rounding.max(initial=0.0))
    each = tails.products(noise["self_product"], spread * np.maximum(1.0, length - lag), scale)
    each = np.where(length > 1, np.nan_to_num(each * np.maximum(1.0, length - 1.0)), 1.0)
    found.test_rounds("the noise goes with itself, some elements further", each, noise.rounds, 3.0)
    hidden = int((~visible).sum())
    smallest = float(each.min(initial=1.0))
    return found.seen(
        f"{number:g} of {windows.sum():g} windows of {WINDOW} elements come again"
        + f" ({hidden} rounds hidden by rounding)" * bool(hidden)
        + f"; smallest p of the correlation at any lag {smallest:.3g}{noise.note}",
        f"{_visible_repeat(float(size.max()), bool(visible.any()))}; {grid}",
        repeats=number,
        repeats_p=value,
        twins_p=twins,
        smallest_p=smallest,
    )


def _twins(noise: Noise) -> tuple[float, str]:
    """P-value of how many elements have a twin, and what it shows in words.

    Whatever the elements before are, the next is near one of them with a probability of at most
    their number times twice the distance times the density. For that of correlated rounds see the
    module.
    """
    kept = noise.rounding <= TWIN
    first = np.minimum(noise["count"], FIRST)[kept]
    reach = TWIN + 4.0 * noise.rounding[kept]
    denser = DENSER if noise.correlated else 1.0
    mean = float(np.sum(first**2 * reach * 2.0 * tails.law(noise.shape).pdf(0.0) * denser))
    value = tails.rare(float(noise["twins"][kept].sum()), mean)
    pairs = float(np.sum(first**2)) / 2.0
    if not pairs:
        return value, "rounding hides grids and tables"
    few = _fewest(mean, LEVEL / 3.0, tails.rare)
    return value, f"noise from a table of {pairs / few:.2g} numbers or fewer"


def _expected_repeats(size: Array, windows: Array) -> Array:
    """Bound of the expected windows that are another's by chance; three times what is needed."""
    width = np.asarray([middle_width(count) for count in size])
    middle = np.where(np.isinf(width), 2.0 * DENSITY * SAME, 2.0 * SAME / width)
    return np.asarray(6.0 * windows**2 * middle * (DENSITY * SAME) ** (WINDOW - 1))


def _visible_repeat(size: float, visible: bool) -> str:
    if not visible:
        return "no repeat: rounding hides it"
    if not size < _COUNTABLE:
        return "nothing: there cannot be so many elements"
    if size <= 2 * CHOSEN:
        return f"a repeat of {WINDOW} neighbouring elements, once in any round, always"
    # One window of those that a run of so many elements repeats is among the chosen.
    length = math.ceil(math.log(10.0) * size / CHOSEN) + WINDOW
    return f"a repeat of {length} neighbouring elements in a round with 90 % probability"
