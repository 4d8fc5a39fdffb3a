"""Is the noise drawn anew each round, and does it know nothing of the data?

Guarantee: checked here is that no two rounds have the same noise, that the noise of a round goes
with that of the round before as the mechanism says (not at all, for most), that its product with
the sum it hides is that of independent draws, which a wrong denominator would break, and that the
count's noise is standard normal and never the same. Dependence beyond one round, of other elements
than those recorded, is not seen.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from privacy.audit import power, tails
from privacy.audit.check import LEVEL, Finding, check
from privacy.audit.checks_draws import DENSER, DENSITY
from privacy.audit.checks_noise import Noise, observed, stated_strategy
from privacy.audit.errors import SkippedError
from privacy.audit.evidence import Evidence
from privacy.audit.inputs import AuditInputs
from privacy.description import FRESH

# Heads are compared with so many neighbours in the order of their first element.
_NEIGHBOURS = 8

Array = NDArray[np.float64]


@check(
    "noise_fresh",
    "Noise is drawn anew in each round; where it is correlated, as much as is claimed.",
)
def check_noise_fresh(evidence: Evidence, inputs: AuditInputs) -> Finding:
    """No two rounds share noise, even negated, and successive ones go together as is claimed."""
    noise, found = observed(evidence, inputs), Finding()
    if len(noise.rounds) < 2:
        raise SkippedError("fewer than two rounds have noise that could be observed")
    equal, distance = _equal_noise(noise)
    found.in_rounds("the noise, or a part of it, is that of another round", equal)
    product, wanted = noise["lag_product"], np.nan_to_num(noise["lag_correlation"])
    has = ~np.isnan(product)
    found.add(
        noise.correlated and inputs.configured.description.strategy == FRESH,
        f"{inputs.configured.mechanism} has no correlated noise, but claims some",
    )
    found.where("a correlation beyond 1 is claimed", np.abs(wanted) > 1.0, noise.rounds)
    sampled = evidence.histograms[noise.at].sum(axis=1)[has].astype(np.float64)
    deviation = (product - wanted)[has] * sampled
    spread, scale = tails.product_law(noise.shape)
    variance = spread * (1.0 + wanted[has] ** 2) * sampled
    values = tails.products(deviation, variance, scale)
    differs = "the noise does not go with that of the round before as is claimed"
    found.test_rounds(differs, values, noise.rounds[has], 2.0)
    if has.any() and not noise.correlated:
        pooled = float(tails.products(deviation.sum(), variance.sum(), scale))
        found.numbers["pooled_p"] = pooled
        found.test("successive rounds go together over all rounds", pooled, 4.0)
    # A round that follows another of which the noise was seen must have the product.
    missing = (np.diff(noise.rounds) == 1) & ~has[1:]
    found.where("the product with the round before is not recorded", missing, noise.rounds[1:])
    largest = float(np.abs((product - wanted)[has]).max(initial=0.0))
    if not found.problems:
        stated_strategy(inputs)
    if not len(variance):
        shown = "no correlation: no two rounds follow each other"
    else:
        count, tests = variance.sum(), 1
        if noise.correlated:
            count, tests = variance.max(), len(variance)
        shown = power.shown(
            "successive rounds whose correlation is {:.2g} off or more",
            power.correlation(float(count), 2.0 * tests, scale, 1.0),
            "no correlation: it has too few draws",
        )
    return found.seen(
        f"{len(noise.rounds)} rounds, no two alike within {distance:.2g} standard deviations; "
        f"correlation of successive rounds within {largest:.3g} of what is claimed "
        f"({'some' if noise.correlated else 'none'})",
        shown,
        compared=int(has.sum()),
        smallest_p=float(values.min(initial=1.0)),
    )


def _equal_noise(noise: Noise) -> tuple[list[int], float]:
    """Rounds whose noise is that of another or its negative, and what counts as the same.

    Compared are the first elements, each quarter of the vector by its four sums, and the largest
    elements between their neighbours.
    """
    count, worst = len(noise.rounds), float(noise.rounding.max(initial=0.0))
    denser = DENSITY * (DENSER if noise.correlated else 1.0)
    found: set[int] = set()
    farthest = 0.0
    for part in (noise["head"], *np.split(noise["segments"], 4, axis=1)):
        values = part[:, (~np.isnan(part)).all(axis=0)]
        # Any two of so many true rounds come closer than this with probability LEVEL / 24, or their
        # sum comes as near to zero.
        width = values.shape[1]
        distance = (LEVEL / (24.0 * count**2)) ** (1.0 / max(1, width)) / denser
        if width and distance >= 20.0 * worst:
            farthest = max(farthest, distance)
            found |= _alike(values, noise.rounds, distance, 0, is_reversible=False)
    peaks = noise["peaks"]
    whose, parts = np.repeat(noise.rounds, peaks.shape[1] // 3), peaks.reshape(-1, 3)
    known = ~np.isnan(parts).any(axis=1)
    # The largest of many lie densely, with no more than ten times a draw's density.
    pairs = 20.0 * float(known.sum()) ** 2 * denser**3
    distance = (LEVEL / (20.0 * max(1.0, pairs))) ** (1.0 / 3.0)
    if distance >= 10.0 * worst:
        found |= _alike(parts[known], whose[known], distance, 1, is_reversible=True)
    return sorted(found), farthest


def _alike(
    parts: Array, whose: NDArray[np.int64], distance: float, key: int, is_reversible: bool
) -> set[int]:
    """Rounds of rows that are those of another round or their negatives.

    Args:
        parts: Shape (m, n).
        whose: Shape (m,): the round of each row.
        distance: How near rows are that are the same.
        key: The element by which rows are made positive and sorted.
        is_reversible: Whether a row in reverse order is the same.
    """
    signed = parts * np.where(parts[:, key : key + 1] < 0.0, -1.0, 1.0)
    order = np.argsort(signed[:, key], kind="stable")
    signed, whose = signed[order], whose[order]
    found: set[int] = set()
    for step in range(1, min(_NEIGHBOURS, len(signed) - 1) + 1):
        one, other = signed[step:], signed[:-step]
        same = (np.abs(one - other) < distance).all(axis=1)
        if is_reversible:
            same |= (np.abs(one - other[:, ::-1]) < distance).all(axis=1)
        same &= whose[step:] != whose[:-step]
        found |= {int(number) for number in (*whose[step:][same], *whose[:-step][same])}
    return found


@check("noise_independent", "The noise is independent of the sum that it is added to.")
def check_noise_independent(evidence: Evidence, inputs: AuditInputs) -> Finding:
    noise, found = observed(evidence, inputs), Finding()
    if noise.correlated:
        stated_strategy(inputs)
        raise SkippedError(
            "the noise is correlated from round to round, so that the sum may depend on it "
            "through the model"
        )
    at, draws = _dots(noise)
    if not len(at):
        raise SkippedError("every sum is zero: there is nothing to depend on")
    scale = tails.shape_scale(noise.shape)
    found.test_rounds("the noise goes with the sum", tails.sums(draws, 1.0, scale), at + 1, 3.0)
    pooled = float(tails.sums(draws.sum(), float(len(at)), scale))
    found.test("the noise goes with the sum over all rounds", pooled, 3.0)
    square = 1.0
    if noise.shape == "gaussian":
        rounding = float(noise.rounding.max(initial=0.0))
        square = float(tails.squares("gaussian", np.sum(draws**2), len(at), 4 * rounding**2))
        found.test("its product with the sum is not standard normal", square, 3.0)
    leans = "noise that leans towards the sum by {:.2g} standard deviations or more in each round"
    return found.seen(
        f"product with the unit sum over {len(at)} rounds: mean {draws.mean():.3g}, standard "
        f"deviation {draws.std():.4g} (0 and 1 expected); p = {min(pooled, square):.3g}",
        power.shown(leans, power.deviations(3.0) / np.sqrt(len(at))),
        mean=float(draws.mean()),
        pooled_p=pooled,
        squares_p=square,
    )


def _dots(noise: Noise) -> tuple[NDArray[np.int64], Array]:
    """Indices of rounds whose sum is not zero, and the noise's products with their unit sum."""
    # One that is not recorded is NaN, which no test lets pass.
    kept = ~(noise.evidence["sum_norm"][noise.at] == 0.0)
    return noise.at[kept], noise["dot_sum"][kept]


