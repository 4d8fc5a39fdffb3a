"""Is the noise drawn anew each round, and does it know nothing of the data?

Guarantee: checked here is that no two rounds have the same noise, that the noise of a round goes
with that of the round before as the mechanism says (not at all, for most), that its product with
the sum it hides is that of independent draws, which a wrong denominator would break, and that the
count's noise is standard normal and never the same. Dependence beyond one round, of other elements
than those recorded, is not seen.
"""

from __future__ import annotations

import numpy as np

from privacy.audit import power, tails
from privacy.audit.check import LEVEL, Check, in_rounds, judge, skip
from privacy.audit.checks_draws import DENSER, DENSITY
from privacy.audit.checks_noise import Noise, observed, unstated_strategy
from privacy.audit.evidence import Evidence
from privacy.audit.inputs import AuditInputs, as_number
from privacy.description import FRESH

# Heads are compared with so many neighbours in the order of their first element.
_NEIGHBOURS = 8


def check_noise_fresh(evidence: Evidence, inputs: AuditInputs) -> Check:
    """No two rounds share noise, even negated, and successive ones go together as is claimed."""
    name = "noise_fresh"
    claim = "Noise is drawn anew in each round; where it is correlated, as much as is claimed."
    noise = observed(evidence, inputs)
    if isinstance(noise, str):
        return skip(name, claim, noise)
    if len(noise.rounds) < 2:
        return skip(name, claim, "fewer than two rounds have noise that could be observed")
    equal, distance = _equal_noise(evidence, noise)
    problems = in_rounds("the noise, or a part of it, is that of another round", equal)
    at = noise.rounds - 1
    product, wanted = evidence["noise.lag_product"][at], evidence["noise.lag_correlation"][at]
    wanted = np.nan_to_num(wanted)
    has = ~np.isnan(product)
    if noise.correlated and inputs.configured.description.strategy == FRESH:
        problems.append(f"{inputs.configured.mechanism} has no correlated noise, but claims some")
    problems += in_rounds("a correlation beyond 1 is claimed", noise.rounds[np.abs(wanted) > 1.0])
    sampled = evidence.histograms[at].sum(axis=1).astype(np.float64)
    deviation = (product - wanted)[has] * sampled[has]
    variance = (1.0 + wanted[has] ** 2) * sampled[has]
    scale = 1.0
    if noise.shape == "laplace":
        # A Laplace draw times another: some eight times the tail, and a little variance.
        scale, variance = 8.0, 1.1 * variance
    values = tails.products(deviation, variance, scale)
    wrong = noise.rounds[has][~(values * max(1, len(values)) >= LEVEL / 2.0)]
    problems += in_rounds(
        "the noise does not go with that of the round before as is claimed", wrong
    )
    numbers = {"compared": int(has.sum()), "smallest_p": float(values.min(initial=1.0))}
    if has.any() and not noise.correlated:
        pooled = float(tails.products(deviation.sum(), variance.sum(), scale))
        numbers["pooled_p"] = pooled
        if not pooled >= LEVEL / 4.0:
            problems.append(f"successive rounds go together: p = {pooled:.3g} over all rounds")
    # A round that follows another of which the noise was seen must have the product.
    missing = noise.rounds[1:][(np.diff(noise.rounds) == 1) & ~has[1:]]
    problems += in_rounds("the product with the round before is not recorded", missing)
    largest = float(np.abs((product - wanted)[has]).max(initial=0.0))
    unstated = unstated_strategy(inputs)
    if unstated and not problems:
        return skip(name, claim, unstated)
    return judge(
        name,
        claim,
        problems,
        f"{len(at)} rounds, no two alike within {distance:.2g} standard deviations; correlation "
        f"of successive rounds within {largest:.3g} of what is claimed "
        f"({'none' if not noise.correlated else 'some'})",
        numbers,
        _visible_product(variance, noise.correlated, scale),
    )


def _visible_product(variance: np.ndarray, correlated: bool, scale: float) -> str:
    """The smallest difference of a correlation from the claimed one that shows."""
    if not len(variance):
        return "no correlation: no two rounds follow each other"
    count = float(variance.max() if correlated else variance.sum())
    exponent = np.log(8.0 * (len(variance) if correlated else 1) / LEVEL)
    least = (
        np.sqrt(2.0 * count * exponent) + 2.0 * scale * exponent + 1.3 * np.sqrt(count)
    ) / count
    if least >= 1.0:
        return "no correlation: it has too few draws"
    return f"successive rounds whose correlation is {least:.2g} off or more{power.suffix()}"


def _equal_noise(evidence: Evidence, noise: Noise) -> tuple[list[int], float]:
    """Rounds whose noise is that of another or its negative, and what counts as the same.

    Compared are the first elements, and each quarter of the vector by its four sums.
    """
    rows = noise.rounds - 1
    segments = evidence.lists["segments"][rows]
    found: set[int] = set()
    farthest = 0.0
    for part in (evidence.heads[rows], *np.split(segments, 4, axis=1)):
        width = int((~np.isnan(part)).all(axis=0).sum())
        alike, distance = _alike(part[:, :width], noise)
        found |= alike
        farthest = max(farthest, distance)
    found |= _same_peaks(evidence.lists["peaks"][rows], noise)
    return sorted(int(noise.rounds[index]) for index in found), farthest


