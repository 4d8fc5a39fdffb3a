"""What a test of a run of this length can show: the smallest deviation, seen with ``check.SEEN``.

Guarantee: none. These are of normal approximations, which are good where there are many draws; the
probability with which a sound run fails does not rest on them.
"""

from __future__ import annotations

import math

from privacy.audit.check import LEVEL, SEEN


def deviations(tests: float) -> float:
    """Standard deviations that a mean must be off.

    Args:
        tests: By how many the level is divided.
    """
    from scipy import stats

    return float(stats.norm.isf(LEVEL / (2.0 * tests)) + stats.norm.ppf(SEEN))


def scale_error(draws: float, tests: float, kurtosis: float = 3.0) -> str:
    """A standard deviation that is wrong, by so many draws of that kurtosis."""
    relative = 0.5 * math.sqrt((kurtosis - 1.0) / max(1.0, draws)) * deviations(tests)
    if relative >= 1.0:
        return "no error of the scale: it has too few draws"
    return f"a scale that is {percent(relative)} off or more{suffix()}"


def percent(relative: float) -> str:
    """A relative deviation in words."""
    return f"{100.0 * relative:.2g} %"


def suffix() -> str:
    """With what probability."""
    return f" with probability {SEEN:g}"
