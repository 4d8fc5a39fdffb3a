"""Does the noise of one round go with that of any other, and the count's with the update's?

Guarantee: rounds are compared at every distance, by sums of sixteen segments of the noise; the
count's noise with every element of its own round's noise, and with the first elements of all
rounds. Noise of a banded factorisation is taken apart into the draws that it claims to be made of.
Other correlated noise is left to ``noise_fresh``, which compares a round with the one before. What
goes with another round's noise in elements that make up little of a segment is not seen.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from privacy.audit import tails
from privacy.audit.check import LEVEL, SEEN, Check, in_rounds, judge, skip
from privacy.audit.checks_draws import Recorded, recorded
from privacy.audit.checks_noise import unstated_strategy
from privacy.audit.evidence import Evidence
from privacy.audit.inputs import AuditInputs
from privacy.description import Tree
from privacy.factorization import noise_stddevs
from privacy.noise_record import SEGMENTS

# The count's draw and an element are the same that are no further apart, unless rounding is more.
_SAME = 1e-6
_OF_ROUNDING = 20.0
# Largest density of the magnitude of a Gaussian draw.
_DENSEST = 0.8

Array = NDArray[np.float64]


def check_noise_lags(evidence: Evidence, inputs: AuditInputs) -> Check:
    """Rounds any distance apart have independent noise: sums of products of their segments."""
    name = "noise_lags"
    claim = (
        "The draws that a round's noise is made of go with those of no other round, however far "
        "apart."
    )
    found = recorded(evidence, inputs, "segments")
    if not isinstance(found, str) and len(found.at) < 2:
        found = "fewer than two rounds have noise that could be observed"
    drawn = found if isinstance(found, str) else _drawn(evidence, inputs, found)
    if isinstance(found, str) or isinstance(drawn, str):
        return skip(name, claim, str(drawn))
    at, kept = found.at, ~np.isnan(drawn)
    segments = np.nan_to_num(drawn)
    sums, counts = _products(segments), np.rint(_products(kept.astype(np.float64)))
    lags = np.flatnonzero(counts > 0.5) + 1
    if not len(lags):
        return skip(name, claim, "no two rounds have noise that could be taken apart")
    sums, counts = sums[lags - 1], counts[lags - 1]
    spread = 1.0 + 4.0 * float(found.noise.rounding.max())
    scale = 1.0
    if found.noise.shape == "laplace":
        # A sum of Laplace draws, of one where a segment has one alone.
        scale, spread = 8.0, 1.1 * spread
    each = tails.products(sums, spread * counts, scale)
    problems = list(found.problems)
    number = int(kept.sum())
    # Of Laplace noise only the segments' sums of many elements are nearly normal.
    square = 1.0
    if found.noise.shape == "gaussian":
        square = float(tails.squares("gaussian", np.sum(segments**2), number, spread - 1.0))
    if not square >= LEVEL / 2.0:
        problems.append(f"sums of segments have another variance than claimed: p = {square:.3g}")
    wrong = lags[~(each * len(each) >= LEVEL / 2.0)]
    named = ", ".join(
        f"{lag} (correlation {sums[lags == lag][0] / counts[lags == lag][0]:.2g})"
        for lag in wrong[:3]
    )
    if len(wrong):
        problems.append(f"noise goes with the noise of other rounds, at the distance {named}")
    best = int(np.argmin(each))
    least = _visible(float(counts[0]), len(each), scale, spread)
    return judge(
        name,
        claim,
        problems,
        f"{len(lags)} distances of {len(at)} rounds, p = {each[best]:.3g} at {lags[best]}, where "
        f"the correlation is {sums[best] / counts[best]:.2g}{found.note}",
        {"smallest_p": float(each[best]), "lag": int(lags[best]), "variance_p": square},
        f"a correlation of {least:.2g} or more, of neighbouring rounds, with probability {SEEN:g}"
        if least <= 1.0
        else "no correlation: it has too few rounds",
    )


def _drawn(evidence: Evidence, inputs: AuditInputs, found: Recorded) -> Array | str:
    """Sums of segments of the draws that each round's noise is made of; shape (T, SEGMENTS).

    Noise of a banded factorisation is C^-1 Z; the rows of Z, which are drawn anew, are C times it.
    """
    segments = np.full((evidence.rounds, SEGMENTS), np.nan)
    segments[found.at] = evidence.lists["segments"][found.at]
    if not found.noise.correlated:
        return segments
    strategy = inputs.configured.description.strategy
    if strategy is None:
        return unstated_strategy(inputs)
    if isinstance(strategy, Tree):
        return "the noise is correlated from round to round: see noise_fresh"
    coefficients = np.array(strategy)
    stddev = evidence["update_noise_stddev"]
    noise = segments * (stddev / stddev[0] * noise_stddevs(coefficients, 1)[0])[:, None]
    drawn: Array = np.zeros_like(noise)
    for lag, coefficient in enumerate(coefficients[: len(noise)]):
        drawn[lag:] += coefficient * noise[: len(noise) - lag]
    return drawn


def _products(rows: Array) -> Array:
    """Sums of products of all pairs of rows at each distance from 1; shape (T - 1,)."""
    count = len(rows)
    spectrum = np.fft.rfft(rows, 2 * count, axis=0)
    products = np.fft.irfft((spectrum * spectrum.conj()).real.sum(axis=1), 2 * count)
    return np.asarray(products[1:count])


def _visible(count: float, tests: int, scale: float, spread: float) -> float:
    """The smallest correlation that shows in so many products."""
    exponent = np.log(4.0 * tests / LEVEL)
    bound = np.sqrt(2.0 * spread * count * exponent) + 2.0 * scale * exponent
    return float((bound + 1.3 * np.sqrt(count)) / count)


def check_count_fresh(evidence: Evidence, inputs: AuditInputs) -> Check:
    """The count's noise is a draw of its own, not one of those that the update's noise is made of.

    Who is given the fraction and the update could else take the noise off an element.
    """
    name = "count_fresh"
    claim = "The noise on the count is no draw that the noise on the update is made of."
    if inputs.statement.get("count_noise_stddev") is None:
        return skip(name, claim, "no count is released")
    found = recorded(evidence, inputs, "largest")
    if isinstance(found, str):
        return skip(name, claim, found)
    from scipy import stats

    at, rounding = found.at, found.noise.rounding
    draws, heads = evidence["noise.count_draw"][at], evidence.heads[at]
    # Of every element of the round: how near the nearest is.
    distance, size = evidence["noise.count_distance"][at], evidence["noise.count"][at]
    reach = distance + 2.0 * rounding
    densest = tails.density("gaussian", np.maximum(0.0, np.abs(draws) - reach))
    each = np.minimum(1.0, size * densest * 2.0 * reach)
    problems = list(found.problems)
    problems += in_rounds("the count's noise was not compared", found.noise.rounds[np.isnan(each)])
    with np.errstate(divide="ignore"):
        logs = -np.log(np.where(np.isnan(each), 1.0, each))
    nearest = float(stats.gamma(len(logs)).sf(logs.sum()))
    if not nearest >= LEVEL / 3.0:
        problems.append(f"the count's noise is among the update's: p = {nearest:.3g}")
    # Of the first elements of all rounds: how many counts are next to one.
    same = max(_SAME, _OF_ROUNDING * float(rounding.max()))
    known = np.sort(np.abs(heads[~np.isnan(heads)]))
    size_of = np.abs(draws[~np.isnan(draws)])
    inside = np.searchsorted(known, size_of + same) > np.searchsorted(known, size_of - same)
    likely = min(1.0, len(known) * 2.0 * same * _DENSEST)
    shared = float(stats.binom.sf(int(inside.sum()) - 1, max(1, len(size_of)), likely))
    if not shared >= LEVEL / 3.0:
        problems.append(
            f"{int(inside.sum())} of the counts' draws are first elements of the noise of a round "
            f"(p = {shared:.3g})"
        )
    together = np.nan_to_num(draws[:, None] * heads).sum(axis=0)
    value = float(tails.products(together, float(len(draws)), 1.0).min()) * heads.shape[1]
    if not value >= LEVEL / 3.0:
        problems.append(f"the count's noise goes with the update's: p = {value:.3g}")
    few = int(
        np.argmax(stats.binom.sf(np.arange(len(draws) + 1) - 1, len(draws), likely) < LEVEL / 3)
    )
    return judge(
        name,
        claim,
        problems,
        f"{len(draws)} draws, p = {nearest:.3g} of the nearest elements, {shared:.3g} of the first "
        f"ones, {min(1.0, value):.3g} of their products{found.note}",
        {"nearest_p": nearest, "first_p": shared, "products_p": min(1.0, value)},
        f"a count's noise that is a first element of any round's in {few} rounds or more, always"
        if few
        else "no draw that is used twice: it has too few rounds",
    )
