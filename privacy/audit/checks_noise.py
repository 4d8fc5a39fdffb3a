"""Is the noise that was really added of the scale that is claimed?

Guarantee: what is tested is the noise as seen from outside the mechanism: the release, times the
configured cohort size, less the sum, in multiples of the standard deviation that the round claims.
Under the claim its P elements are independent draws of variance 1 of the claimed law. Tests of all
rounds together assume that rounds are independent, and are left out where the mechanism says that
its noise is correlated; those of single rounds never assume it. A seeded generator that an
adversary knows passes. Whether it is the noise that the seed draws, and of what law that is, is for
``checks_replay``.

Of the statistics of the features, which are released before the first step, is checked that they
are released as configured, and that the noise on each of the two sums, measured from outside by
sums of its own, has the claimed standard deviation: the squares of K elements follow the
chi-squared law of K degrees. A sum without noise, or not clipped to its bound, is beyond it on
either side. Not seen is noise that is wrong by less than the law's width: some 35 % of the standard
deviation for 81 channels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privacy.audit import tails
from privacy.audit.check import LEVEL, SEEN, Finding, check
from privacy.audit.evidence import Evidence, SkippedError
from privacy.audit.inputs import AuditInputs, as_number
from privacy.empirical.gaussian_dp import largest

Array = NDArray[np.float64]

# Beyond this, relative to the noise, rounding hides it.
_MOST_ROUNDING = 0.05
# Four times half a unit in the last place of a float32: noise, sum, mean and product are rounded.
_FLOAT32 = 4.0 * 2.0**-24
# Relative error of a sum of squares that is allowed beside that which is recorded.
_SLACK = 1e-7
_MOST_DRAWS = 1e15
_STATISTICS = ("mean", "square")


@dataclass(frozen=True, slots=True)
class Noise:
    """The observations of noise that can be tested."""

    rounds: NDArray[np.int64]  # shape (k,), int64: the rounds, from 1, whose noise could be seen
    unseen: NDArray[np.int64]  # rounds that claim noise and have no observation
    hidden: NDArray[np.int64]  # rounds whose noise drowns in rounding
    # Shape (k,), float64: rms rounding error of each of ``rounds``, relative to the noise; computed
    # here from the lengths of sum and noise.
    rounding: Array
    shape: str  # "gaussian" or "laplace"


def claimed_noise(inputs: AuditInputs) -> None:
    """Skip what rests on noise where none is claimed."""
    if not inputs.claims_noise:
        raise SkippedError("no noise is claimed: both epsilons are infinite")


def observed(evidence: Evidence, inputs: AuditInputs) -> Noise:
    """Find what can be tested; nothing is a ``SkippedError``."""
    shape = inputs.configured.description.law
    claimed_noise(inputs)
    if shape not in ("gaussian", "laplace"):
        raise SkippedError(
            f"the noise of {inputs.configured.mechanism} has no law that is tested element-wise"
        )
    stddev, length, size = evidence.need("update_noise_stddev", "sum_norm", "noise.count")
    seen = evidence.has_noise
    length = length * inputs.configured.description.reach(evidence.constant("num_parameters"))
    rounding = _FLOAT32 * np.sqrt(1.0 + (length / stddev) ** 2 / size)
    expects = np.full(evidence.rounds, True)
    if inputs.configured.description.randomizes_clients:
        # Noise and updates are summed one by one. Where nobody reports, nobody adds noise.
        rounding = rounding * np.sqrt(np.maximum(1.0, evidence.sent))
        expects = evidence.sent > 0
    visible = seen & ~(rounding > _MOST_ROUNDING)
    noise = Noise(
        rounds=np.flatnonzero(visible) + 1,
        unseen=np.flatnonzero(~seen & expects) + 1,
        hidden=np.flatnonzero(seen & ~visible) + 1,
        rounding=np.nan_to_num(rounding[visible]),
        shape=shape,
    )
    if len(noise.hidden) and not len(noise.rounds) and not len(noise.unseen):
        raise SkippedError(
            "the noise is too small to be observed beside the rounding of float32, which is "
            f"{float(rounding[seen].max()):.3g} of it"
        )
    return noise


@check("noise_scale", "The noise has the standard deviation that each round claims.")
def check_noise_scale(evidence: Evidence, inputs: AuditInputs) -> Finding:
    """A chi-square test of the sums of squares."""
    noise, found = observed(evidence, inputs), Finding()
    found.in_rounds("noise is claimed, but none was observed", noise.unseen)
    at, size = noise.rounds - 1, evidence.constant("num_parameters")
    count, total = evidence["noise.count"][at], evidence["noise.sum_squares"][at]
    slack = 4.0 * noise.rounding**2 + _SLACK
    found.where(
        f"the noise does not have {size:g} elements",
        evidence.has_noise & (evidence["noise.count"] != size),
    )
    each = np.nan_to_num(tails.squares(noise.shape, total, count, slack))
    found.test_rounds("the scale is not that of the claimed noise", each, noise.rounds, 4.0)
    smallest = found.numbers["the_scale_smallest_p"] = float(each.min(initial=1.0))
    shown = f"smallest p of a round {smallest:.3g}"
    # Draws of a test, and by what its level is divided: of each round alone, or of all together.
    draws, tests = float(count.max(initial=0.0)), 4.0 * max(1, len(count))
    if len(count) and not inputs.configured.description.correlates_rounds:
        pooled = float(tails.squares(noise.shape, total.sum(), count.sum(), float(slack.max())))
        found.numbers["the_scale_pooled_p"] = least = pooled
        found.test("the scale over all rounds is not that of the claimed noise", pooled, 4.0)
        spread = _spread(noise, total, count)
        if spread is not None:
            found.numbers["spread_pooled_p"], least = spread, min(pooled, spread)
            varies = "the scale varies from round to round as that of the claimed noise does not"
            found.test(varies, spread, 4.0)
        shown = f"p = {least:.3g} over all rounds"
        draws, tests = float(count.sum()), 4.0
    ratio = float(np.sqrt(total.sum() / count.sum())) if len(count) else math.nan
    hidden = f" ({len(noise.hidden)} more hidden by rounding)" if len(noise.hidden) else ""
    return found.seen(
        f"standard deviation {ratio:.6g} of the claimed one over {float(np.nansum(count)):.4g} "
        f"draws in {len(at)} rounds{hidden}; {shown}",
        _power(noise.shape, draws, tests, float(slack.max(initial=_SLACK))),
        ratio=ratio,
    )


def smallest_errors(shape: str, draws: float, tests: float, slack: float) -> tuple[float, float]:
    """Least error of a standard deviation that so many draws show, with probability ``SEEN``.

    Of one that is too small (1 if none is seen) and of one that is too large, relative, where so
    many tests share the level. From the ends of what ``tails.squares`` accepts, and from the gamma
    law with the mean and the variance of the sum of squares: its own law for normal draws, near it
    for Laplace ones. The probability with which a sound run fails does not rest on it.
    """
    from scipy import stats

    def is_seen(total: float) -> bool:
        return float(tails.squares(shape, total, draws, slack)) < LEVEL / tests

    spread = 5.0 if shape == "laplace" else 2.0  # variance of a draw's square
    law: Any = stats.gamma(draws / spread, scale=spread)
    low = largest(is_seen, 0.0, draws) if is_seen(0.0) else 0.0
    high = 2.0 * draws
    while not is_seen(high):
        high *= 2.0
    high = largest(lambda total: not is_seen(total), draws, high)
    most, least = float(law.ppf(SEEN)), float(law.ppf(1.0 - SEEN))
    return 1.0 - math.sqrt(low / most), math.sqrt(high / least) - 1.0


def _power(shape: str, draws: float, tests: float, slack: float) -> str:
    """Say which wrong scales a run of so many draws would show."""
    if not 1.0 <= draws < _MOST_DRAWS:
        return "no error of the scale: it has no draws, or more than any run has"
    small, large = smallest_errors(shape, draws, tests, slack)
    too_small = f"{100.0 * small:.3g} % or more too small, or " if small < 1.0 else ""
    return (
        f"a scale that is {too_small}{100.0 * large:.3g} % or more too large, with probability "
        f"{SEEN:g}"
    )


def _spread(noise: Noise, total: Array, count: Array) -> float | None:
    """P-value of how much the sums of squares of rounds differ from one another.

    Their probabilities, taken as those of normal draws, have a chi-square law of k degrees.
    """
    from scipy import stats

    # Rounding moves each by less than a twentieth of its own standard deviation.
    small = 4.0 * noise.rounding**2 * np.sqrt(count / 2.0) < 0.05
    if noise.shape != "gaussian" or len(count) < 2 or not small.all():
        return None
    law: Any = stats.chi2(count)
    low, high = law.cdf(total), law.sf(total)
    draws = np.where(low < high, stats.norm.ppf(low), -stats.norm.ppf(high))
    square = float(np.sum(np.minimum(np.abs(draws), 30.0) ** 2))
    whole: Any = stats.chi2(len(count))
    return float(2.0 * min(whole.cdf(square), whole.sf(square)))


@check(
    "statistics",
    "Mean and mean square of the features were each released with the noise that is accounted.",
)
def check_statistics(evidence: Evidence, inputs: AuditInputs) -> Finding:
    from scipy import stats

    claimed = inputs.configured.mechanism_options.get("statistics")
    recorded = evidence.constants.get("statistics")
    if claimed is None and recorded is None:
        raise SkippedError("no statistics of the data are released beside the steps")
    evidence.need_lines()
    found, shown = Finding(), []
    if claimed is None or not isinstance(recorded, Mapping):
        found.problems.append("statistics are either configured or recorded, and not both")
        return found.seen("nothing")
    for name in _STATISTICS:
        vector: Any = recorded.get(name)
        vector = vector if isinstance(vector, Mapping) else {}
        count, squares = as_number(vector.get("count")), as_number(vector.get("sum_squares"))
        if not count >= 1.0 or math.isnan(squares):
            found.problems.append(f"the noise of the {name} is not recorded")
            continue
        law: Any = stats.chi2(count)
        tail = 2.0 * min(float(law.cdf(squares)), float(law.sf(squares)))
        found.test(f"the noise of the {name} is not of the claimed size", tail, len(_STATISTICS))
        shown.append(f"{name}: {math.sqrt(squares / count):.4g} of what is claimed, of {count:g}")
    return found.seen(f"measured standard deviation of the noise, {'; '.join(shown)} elements")
