"""Is the noise that was really added of the scale, shape and mean that are claimed?

Guarantee: what is tested is the noise as seen from outside the mechanism: the release, times the
configured cohort size, less the sum, in multiples of the standard deviation that the round claims.
Under the claim its P elements are independent draws of variance 1 of the claimed law. Tests of all
rounds together assume that rounds are independent, and are left out where the mechanism says that
its noise is correlated; those of single rounds never assume it. A seeded generator that an
adversary knows passes every one of these.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privacy.audit import power, tails
from privacy.audit.check import LEVEL, Check, in_rounds, judge, skip
from privacy.audit.evidence import Evidence
from privacy.audit.inputs import AuditInputs, as_number

Array = NDArray[np.float64]

# Beyond this, relative to the noise, rounding hides it.
MOST_ROUNDING = 0.05
# Four times half a unit in the last place of a float32: noise, sum, mean and product are rounded.
_FLOAT32 = 4.0 * 2.0**-24
# Relative error of a sum of squares that is allowed beside that which is recorded.
_SLACK = 1e-7


@dataclass(frozen=True, slots=True)
class Noise:
    """The observations of noise that can be tested.

    Attributes:
        rounds: Shape (k,), int64: the rounds, from 1, whose noise could be seen.
        unseen: Rounds that claim noise and have no observation.
        hidden: Rounds whose noise drowns in rounding.
        rounding: Shape (k,), float64: rms rounding error of each of ``rounds``, relative to the
            noise; computed here from the lengths of sum and noise.
        correlated: Whether any round says that its noise depends on the one before, or the
            mechanism does not state that none does.
        shape: "gaussian" or "laplace".
    """

    rounds: NDArray[np.int64]
    unseen: NDArray[np.int64]
    hidden: NDArray[np.int64]
    rounding: NDArray[np.float64]
    correlated: bool
    shape: str

    def of(self, has: NDArray[np.bool_]) -> Noise:
        """The same of some of ``rounds``; shape (k,)."""
        return replace(self, rounds=self.rounds[has], rounding=self.rounding[has])


def observed(evidence: Evidence, inputs: AuditInputs) -> Noise | str:
    """Find what can be tested, or say why nothing can."""
    shape = inputs.configured.noise_shape
    if not inputs.claims_noise:
        return "no noise is claimed: both epsilons are infinite"
    if shape not in ("gaussian", "laplace"):
        return f"the noise of {inputs.configured.mechanism} has no law that is tested element-wise"
    reason = evidence.lacks("noise", "update_noise_stddev", "sum_norm")
    if reason is not None:
        return reason
    if not evidence.rounds:
        return "the ledger has no line yet"
    seen = evidence.has_noise
    rounding = _rounding(evidence, inputs)
    visible = seen & ~(rounding > MOST_ROUNDING)
    expects = np.full(evidence.rounds, True)
    if inputs.configured.randomizes_clients:
        # Where nobody reports, nobody adds noise.
        expects = reports(evidence) > 0
    noise = Noise(
        rounds=np.flatnonzero(visible) + 1,
        unseen=np.flatnonzero(~seen & expects) + 1,
        hidden=np.flatnonzero(seen & ~visible) + 1,
        rounding=np.nan_to_num(rounding[visible]),
        correlated=bool(np.nan_to_num(evidence["noise.lag_correlation"]).any())
        or inputs.configured.description.strategy is None,
        shape=shape,
    )
    if len(noise.hidden) and not len(noise.rounds) and not len(noise.unseen):
        worst = float(rounding[seen].max())
        return (
            f"the noise is too small to be observed beside the rounding of float32, which is "
            f"{worst:.3g} of it"
        )
    return noise


def unstated_strategy(inputs: AuditInputs) -> str:
    """Why nothing is tested that needs to know how rounds go together; empty if it is stated."""
    if inputs.configured.description.strategy is not None:
        return ""
    return f"{inputs.configured.mechanism} does not state how the noise of its rounds goes together"


def _rounding(evidence: Evidence, inputs: AuditInputs) -> NDArray[np.float64]:
    """Rms rounding error of the observed noise, relative to it; shape (T,), NaN if unknown."""
    stddev, size = evidence["update_noise_stddev"], evidence["noise.count"]
    with np.errstate(all="ignore"):
        error = _FLOAT32 * np.sqrt(1.0 + (evidence["sum_norm"] / stddev) ** 2 / size)
        if inputs.configured.randomizes_clients:
            # Noise and updates are summed one by one, apart from each other.
            error = error * np.sqrt(np.maximum(1.0, reports(evidence)))
    return np.asarray(error)


def reports(evidence: Evidence) -> NDArray[np.float64]:
    """Reports a round where clients add their own noise: those not finite send noise too."""
    return np.asarray(evidence["num_contributions"] + evidence["num_nonfinite"])


def _problems_of_absence(noise: Noise) -> list[str]:
    return in_rounds("noise is claimed, but none was observed", noise.unseen)


def _context(noise: Noise, evidence: Evidence) -> str:
    count = float(np.nansum(evidence["noise.count"][noise.rounds - 1]))
    text = f"{count:.4g} draws in {len(noise.rounds)} rounds"
    if len(noise.hidden):
        text += f" ({len(noise.hidden)} more hidden by rounding)"
    return text


@dataclass(slots=True)
class _Verdict:
    """P-values of single rounds and of all together, and what they come to."""

    problems: list[str]
    numbers: dict[str, Any]

    def add(self, what: str, noise: Noise, each: Any, pooled: float | None, tests: int) -> None:
        """Judge one statistic: each round's p-value, and that of all rounds together."""
        values = np.nan_to_num(np.asarray(each, dtype=np.float64), nan=0.0)
        share = LEVEL / (2.0 * tests)
        wrong = noise.rounds[values * max(1, len(values)) < share]
        self.problems += in_rounds(f"{what} is not that of the claimed noise", wrong)
        key = what.replace(" ", "_")
        self.numbers[f"{key}_smallest_p"] = float(values.min(initial=1.0))
        if pooled is not None:
            self.numbers[f"{key}_pooled_p"] = pooled
            if not pooled >= share:
                self.problems.append(f"{what} over all rounds has p = {pooled:.3g}")