@check(
    "denominator", "Each sum is divided by the configured cohort size, never by the realised one."
)
def check_denominator(evidence: Evidence, inputs: AuditInputs) -> Finding:
    """Sums are divided by the configured cohort size, whoever took part.

    A release that was divided by n instead of the configured C has the noise plus (C / n - 1) of
    the sum in what is beyond the sum. Two directions are tested: n the realised cohort, and n
    fixed but wrong.
    """
    found, configured = Finding(), inputs.configured.cohort_size
    cohort = evidence.constant("denominator", default=configured)
    found.add(cohort != configured, f"{cohort:g} is recorded, {configured:g} configured")
    try:
        noise = observed(evidence, inputs)
        if noise.correlated:
            stated_strategy(inputs)
            raise SkippedError(
                "the noise is correlated from round to round, and so may the sum be with it"
            )
    except SkippedError as reason:
        if not found.problems:
            raise
        return found.seen(f"the recorded denominator; of releases: {reason}")
    at, draws = _dots(noise)
    length = evidence["sum_norm"][at] / evidence["update_noise_stddev"][at]
    realised = np.maximum(1.0, evidence["num_contributions"][at])
    shown = []
    for what, weight in (
        ("the realised cohort", length * (cohort / realised - 1.0)),
        ("another fixed number", length),
    ):
        size = float(np.sqrt(np.sum(weight**2)))
        if not size > 0.0:
            continue
        dot = float(np.dot(draws, weight)) / size
        value = float(tails.sums(dot, 1.0, tails.shape_scale(noise.shape)))
        found.numbers[f"p_{what.split()[-1]}"] = value
        shown.append(f"{what}: p = {value:.3g}")
        found.test(f"the releases look divided by {what}", value, 2.0)
    whole = float(np.sqrt(np.sum(length**2)))
    return found.seen(
        f"{cohort:g} in {len(at)} rounds; were it {', '.join(shown) or 'any other, none shows'}",
        power.shown(
            "a denominator that is {1:.2g} % off or more",
            power.deviations(2.0) / whole if whole > 0.0 else np.inf,
            "no wrong denominator: the noise is too large beside the sums",
        ),
    )