def _same_peaks(peaks: np.ndarray, noise: Noise) -> set[int]:
    """Which rounds have one of their largest elements, between its neighbours, from another."""
    count = len(peaks)
    whose = np.repeat(np.arange(count), peaks.shape[1] // 3)
    parts = peaks.reshape(-1, 3)
    known = ~np.isnan(parts).any(axis=1)
    whose, parts = whose[known], parts[known]
    # The largest of many lie densely, with no more than ten times a draw's density.
    pairs = 20.0 * float(len(parts)) ** 2 * DENSITY**3 * (DENSER**3 if noise.correlated else 1.0)
    distance = (LEVEL / (20.0 * max(1.0, pairs))) ** (1.0 / 3.0)
    if count < 2 or distance < 10.0 * float(noise.rounding.max(initial=0.0)):
        return set()
    signed = parts * np.where(parts[:, 1:2] < 0.0, -1.0, 1.0)
    order = np.argsort(signed[:, 1], kind="stable")
    signed, whose = signed[order], whose[order]
    found: set[int] = set()
    for step in range(1, min(_NEIGHBOURS, len(signed) - 1) + 1):
        one, other = signed[step:], signed[:-step]
        same = (np.abs(one - other) < distance).all(axis=1)
        same |= (np.abs(one - other[:, ::-1]) < distance).all(axis=1)
        same &= whose[step:] != whose[:-step]
        found |= set(map(int, whose[step:][same])) | set(map(int, whose[:-step][same]))
    return found


def _alike(parts: np.ndarray, noise: Noise) -> tuple[set[int], float]:
    """Which rows are those of another round or their negatives, and what counts as the same."""
    count, width = parts.shape
    if width == 0 or count < 2:
        return set(), 0.0
    # Any two of so many true rounds come closer than this with probability LEVEL / 24, or their
    # sum comes as near to zero.
    density = DENSITY * (DENSER if noise.correlated else 1.0)
    distance = (LEVEL / (24.0 * count**2)) ** (1.0 / width) / density
    if distance < 20.0 * float(noise.rounding.max(initial=0.0)):
        return set(), 0.0
    # Signs are those of the first element: a negative is then the same.
    signed = parts * np.where(parts[:, :1] < 0.0, -1.0, 1.0)
    order = np.argsort(signed[:, 0], kind="stable")
    ordered = signed[order]
    found: set[int] = set()
    for step in range(1, min(_NEIGHBOURS, count - 1) + 1):
        close = np.abs(ordered[step:] - ordered[:-step]).max(axis=1) < distance
        found |= set(map(int, order[step:][close])) | set(map(int, order[:-step][close]))
    return found, distance


def check_noise_independent(evidence: Evidence, inputs: AuditInputs) -> Check:
    """The noise knows nothing of the sum that it hides."""
    name = "noise_independent"
    claim = "The noise is independent of the sum that it is added to."
    noise = observed(evidence, inputs)
    if not isinstance(noise, str) and noise.correlated:
        noise = unstated_strategy(inputs) or (
            "the noise is correlated from round to round, so that the sum may depend on it "
            "through the model"
        )
    if isinstance(noise, str):
        return skip(name, claim, noise)
    at, draws = _dots(evidence, noise)
    if not len(at):
        return skip(name, claim, "every sum is zero: there is nothing to depend on")
    scale = tails.shape_scale(noise.shape)
    each = tails.sums(draws, 1.0, scale)
    pooled = float(tails.sums(draws.sum(), float(len(at)), scale))
    problems = in_rounds(
        "the noise goes with the sum", (at + 1)[~(each * len(each) >= LEVEL / 3.0)]
    )
    if not pooled >= LEVEL / 3.0:
        problems.append(f"the noise goes with the sum over all rounds: p = {pooled:.3g}")
    square = 1.0
    if noise.shape == "gaussian":
        rounding = float(noise.rounding.max(initial=0.0))
        square = float(tails.squares("gaussian", np.sum(draws**2), len(at), 4 * rounding**2))
        if not square >= LEVEL / 3.0:
            problems.append(f"its product with the sum is not standard normal: p = {square:.3g}")
    return judge(
        name,
        claim,
        problems,
        f"product with the unit sum over {len(at)} rounds: mean {draws.mean():.3g}, standard "
        f"deviation {draws.std():.4g} (0 and 1 expected); p = {min(pooled, square):.3g}",
        {"mean": float(draws.mean()), "pooled_p": pooled, "squares_p": square},
        f"noise that leans towards the sum by {power.deviations(3.0) / np.sqrt(len(at)):.2g} "
        f"standard deviations or more in each round{power.suffix()}",
    )


def _dots(evidence: Evidence, noise: Noise) -> tuple[np.ndarray, np.ndarray]:
    """Indices of rounds whose sum is not zero, and the noise's products with their unit sum."""
    at = noise.rounds - 1
    draws = evidence["noise.dot_sum"][at]
    # One that is not recorded is NaN, which no test lets pass.
    kept = ~(evidence["sum_norm"][at] == 0.0)
    return at[kept], draws[kept]


def check_denominator(evidence: Evidence, inputs: AuditInputs) -> Check:
    """Sums are divided by the configured cohort size, whoever took part.

    A release that was divided by n instead of the configured C has the noise plus (C / n - 1) of
    the sum in what is beyond the sum. Two directions are tested: n the realised cohort, and n
    fixed but wrong.
    """
    name = "denominator"
    claim = "Each sum is divided by the configured cohort size, never by the realised one."
    cohort = as_number(evidence.constants.get("denominator", inputs.configured.cohort_size))
    problems = []
    if cohort != inputs.configured.cohort_size:
        problems.append(f"{cohort:g} is recorded, {inputs.configured.cohort_size:g} configured")
    noise = observed(evidence, inputs)
    if not isinstance(noise, str) and noise.correlated:
        noise = unstated_strategy(inputs) or (
            "the noise is correlated from round to round, and so may the sum be with it"
        )
    if isinstance(noise, str):
        if problems:
            return judge(name, claim, problems, f"the recorded denominator; of releases: {noise}")
        return skip(name, claim, noise)
    at, draws = _dots(evidence, noise)
    length = evidence["sum_norm"][at] / evidence["update_noise_stddev"][at]
    realised = np.maximum(1.0, evidence["num_contributions"][at])
    scale = tails.shape_scale(noise.shape)
    numbers = {}
    shown = []
    for what, weight in (
        ("the realised cohort", length * (cohort / realised - 1.0)),
        ("another fixed number", length),
    ):
        size = float(np.sqrt(np.sum(weight**2)))
        if not size > 0.0:
            continue
        value = float(tails.sums(float(np.dot(draws, weight)) / size, 1.0, scale))
        numbers[f"p_{what.split()[-1]}"] = value
        shown.append(f"{what}: p = {value:.3g}")
        if not value >= LEVEL / 2.0:
            problems.append(f"the releases look divided by {what}: p = {value:.3g}")
    text = f"{cohort:g} in {len(at)} rounds; were it {', '.join(shown) or 'any other, none shows'}"
    whole = float(np.sqrt(np.sum(length**2)))
    off = power.deviations(2.0) / whole if whole > 0.0 else np.inf
    seen = (
        f"a denominator that is {power.percent(off)} off or more{power.suffix()}"
        if off < 1.0
        else "no wrong denominator: the noise is too large beside the sums"
    )
    return judge(name, claim, problems, text, numbers, seen)


def check_count_noise(evidence: Evidence, inputs: AuditInputs) -> Check:
    """The noise on the count of unclipped updates is normal, of the claimed scale, and fresh."""
    name = "count_noise"
    claim = "The noise on the count is normal with the claimed standard deviation, drawn anew."
    if inputs.statement.get("count_noise_stddev") is None:
        return skip(name, claim, "no count is released")
    noise = observed(evidence, inputs)
    if isinstance(noise, str) and not evidence.has_noise.any():
        return skip(name, claim, noise)
    reason = evidence.lacks("noise", "count_noise_stddev")
    if reason is not None:
        return skip(name, claim, reason)
    from scipy import stats

    draws = evidence["noise.count_draw"]
    absent = np.flatnonzero(np.isnan(draws) | ~(evidence["count_noise_stddev"] > 0.0)) + 1
    problems = in_rounds("the count's noise was not observed", absent)
    draws = draws[~np.isnan(draws)]
    count = len(draws)
    if not count:
        return judge(name, claim, problems, "no draw")
    values = {
        "scale": float(tails.squares("gaussian", np.sum(draws**2), count, 1e-9)),
        "mean": float(tails.sums(draws.sum(), float(count), 0.0)),
        "law": float(stats.kstest(draws, "norm").pvalue),
        "sameness": _sameness(draws),
    }
    for what, value in values.items():
        if not value >= LEVEL / 4.0:
            problems.append(f"its {what} is not that of independent normal draws: p = {value:.3g}")
    return judge(
        name,
        claim,
        problems,
        f"{count} draws: mean {draws.mean():.3g}, standard deviation "
        f"{float(np.sqrt(np.mean(draws**2))):.4g} of the claimed one; smallest p = "
        f"{min(values.values()):.3g}",
        {f"p_{key}": value for key, value in values.items()},
        power.scale_error(count, 4.0),
    )


def _sameness(draws: np.ndarray) -> float:
    """P-value of how many of the draws are equal to the last digits."""
    from scipy import stats

    near = int(np.count_nonzero(np.diff(np.sort(draws)) < 1e-10))
    expected = len(draws) ** 2 / 2.0 * DENSITY * 1e-10
    return float(stats.poisson(expected).sf(near - 1)) if near else 1.0