def check_noise_scale(evidence: Evidence, inputs: AuditInputs) -> Check:
    """The standard deviation of the noise is the claimed one: a chi-square test."""
    name, claim = "noise_scale", "The noise has the standard deviation that each round claims."
    noise = observed(evidence, inputs)
    if isinstance(noise, str):
        return skip(name, claim, noise)
    at = noise.rounds - 1
    count, total = evidence["noise.count"][at], evidence["noise.sum_squares"][at]
    slack = 4.0 * noise.rounding**2 + _SLACK
    verdict = _Verdict(_problems_of_absence(noise), {})
    size = as_number(evidence.constants.get("num_parameters"))
    wrong = np.flatnonzero(evidence.has_noise & (evidence["noise.count"] != size)) + 1
    verdict.problems += in_rounds(f"the noise does not have {size:g} elements", wrong)
    each = tails.squares(noise.shape, total, count, slack)
    pooled = None
    if len(at) and not noise.correlated:
        pooled = float(tails.squares(noise.shape, total.sum(), count.sum(), float(slack.max())))
    verdict.add("the scale", noise, each, pooled, tests=2)
    spread = _spread(noise, total, count)
    if spread is not None:
        verdict.numbers["spread_pooled_p"] = spread
        if not spread >= LEVEL / 4.0:
            verdict.problems.append(
                f"the scale varies from round to round as that of the claimed noise does not: "
                f"p = {spread:.3g}"
            )
    ratio = float(np.sqrt(total.sum() / count.sum())) if len(at) else float("nan")
    return judge(
        name,
        claim,
        verdict.problems,
        f"standard deviation {ratio:.6g} of the claimed one over {_context(noise, evidence)}"
        + _p_text(verdict),
        {"ratio": ratio, **verdict.numbers},
        power.scale_error(*_draws(noise, evidence, 4.0), 6.0 if noise.shape == "laplace" else 3.0),
    )


def _draws(noise: Noise, evidence: Evidence, tests: float) -> tuple[float, float]:
    """Draws of a test, and by what its level is divided: of all rounds, or of each alone."""
    counts = evidence["noise.count"][noise.rounds - 1]
    if noise.correlated or not len(counts):
        return float(counts.max(initial=0.0)), tests * max(1, len(counts))
    return float(counts.sum()), tests


def _spread(noise: Noise, total: Array, count: Array) -> float | None:
    """P-value of how much the sums of squares of rounds differ from one another.

    Their probabilities, taken as those of normal draws, have a chi-square law of k degrees.
    """
    from scipy import stats

    # Rounding moves each by less than a twentieth of its own standard deviation.
    small = 4.0 * noise.rounding**2 * np.sqrt(count / 2.0) < 0.05
    if noise.correlated or noise.shape != "gaussian" or len(count) < 2 or not small.all():
        return None
    law: Any = stats.chi2(count)
    low, high = law.cdf(total), law.sf(total)
    draws = np.where(low < high, stats.norm.ppf(low), -stats.norm.ppf(high))
    square = float(np.sum(np.minimum(np.abs(draws), 30.0) ** 2))
    whole: Any = stats.chi2(len(count))
    return float(2.0 * min(whole.cdf(square), whole.sf(square)))


