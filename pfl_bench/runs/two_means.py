"""Whether measured numbers agree with a published one: by a tolerance, or by a test.

A published number that comes with its standard deviation over seeds is the mean of a sample, as
ours is. Then the verdict is that of a test at ``LEVEL``, two-sided.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LEVEL = 0.05
WELCH = "Welch's t-test"
PREDICTION = "prediction interval"
# The published cell is rounded: without slack, 0.76 - 0.75 would exceed a tolerance of 0.01.
_SLACK = 1e-9


@dataclass(frozen=True)
class Published:
    """A published number.

    Attributes:
        value: The number; with ``sd``, a mean over ``seeds``.
        tolerance: Largest absolute difference that does not matter.
        sd: Its standard deviation over seeds with ``ddof=1``; None where it was not published.
        seeds: How many seeds, at least 2; None where ``sd`` is.
    """

    value: float
    tolerance: float
    sd: float | None = None
    seeds: int | None = None


@dataclass(frozen=True)
class Agreement:
    """What a comparison came to.

    Attributes:
        agrees: Whether the measured numbers agree with the published one.
        test: ``WELCH`` or ``PREDICTION``; empty where the tolerance decided.
        text: What decided, with its numbers, for a note below a table.
    """

    agrees: bool
    test: str
    text: str


def agreement(measured: Sequence[float], published: Published) -> Agreement:
    """Compare the numbers of some seeds with a published number.

    Without a published sd, or with one of 0, which is one that was rounded and against which
    everything differs, the mean agrees if it is within the tolerance. With one, and one seed of
    ours, that seed agrees if it is within the interval in which one more published run would be, at
    ``1 - LEVEL``. With one, and several seeds, the means agree if Welch's test does not reject at
    ``LEVEL`` that they are equal; or if it does, but the whole ``1 - LEVEL`` interval of their
    difference is within the tolerance, so that the difference is real and does not matter.

    Args:
        measured: One value a seed, at least one.
        published: The published number.

    Returns:
        The outcome. Values that are not finite agree with nothing.
    """
    mean = math.fsum(measured) / len(measured)
    difference = mean - published.value
    if not published.sd or published.seeds is None:
        agrees = abs(difference) <= published.tolerance * (1 + _SLACK) + 1e-12
        return Agreement(agrees, "", f"tolerance {published.tolerance:g}")
    beside = f"{published.value:g} ± {published.sd:g} ({published.seeds} seeds)"
    if len(measured) < 2:
        half = prediction_half_width(published.sd, published.seeds)
        text = (
            f"{PREDICTION} of one more run of {beside} at {1 - LEVEL:.0%}: "
            f"{published.value - half:.4g} to {published.value + half:.4g}"
        )
        return Agreement(abs(difference) <= half, PREDICTION, text)
    if not all(map(math.isfinite, measured)):
        return Agreement(False, WELCH, f"{WELCH} against {beside}: a seed's value is not finite")
    error, freedom = welch(statistics.stdev(measured), len(measured), published.sd, published.seeds)
    p = p_value(difference / error, freedom)
    half = quantile(freedom) * error
    low, high = difference - half, difference + half
    is_small = max(abs(low), abs(high)) <= published.tolerance
    text = (
        f"{WELCH} against {beside}: t {difference / error:.2f} at {freedom:.1f} degrees of "
        f"freedom, p {p:.2g}, {1 - LEVEL:.0%} interval of the difference {low:+.4g} to {high:+.4g}"
    )
    if p < LEVEL and is_small:
        text += f", all of it within the tolerance {published.tolerance:g}"
    elif p >= LEVEL and not is_small:
        text += f", which reaches beyond the tolerance {published.tolerance:g}"
    return Agreement(p >= LEVEL or is_small, WELCH, text)


def prediction_half_width(sd: float, seeds: int) -> float:
    """Half the interval around a mean in which one more run of the same kind is expected.

    Args:
        sd: Standard deviation of the runs with ``ddof=1``.
        seeds: How many runs, at least 2.

    Source: the t interval of a future observation of a normal sample; Hahn and Meeker 1991,
        section 4.7.
    """
    return quantile(seeds - 1) * sd * math.sqrt(1 + 1 / seeds)


def welch(sd: float, seeds: int, other_sd: float, other_seeds: int) -> tuple[float, float]:
    """Standard error of a difference of two means, and its degrees of freedom.

    Args:
        sd: Standard deviation of one sample with ``ddof=1``.
        seeds: Its size, at least 2.
        other_sd: As ``sd``, of the other one; not both are 0.
        other_seeds: As ``seeds``.

    Source: Welch 1947, The generalization of Student's problem; Satterthwaite's degrees.
    """
    # In units of the larger one: squares of tiny deviations would underflow.
    unit = max(sd, other_sd)
    mine, other = (sd / unit) ** 2 / seeds, (other_sd / unit) ** 2 / other_seeds
    freedom = (mine + other) ** 2 / (mine**2 / (seeds - 1) + other**2 / (other_seeds - 1))
    return unit * math.sqrt(mine + other), freedom


def p_value(t: float, freedom: float) -> float:
    """Two-sided p-value of Student's t."""
    from scipy.special import stdtr

    return float(2 * stdtr(freedom, -abs(t)))


def quantile(freedom: float) -> float:
    """The ``1 - LEVEL / 2`` quantile of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 1 - LEVEL / 2))
