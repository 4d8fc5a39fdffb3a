"""Whether measured numbers are a published one's: equivalence within a margin, by t intervals.

A difference that a test does not find is no agreement: a few scattered seeds agree with anything.
So the question is the other one. A number is reproduced if the ``LEVEL`` interval of the difference
of the means lies within the margin: both one-sided tests of a difference as large as the margin
reject, at (1 - ``LEVEL``) / 2 each. The values are taken for normal ones; docs/commands.md says by
how much the level is missed with two seeds, unlike spreads, or seeds added until decided.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

LEVEL = 0.95
# A published mean that is uncertain by this many margins is compared with nothing, and one seed
# that is farther off than that differs from a number without a spread.
_FAR = 10.0
_MOST_SEEDS = 1000
# The published cell is rounded: without slack, 0.76 - 0.75 would exceed a margin of 0.01.
_SLACK = 1e-9
_NORMAL = statistics.NormalDist().inv_cdf((1 + LEVEL) / 2)

Outcome = Literal["reproduced", "differs", "undecided", "says nothing"]


@dataclass(frozen=True)
class Published:
    """A published number; with ``sd``, a mean over ``seeds``, at least 2 (both None otherwise).

    ``margin`` is the largest absolute difference that does not matter; ``sd`` has ``ddof=1``;
    ``chance`` is what guessing gives, None where nothing says it.
    """

    value: float
    margin: float
    sd: float | None = None
    seeds: int | None = None
    chance: float | None = None

    @property
    def half_width(self) -> float:
        """Half the ``LEVEL`` interval of the published mean; 0 where no spread is published."""
        if self.sd is None or self.seeds is None:
            return 0.0
        return quantile(self.seeds - 1) * self.sd / math.sqrt(self.seeds)

    @property
    def says_nothing(self) -> bool:
        """Whether its own interval is beyond the margin, and holds chance or is far beyond."""
        wide = self.half_width
        holds_chance = self.chance is not None and abs(self.value - self.chance) <= wide
        return wide > self.margin and (holds_chance or wide > _FAR * self.margin)


@dataclass(frozen=True)
class Comparison:
    """Result of a comparison.

    Attributes:
        outcome: "reproduced", "differs", "undecided" or "says nothing" (the published number does).
        text: The interval and the margin, for a note below a table.
        more_seeds: How many more seeds are expected to decide; None where the outcome is decided,
            no spread is known, or ``_MOST_SEEDS`` would not do.
    """

    outcome: Outcome
    text: str
    more_seeds: int | None = None


def equivalence(measured: Sequence[float], published: Published) -> Comparison:
    """Compare the numbers of one seed or more with a published number.

    The interval is that of Welch's t where both spreads are known. One seed is compared as one more
    published run is, with the published spread. So are seeds of equal values, which are of a coarse
    metric more often than of a training without any spread. A published number without spread is
    taken as printed, and so the interval is that of our mean alone, which needs two seeds that
    differ; one that is more than ten margins away differs.

    The outcome is "reproduced" if the interval lies within the margin, "differs" if it lies outside
    of it on one side, else "undecided", also where the interval excludes 0. Values that are not
    finite differ from everything.
    """
    difference = math.fsum(measured) / len(measured) - published.value
    margin = published.margin * (1 + _SLACK) + 1e-12
    if not math.isfinite(difference):
        return Comparison("differs", "a seed's value is not finite")
    sd = statistics.stdev(measured) if len(set(measured)) > 1 else None
    half = half_width(sd, len(measured), published)
    if half is None:
        seeds = "one seed" if len(measured) == 1 else "seeds of equal values"
        text = f"{seeds}, {difference:+.4g}, no published spread; margin {published.margin:g}"
        return Comparison("differs" if abs(difference) > _FAR * margin else "undecided", text)
    text = (
        f"difference {difference:+.4g}, {LEVEL:.0%} interval {difference - half:+.4g} to "
        f"{difference + half:+.4g}, margin {published.margin:g}"
    )
    if abs(difference) - half > margin:
        return Comparison("differs", text)
    if abs(difference) + half <= margin:
        return Comparison("reproduced", text)
    if published.says_nothing:
        wide = f"the published mean alone is uncertain by ± {published.half_width:.2g}"
        return Comparison("says nothing", f"{text}; {wide}")
    wanted = abs(margin - abs(difference))
    spread = published.sd if sd is None else sd
    return Comparison("undecided", text, _more_seeds(spread, len(measured), published, wanted))


def _more_seeds(sd: float | None, seeds: int, published: Published, wanted: float) -> int | None:
    """Number of further seeds of this spread that bring the interval to a half width ``wanted``."""
    if published.sd is not None and published.seeds is not None:
        # Student's quantiles are larger than the normal one, and the published mean stays as it is.
        least = _NORMAL * published.sd / math.sqrt(published.seeds)
        if least > wanted * (1 + _SLACK):
            return None
    for total in range(seeds + 1, _MOST_SEEDS + 1):
        half = half_width(sd, total, published)
        if half is not None and half <= wanted:
            return total - seeds
    return None


def half_width(sd: float | None, seeds: int, published: Published) -> float | None:
    """Half the ``LEVEL`` interval of the difference of our mean and the published one.

    ``sd`` is that of our seeds with ``ddof=1``, None of one seed or of equal values. None of these
    where no spread is published.

    Source: Welch 1947, The generalization of Student's problem; of one seed, the t interval of a
        future observation of a normal sample: Hahn and Meeker 1991, section 4.7.
    """
    if sd is None:
        if published.sd is None or published.seeds is None:
            return None
        return quantile(published.seeds - 1) * published.sd * math.sqrt(1 + 1 / published.seeds)
    if published.sd is None or published.seeds is None:
        return quantile(seeds - 1) * sd / math.sqrt(seeds)
    error, freedom = welch(sd, seeds, published.sd, published.seeds)
    return quantile(freedom) * error


def welch(sd: float, seeds: int, other_sd: float, other_seeds: int) -> tuple[float, float]:
    """Standard error of a difference of two means, and its degrees of freedom.

    Standard deviations have ``ddof=1`` and are not both 0; each sample has at least 2 seeds.

    Source: Welch 1947; Satterthwaite's degrees.
    """
    # In units of the larger one: squares of tiny deviations would underflow.
    unit = max(sd, other_sd)
    mine, other = (sd / unit) ** 2 / seeds, (other_sd / unit) ** 2 / other_seeds
    freedom = (mine + other) ** 2 / (mine**2 / (seeds - 1) + other**2 / (other_seeds - 1))
    return unit * math.sqrt(mine + other), freedom


def quantile(freedom: float) -> float:
    """The upper end of Student's t's central interval of ``LEVEL``."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + LEVEL) / 2))