@check(
    "count_noise",
    "The noise on the count is normal with the claimed standard deviation, drawn anew.",
)
def check_count_noise(evidence: Evidence, inputs: AuditInputs) -> Finding:
    from scipy import stats

    released_count(inputs, "no count is released")
    if not evidence.has_noise.any():
        observed(evidence, inputs)
    draws, claimed = evidence.need("noise.count_draw", "count_noise_stddev")
    found = Finding()
    found.where("the count's noise was not observed", np.isnan(draws) | ~(claimed > 0.0))
    draws = draws[~np.isnan(draws)]
    count = len(draws)
    if not count:
        return found.seen("no draw")
    near = int(np.count_nonzero(np.diff(np.sort(draws)) < 1e-10))
    equal = stats.poisson(count**2 / 2.0 * DENSITY * 1e-10)
    values = {
        "scale": float(tails.squares("gaussian", np.sum(draws**2), count, 1e-9)),
        "mean": float(tails.sums(draws.sum(), float(count), 0.0)),
        "law": float(stats.kstest(draws, "norm").pvalue),
        # How many draws are equal to the last digits.
        "sameness": float(equal.sf(near - 1)) if near else 1.0,
    }
    for what, value in values.items():
        found.test(f"its {what} is not that of independent normal draws", value, 4.0)
    return found.seen(
        f"{count} draws: mean {draws.mean():.3g}, standard deviation "
        f"{float(np.sqrt(np.mean(draws**2))):.4g} of the claimed one; smallest p = "
        f"{min(values.values()):.3g}",
        power.scale_error(count, 4.0),
        **{f"p_{key}": value for key, value in values.items()},
    )


def released_count(inputs: AuditInputs, reason: str) -> None:
    """Skip what rests on a released count where there is none.

    Raises:
        SkippedError: There is none.
    """
    if inputs.statement.get("count_noise_stddev") is None:
        raise SkippedError(reason)
