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

from privacy.audit import power, tails
from privacy.audit.check import LEVEL, Finding, check
from privacy.audit.checks_independence import released_count
from privacy.audit.checks_noise import Noise, recorded, stated_strategy
from privacy.audit.errors import SkippedError
from privacy.audit.evidence import Evidence
from privacy.audit.inputs import AuditInputs
from privacy.description import Columns, Tree
from privacy.factorization import noise_stddevs
from privacy.noise_record import SEGMENTS

# The count's draw and an element are the same that are no further apart, unless rounding is more.
_SAME = 1e-6
_OF_ROUNDING = 20.0
# Largest density of the magnitude of a Gaussian draw.
_DENSEST = 0.8

Array = NDArray[np.float64]


@check(
    "noise_lags",
    "The draws that a round's noise is made of go with those of no other round, however far apart.",
)
def check_noise_lags(evidence: Evidence, inputs: AuditInputs) -> Finding:
    """Rounds any distance apart have independent noise: sums of products of their segments."""
    noise, found = recorded(evidence, inputs, "segments")
    if len(noise.rounds) < 2:
        raise SkippedError("fewer than two rounds have noise that could be observed")
    drawn = _drawn(noise, inputs)
    kept, segments = ~np.isnan(drawn), np.nan_to_num(drawn)
    sums, counts = _products(segments), np.rint(_products(kept.astype(np.float64)))
    lags = np.flatnonzero(counts > 0.5) + 1
    if not len(lags):
        raise SkippedError("no two rounds have noise that could be taken apart")
    sums, counts = sums[lags - 1], counts[lags - 1]
    # Of Laplace noise, a sum has one draw where a segment has one alone.
    spread, scale = tails.product_law(noise.shape)
    rounding = 4.0 * float(noise.rounding.max())
    spread *= 1.0 + rounding
    each = tails.products(sums, spread * counts, scale)
    # Of Laplace noise only the segments' sums of many elements are nearly normal.
    square = 1.0
    if noise.shape == "gaussian":
        total = np.sum(segments**2)
        square = float(tails.squares("gaussian", total, int(kept.sum()), rounding))
    found.test("sums of segments have another variance than claimed", square, 2.0)
    wrong = np.flatnonzero(~(each * len(each) >= LEVEL / 2.0))
    named = ", ".join(
        f"{lags[index]} (correlation {sums[index] / counts[index]:.2g})" for index in wrong[:3]
    )
    found.add(len(wrong) > 0, f"noise goes with the noise of other rounds, at the distance {named}")
    best = int(np.argmin(each))
    return found.seen(
        f"{len(lags)} distances of {len(noise.rounds)} rounds, p = {each[best]:.3g} at "
        f"{lags[best]}, where the correlation is {sums[best] / counts[best]:.2g}{noise.note}",
        power.shown(
            "a correlation of {:.2g} or more, of neighbouring rounds,",
            power.correlation(float(counts[0]), len(each), scale, spread),
            "no correlation: it has too few rounds",
        ),
        smallest_p=float(each[best]),
        lag=int(lags[best]),
        variance_p=square,
    )


def _drawn(noise: Noise, inputs: AuditInputs) -> Array:
    """Sums of segments of the draws that each round's noise is made of; shape (T, SEGMENTS).

    Noise of a banded factorisation is C^-1 Z; the rows of Z, which are drawn anew, are C times it.

    Raises:
        SkippedError: The noise cannot be taken apart into its draws.
    """
    segments = np.full((noise.evidence.rounds, SEGMENTS), np.nan)
    segments[noise.at] = noise["segments"]
    if not noise.correlated:
        return segments
    stated_strategy(inputs)
    strategy = inputs.configured.description.strategy
    if isinstance(strategy, (Tree, Columns)):
        raise SkippedError("the noise is correlated from round to round: see noise_fresh")
    coefficients = inputs.configured.description.column(noise.evidence.rounds)
    assert coefficients is not None
    stddev = noise.evidence["update_noise_stddev"]
    scaled = segments * (stddev / stddev[0] * noise_stddevs(coefficients, 1)[0])[:, None]
    drawn: Array = np.zeros_like(scaled)
    for lag, coefficient in enumerate(coefficients[: len(scaled)]):
        drawn[lag:] += coefficient * scaled[: len(scaled) - lag]
    return drawn


def _products(rows: Array) -> Array:
    """Sums of products of all pairs of rows at each distance from 1; shape (T - 1,)."""
    count = len(rows)
    spectrum = np.fft.rfft(rows, 2 * count, axis=0)
    products = np.fft.irfft((spectrum * spectrum.conj()).real.sum(axis=1), 2 * count)
    return np.asarray(products[1:count])


@check("count_fresh", "The noise on the count is no draw that the noise on the update is made of.")
def check_count_fresh(evidence: Evidence, inputs: AuditInputs) -> Finding:
    """The count's noise is a draw of its own.

    Who is given the fraction and the update could else take the noise off an element.
    """
    from scipy import stats

    released_count(inputs, "no count is released")
    noise, found = recorded(evidence, inputs, "largest")
    draws, heads = noise["count_draw"], noise["head"]
    # Of every element of the round: how near the nearest is.
    reach = noise["count_distance"] + 2.0 * noise.rounding
    densest = 2.0 * stats.norm.pdf(np.maximum(0.0, np.abs(draws) - reach))
    each = np.minimum(1.0, noise["count"] * densest * 2.0 * reach)
    found.where("the count's noise was not compared", np.isnan(each), noise.rounds)
    logs = -np.log(np.where(np.isnan(each), 1.0, each))
    nearest = float(stats.gamma(len(logs)).sf(logs.sum()))
    found.test("the count's noise is among the update's", nearest, 3.0)
    # Of the first elements of all rounds: how many counts are next to one.
    same = max(_SAME, _OF_ROUNDING * float(noise.rounding.max()))
    known = np.sort(np.abs(heads[~np.isnan(heads)]))
    sizes = np.abs(draws[~np.isnan(draws)])
    inside = np.searchsorted(known, sizes + same) > np.searchsorted(known, sizes - same)
    likely = min(1.0, len(known) * 2.0 * same * _DENSEST)
    shared = float(stats.binom.sf(int(inside.sum()) - 1, max(1, len(sizes)), likely))
    what = f"{int(inside.sum())} of the counts' draws are first elements of the noise of a round"
    found.test(what, shared, 3.0)
    together = np.nan_to_num(draws[:, None] * heads).sum(axis=0)
    value = float(tails.products(together, float(len(draws)), 1.0).min()) * heads.shape[1]
    found.test("the count's noise goes with the update's", value, 3.0)
    tail = stats.binom.sf(np.arange(len(draws) + 1) - 1, len(draws), likely)
    few, value = int(np.argmax(tail < LEVEL / 3.0)), min(1.0, value)
    return found.seen(
        f"{len(draws)} draws, p = {nearest:.3g} of the nearest elements, {shared:.3g} of the first "
        f"ones, {value:.3g} of their products{noise.note}",
        f"a count's noise that is a first element of any round's in {few} rounds or more, always"
        if few
        else "no draw that is used twice: it has too few rounds",
        nearest_p=nearest,
        first_p=shared,
        products_p=value,
    )