def _p_text(verdict: _Verdict) -> str:
    pooled = [value for key, value in verdict.numbers.items() if key.endswith("_pooled_p")]
    if pooled:
        return f"; p = {min(pooled):.3g} over all rounds"
    single = [value for key, value in verdict.numbers.items() if key.endswith("_smallest_p")]
    return f"; smallest p of a round {min(single):.3g}" if single else ""


def check_noise_shape(evidence: Evidence, inputs: AuditInputs) -> Check:
    """The noise has the claimed law: Kolmogorov-Smirnov and chi-square on its histogram."""
    name = "noise_shape"
    claim = f"The noise has a {inputs.configured.noise_shape} law, not only its variance."
    noise = observed(evidence, inputs)
    if isinstance(noise, str):
        return skip(name, claim, noise)
    at = noise.rounds - 1
    counts = evidence.histograms[at]
    totals = counts.sum(axis=1)
    law = tails.cumulative(noise.shape)
    rounding = noise.rounding
    verdict = _Verdict(_problems_of_absence(noise), {})
    seen = counts[:, :-1].cumsum(axis=1) / np.maximum(1, totals)[:, None]
    gaps = np.abs(seen - law).max(axis=1, initial=0.0)
    # A NaN is in no bin, so that fewer are counted than there are.
    expected = np.minimum(evidence["noise.count"][at], 1 << 17)
    short = noise.rounds[~(totals >= expected / 2.0)]
    verdict.problems += in_rounds("elements of the noise are in no bin", short)
    each = tails.distances(np.maximum(0.0, gaps - rounding**2), totals)
    pooled = chi_square = None
    pooled_gap = float("nan")
    if len(at) and not noise.correlated:
        whole = counts.sum(axis=0)
        pooled_gap = float(np.abs(whole[:-1].cumsum() / max(1, whole.sum()) - law).max())
        worst = float(rounding.max())
        pooled = float(tails.distances(max(0.0, pooled_gap - worst**2), whole.sum()))
        distortion = float(np.sum(totals * rounding**4))
        chi_square = tails.histogram(noise.shape, whole, distortion)
    verdict.add("the distance to the law", noise, each, pooled, tests=2)
    if chi_square is not None:
        verdict.numbers["histogram_pooled_p"] = chi_square
        if not chi_square >= LEVEL / 4.0:
            verdict.problems.append(f"the histogram over all rounds has p = {chi_square:.3g}")
    return judge(
        name,
        claim,
        verdict.problems,
        (
            f"Kolmogorov-Smirnov distance {pooled_gap:.3g} over all rounds, largest of a round "
            if pooled is not None
            else "Kolmogorov-Smirnov distance, largest of a round "
        )
        + f"{gaps.max(initial=0.0):.3g}; {_context(noise, evidence)}{_p_text(verdict)}",
        {"distance": pooled_gap, **verdict.numbers},
        _visible_distance(*_draws(noise, evidence, 4.0)),
    )


def _visible_distance(draws: float, tests: float) -> str:
    distance = (math.sqrt(math.log(2.0 * tests / LEVEL) / 2.0) + 0.7) / math.sqrt(max(1.0, draws))
    if distance >= 0.5:
        return "no other law: it has too few draws"
    return f"a law that is {distance:.2g} or more away from it{power.suffix()}"


def check_noise_mean(evidence: Evidence, inputs: AuditInputs) -> Check:
    """The noise has mean 0."""
    name, claim = "noise_mean", "The noise has mean 0."
    noise = observed(evidence, inputs)
    if isinstance(noise, str):
        return skip(name, claim, noise)
    at = noise.rounds - 1
    count, total = evidence["noise.count"][at], evidence["noise.sum"][at]
    scale = tails.shape_scale(noise.shape)
    verdict = _Verdict(_problems_of_absence(noise), {})
    each = tails.sums(total, count * (1.0 + _SLACK), scale)
    pooled = None
    if len(at) and not noise.correlated:
        pooled = float(tails.sums(total.sum(), count.sum(), scale))
    verdict.add("the mean", noise, each, pooled, tests=1)
    mean = float(total.sum() / count.sum()) if len(at) else float("nan")
    return judge(
        name,
        claim,
        verdict.problems,
        f"mean {mean:.3g} standard deviations over {_context(noise, evidence)}{_p_text(verdict)}",
        {"mean": mean, **verdict.numbers},
        _visible_mean(*_draws(noise, evidence, 2.0)),
    )


def _visible_mean(draws: float, tests: float) -> str:
    mean = power.deviations(tests) / math.sqrt(max(1.0, draws))
    return f"a mean of {mean:.2g} standard deviations or more{power.suffix()}"
