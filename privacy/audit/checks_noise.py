"""Is the noise that was really added of the scale that is claimed?

Guarantee: what is tested is the noise as seen from outside the mechanism: the release, times the
configured cohort size, less the sum, in multiples of the standard deviation that the round claims.
Under the claim its P elements are independent draws of variance 1 of the claimed law. Tests of all
rounds together assume that rounds are independent, and are left out where the mechanism says that
its noise is correlated; those of single rounds never assume it. A seeded generator that an
adversary knows passes. Whether it is the noise that the seed draws, and of what law that is, is for
``checks_replay``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privacy.audit import power, tails
from privacy.audit.check import Finding, check
from privacy.audit.errors import SkippedError
from privacy.audit.evidence import Evidence
from privacy.audit.inputs import AuditInputs

Array = NDArray[np.float64]

# Beyond this, relative to the noise, rounding hides it.
MOST_ROUNDING = 0.05
# Four times half a unit in the last place of a float32: noise, sum, mean and product are rounded.
_FLOAT32 = 4.0 * 2.0**-24
# Relative error of a sum of squares that is allowed beside that which is recorded.
_SLACK = 1e-7


@dataclass(frozen=True, slots=True)
class Noise:
    """The observations of noise that can be tested."""

    evidence: Evidence  # the ledger's
    rounds: NDArray[np.int64]  # shape (k,), int64: the rounds, from 1, whose noise could be seen
    unseen: NDArray[np.int64]  # rounds that claim noise and have no observation
    hidden: NDArray[np.int64]  # rounds whose noise drowns in rounding
    # Shape (k,), float64: rms rounding error of each of ``rounds``, relative to the noise; computed
    # here from the lengths of sum and noise.
    rounding: Array
    # Whether any round says that its noise depends on the one before, or the mechanism does not
    # state that none does.
    correlated: bool
    shape: str  # "gaussian" or "laplace"

    @property
    def at(self) -> NDArray[np.int64]:
        """Shape (k,): indices of ``rounds``, from 0."""
        return self.rounds - 1

    def __getitem__(self, name: str) -> Array:
        """Recorded numbers of the noise of ``rounds``, shape (k,) or (k, n)."""
        return self.evidence[f"noise.{name}"][self.at]

    @property
    def context(self) -> str:
        """Number of draws and rounds, in words."""
        text = f"{float(np.nansum(self['count'])):.4g} draws in {len(self.rounds)} rounds"
        return text + f" ({len(self.hidden)} more hidden by rounding)" * bool(len(self.hidden))

    @property
    def pools(self) -> bool:
        """Whether rounds are independent, and there are any, so that all are tested together."""
        return not self.correlated and len(self.rounds) > 0

    def draws(self, parts: float) -> tuple[float, float]:
        """Draws of a test, and by what its level is divided: of all rounds, or of each alone."""
        counts = self["count"]
        if self.pools:
            return float(counts.sum()), parts
        return float(counts.max(initial=0.0)), parts * max(1, len(counts))


def claimed_noise(inputs: AuditInputs) -> None:
    """Skip what rests on noise where none is claimed."""
    if not inputs.claims_noise:
        raise SkippedError("no noise is claimed: both epsilons are infinite")


def observed(evidence: Evidence, inputs: AuditInputs) -> Noise:
    """Find what can be tested; nothing is a ``SkippedError``."""
    shape = inputs.configured.noise_shape
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
    if inputs.configured.randomizes_clients:
        # Noise and updates are summed one by one. Where nobody reports, nobody adds noise.
        rounding = rounding * np.sqrt(np.maximum(1.0, evidence.sent))
        expects = evidence.sent > 0
    visible = seen & ~(rounding > MOST_ROUNDING)
    noise = Noise(
        evidence,
        rounds=np.flatnonzero(visible) + 1,
        unseen=np.flatnonzero(~seen & expects) + 1,
        hidden=np.flatnonzero(seen & ~visible) + 1,
        rounding=np.nan_to_num(rounding[visible]),
        correlated=bool(np.nan_to_num(evidence["noise.lag_correlation"]).any())
        or inputs.configured.description.strategy is None,
        shape=shape,
    )
    if len(noise.hidden) and not len(noise.rounds) and not len(noise.unseen):
        raise SkippedError(
            "the noise is too small to be observed beside the rounding of float32, which is "
            f"{float(rounding[seen].max()):.3g} of it"
        )
    return noise


def _begin(noise: Noise) -> Finding:
    found = Finding()
    found.in_rounds("noise is claimed, but none was observed", noise.unseen)
    return found


def _judge(
    found: Finding, noise: Noise, what: str, each: Any, pooled: float | None, parts: int
) -> None:
    """Judge one statistic: each round's p-value, and that of all rounds together."""
    values, key = np.nan_to_num(np.asarray(each, np.float64), nan=0.0), what.replace(" ", "_")
    claimed = f"{what} is not that of the claimed noise"
    found.test_rounds(claimed, values, noise.rounds, 2.0 * parts)
    found.numbers[f"{key}_smallest_p"] = float(values.min(initial=1.0))
    if pooled is not None:
        found.numbers[f"{key}_pooled_p"] = pooled
        found.test(f"{what} over all rounds is not that of the claimed noise", pooled, 2.0 * parts)


def _p_text(found: Finding) -> str:
    for suffix, text in (("_pooled_p", "p = {:.3g} over all rounds"),
                         ("_smallest_p", "smallest p of a round {:.3g}")):  # fmt: skip
        values = [value for key, value in found.numbers.items() if key.endswith(suffix)]
        if values:
            return "; " + text.format(min(values))
    return ""


@check("noise_scale", "The noise has the standard deviation that each round claims.")
def check_noise_scale(evidence: Evidence, inputs: AuditInputs) -> Finding:
    """A chi-square test of the sums of squares."""
    noise = observed(evidence, inputs)
    found = _begin(noise)
    count, total = noise["count"], noise["sum_squares"]
    slack = 4.0 * noise.rounding**2 + _SLACK
    size = evidence.constant("num_parameters")
    found.where(
        f"the noise does not have {size:g} elements",
        evidence.has_noise & (evidence["noise.count"] != size),
    )
    pooled = None
    if noise.pools:
        pooled = float(tails.squares(noise.shape, total.sum(), count.sum(), float(slack.max())))
    each = tails.squares(noise.shape, total, count, slack)
    _judge(found, noise, "the scale", each, pooled, parts=2)
    spread = _spread(noise, total, count)
    if spread is not None:
        found.numbers["spread_pooled_p"] = spread
        varies = "the scale varies from round to round as that of the claimed noise does not"
        found.test(varies, spread, 4.0)
    ratio = float(np.sqrt(total.sum() / count.sum())) if len(count) else math.nan
    return found.seen(
        f"standard deviation {ratio:.6g} of the claimed one over {noise.context}{_p_text(found)}",
        power.scale_error(*noise.draws(4.0), 6.0 if noise.shape == "laplace" else 3.0),
        ratio=ratio,
    )


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
