"""Has every element noise, none of it cut, and is no draw used twice within a round?

Guarantee: what is tested is the noise as seen from outside the mechanism, in multiples of the
standard deviation that the round claims; see ``privacy.noise_record`` for what is recorded of it.
Of rounds whose noise is correlated each is tested alone, but for elements without noise: there it
is assumed that at least a hundredth of an element's variance in each round is drawn anew, so that
its density, given all other rounds, is ten times the claimed one at most.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privacy.audit import tails
from privacy.audit.check import LEVEL, Check, in_rounds, judge, skip
from privacy.audit.checks_noise import Noise, observed
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


@dataclass(frozen=True, slots=True)
class Recorded:
    """Rounds with an observation that can be tested.

    Attributes:
        noise: What ``checks_noise.observed`` found, of these rounds alone.
        problems: What is missing.
        note: Rounds that an older version has recorded, in words; empty if none.
    """

    noise: Noise
    problems: list[str]
    note: str

    @property
    def at(self) -> NDArray[np.int64]:
        """Their indices, from 0."""
        return self.noise.rounds - 1


def recorded(evidence: Evidence, inputs: AuditInputs, name: str) -> Recorded | str:
    """Find the rounds with an observation of that name, or say why there are none.

    Args:
        evidence: The ledger's.
        inputs: What it is held against.
        name: Of the noise's lists or numbers, such as "tails".
    """
    noise = observed(evidence, inputs)
    if isinstance(noise, str):
        return noise
    reason = evidence.lacks(f"noise.{name}")
    if reason is not None:
        return reason
    if not len(noise.rounds):
        return "no round has noise that could be observed: see noise_scale"
    values = evidence.lists[name] if name in evidence.lists else evidence[f"noise.{name}"]
    known = ~np.isnan(values.reshape(evidence.rounds, -1)[:, 0])
    has = known[noise.rounds - 1]
    if not has.any():
        return f"no round has a number in noise.{name}"
    # A run that an older version has begun lacks it in its first rounds.
    first = int(np.argmax(known)) if known.any() else 0
    missing = noise.rounds[~has]
    problems = in_rounds(f"noise.{name} is not recorded", missing[missing > first])
    old = int((missing <= first).sum())
    note = f"; the first {old} rounds do not record it" if old else ""
    return Recorded(noise.of(has), problems, note)


def binomials(total: Array, draws: Array, low: Array, high: Array) -> Array:
    """Two-sided p-values of binomial counts whose probability is between two bounds."""
    from scipy import stats

    above = stats.binom.sf(total - 1, draws, np.minimum(1.0, high))
    below = stats.binom.cdf(total, draws, low)
    return np.asarray(np.minimum(1.0, 2.0 * np.minimum(above, below)))


def check_noise_tails(evidence: Evidence, inputs: AuditInputs) -> Check:
    """The noise has the tails of its law: exact binomial counts, and the exact law of the largest.

    A cut noise has finite support: whatever one user adds beyond the cut is told with certainty.
    """
    name = "noise_tails"
    claim = "The noise is neither cut off nor drawn again where it is large."
    found = recorded(evidence, inputs, "tails")
    if isinstance(found, str):
        return skip(name, claim, found)
    noise, at, bounds = found.noise, found.at, np.asarray(TAILS)
    counts, size = evidence.lists["tails"][at], evidence["noise.count"][at][:, None]
    stretch = 1.0 + 4.0 * noise.rounding[:, None] ** 2
    low, high = (tails.beyond(noise.shape, bounds * by) for by in (stretch, 1.0 / stretch))
    each = binomials(counts, size, low, high)
    largest = evidence["noise.largest"][at][:, None]
    # Minus the logarithm of the probability of no larger one: exponential.
    logs = [
        -size * np.log1p(-np.minimum(1.0 - 1e-16, tails.beyond(noise.shape, largest * by)))
        for by in (stretch, 1.0 / stretch)
    ]
    each = np.hstack([each, 2.0 * np.minimum(np.exp(-logs[0]), -np.expm1(-logs[1]))])
    each = np.nan_to_num(each, nan=0.0)
    tests, problems = each.size, list(found.problems)
    for column, values in enumerate(each.T):
        what = f"beyond {TAILS[column]:g}" if column < len(TAILS) else "the largest"
        wrong = noise.rounds[values * tests < LEVEL / 2.0]
        problems += in_rounds(f"the noise has other tails ({what}) than claimed", wrong)
    numbers: dict[str, float] = {"smallest_p": float(each.min())}
    total, draws = counts.sum(axis=0), float(size.sum())
    share = LEVEL / (2.0 * (len(TAILS) + 1)) if not noise.correlated else LEVEL / (2.0 * tests)
    if not noise.correlated:
        pooled = binomials(total, np.full(len(TAILS), draws), low.min(axis=0), high.max(axis=0))
        numbers["pooled_p"] = min(float(pooled.min()), _pooled_largest(logs))
        for bound, count, value in zip(TAILS, total, pooled, strict=True):
            if not value >= share:
                expected = draws * float(tails.beyond(noise.shape, bound))
                problems.append(
                    f"beyond {bound:g} standard deviations are {count:g} draws, {expected:.4g} "
                    f"expected (p = {value:.3g})"
                )
        if not _pooled_largest(logs) >= share:
            problems.append("the largest draws of all rounds are not those of the claimed law")
    visible = draws if not noise.correlated else float(size.max())
    cut = _visible_cut(noise.shape, visible, share)
    return judge(
        name,
        claim,
        problems,
        f"{total[2]:g} of {draws:.4g} draws beyond {TAILS[2]:g} standard deviations, the largest "
        f"at {float(largest.max()):.4g}; smallest p = {min(numbers.values()):.3g}{found.note}",
        numbers,
        cut,
    )


def _pooled_largest(logs: list[Array]) -> float:
    from scipy import stats

    few, many = (float(values.sum()) for values in logs)
    law = stats.gamma(len(logs[0]))
    return float(min(1.0, 2.0 * min(law.sf(few), law.cdf(many))))


def _visible_cut(shape: str, draws: float, share: float) -> str:
    """The largest bound beyond which no draw at all is too few."""
    seen = [b for b in TAILS if draws * float(tails.beyond(shape, b)) >= math.log(2.0 / share)]
    if not seen:
        return "no cut: it has too few draws"
    return f"a cut of the noise at {max(seen):g} standard deviations or less, always"


def check_noise_complete(evidence: Evidence, inputs: AuditInputs) -> Check:
    """No element goes without noise: exact binomial bounds of those next to zero."""
    name = "noise_complete"
    claim = "Every element of the sum gets noise, in every round."
    found = recorded(evidence, inputs, "near_zero")
    if isinstance(found, str):
        return skip(name, claim, found)
    from scipy import stats

    noise, at = found.noise, found.at
    counts, size = evidence.lists["near_zero"][at], evidence["noise.count"][at][:, None]
    # Rounding moves a draw by no more than this next to zero, on average.
    reach = np.asarray(NEAR_ZERO) + 2.0 * noise.rounding[:, None]
    likely = np.minimum(1.0, float(tails.density(noise.shape, 0.0)) * reach)
    each = np.nan_to_num(stats.binom.sf(counts - 1, size, likely))
    problems = list(found.problems)
    wrong = (each * each.size < LEVEL / 2.0).any(axis=1)
    problems += in_rounds("elements have no noise", noise.rounds[wrong])
    total, mean = counts.sum(axis=0), (size * likely).sum(axis=0)
    share = LEVEL / (2.0 * len(NEAR_ZERO))

    def pooled(number: float, expected: float) -> float:
        if noise.correlated:
            return tails.rare(number, DENSER * expected)
        return float(stats.binom.sf(number - 1, size.sum(), min(1.0, expected / size.sum())))

    values = [pooled(*pair) for pair in zip(total, mean, strict=True)]
    for bound, number, expected, value in zip(NEAR_ZERO, total, mean, values, strict=True):
        if not value >= share:
            problems.append(
                f"{number:g} draws are within {bound:g} of zero, at most {expected:.3g} expected "
                f"(p = {value:.3g})"
            )
    few = min(_fewest(float(expected), share, pooled) for expected in mean)
    elements = max(1, math.ceil(few / len(at)))
    plural = "" if elements == 1 else "s"
    return judge(
        name,
        claim,
        problems,
        f"{total[1]:g} of {float(size.sum()):.4g} draws within {NEAR_ZERO[1]:g} of zero, "
        f"{total[-1]:g} within {NEAR_ZERO[-1]:g}; p = {min(values):.3g}{found.note}",
        {"pooled_p": min(values), "smallest_p": float(each.min())},
        f"{elements} element{plural} without noise in each round, or {few} in all, always",
    )


def _fewest(expected: float, share: float, pooled: object) -> int:
    """Events that are too many, by doubling and halving."""
    assert callable(pooled)
    if not expected < _COUNTABLE:
        return int(_COUNTABLE)
    high = max(1, math.ceil(expected))
    while pooled(high, expected) >= share:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if pooled(middle, expected) >= share else (low, middle)
    return high


def check_noise_repeats(evidence: Evidence, inputs: AuditInputs) -> Check:
    """No part of a round's noise is another part of it, as it is, negated or reversed."""
    name = "noise_repeats"
    claim = "Within a round, no part of the noise repeats another or goes with it."
    found = recorded(evidence, inputs, "windows")
    if isinstance(found, str):
        return skip(name, claim, found)
    noise, at = found.noise, found.at
    size, windows = evidence["noise.count"][at], evidence["noise.windows"][at]
    repeats = evidence["noise.repeats"][at]
    problems = list(found.problems)
    visible = noise.rounding <= MOST_OF_SAME * SAME
    every = np.maximum(0.0, size - WINDOW + 1)
    low = np.where(size <= 2 * CHOSEN, every, CHOSEN / 4.0)
    problems += in_rounds(
        "windows of the noise were left out",
        noise.rounds[~((windows >= low) & (windows <= np.minimum(every, 4.0 * CHOSEN)))],
    )
    expected = _expected_repeats(size, windows)
    number, mean = float(repeats[visible].sum()), float(expected[visible].sum())
    # Markov's inequality, which asks for no independence.
    value = 1.0 if number == 0.0 else min(1.0, mean / number)
    if not value >= LEVEL / 3.0:
        rounds = noise.rounds[visible & (repeats > 0)]
        problems += in_rounds("a part of the noise repeats another part", rounds)
    twins, grid = _twins(evidence, found)
    if not twins >= LEVEL / 3.0:
        problems.append(f"too many elements are the same, as of a coarse grid: p = {twins:.3g}")
    lag, product = evidence["noise.self_lag"][at], evidence["noise.self_product"][at]
    length = np.minimum(size, CORRELATED)
    scale, spread = (8.0, 1.1) if noise.shape == "laplace" else (1.0, 1.0)
    spread = spread * (1.0 + 4.0 * float(noise.rounding.max(initial=0.0)))
    each = tails.products(product, spread * np.maximum(1.0, length - lag), scale)
    each = np.where(length > 1, np.nan_to_num(each * np.maximum(1.0, length - 1.0)), 1.0)
    wrong = noise.rounds[~(each * len(each) >= LEVEL / 3.0)]
    problems += in_rounds("the noise goes with itself, some elements further", wrong)
    hidden = int((~visible).sum())
    text = f"{number:g} of {windows.sum():g} windows of {WINDOW} elements come again"
    if hidden:
        text += f" ({hidden} rounds hidden by rounding)"
    return judge(
        name,
        claim,
        problems,
        f"{text}; smallest p of the correlation at any lag {float(each.min(initial=1.0)):.3g}"
        f"{found.note}",
        {
            "repeats": number,
            "repeats_p": value,
            "twins_p": twins,
            "smallest_p": float(each.min(initial=1.0)),
        },
        f"{_visible_repeat(float(size.max()), bool(visible.any()))}; {grid}",
    )


def _twins(evidence: Evidence, found: Recorded) -> tuple[float, str]:
    """P-value of how many elements have a twin, and what it shows in words.

    Whatever the elements before are, the next is near one of them with a probability of at most
    their number times twice the distance times the density. For that of correlated rounds see the
    module.
    """
    noise = found.noise
    kept = noise.rounding <= TWIN
    first = np.minimum(evidence["noise.count"][found.at], FIRST)[kept]
    reach = TWIN + 4.0 * noise.rounding[kept]
    denser = DENSER if noise.correlated else 1.0
    likely = first**2 * reach * float(tails.density(noise.shape, 0.0)) * denser
    mean = float(likely.sum())
    value = tails.rare(float(evidence["noise.twins"][found.at][kept].sum()), mean)
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
