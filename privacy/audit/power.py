"""Power of a test on a run of this length: the smallest deviation, seen with ``check.SEEN``.

Guarantee: none. These are of normal approximations, which are good where there are many draws; the
probability with which a sound run fails does not rest on them.
"""

from __future__ import annotations

import math

from privacy.audit.check import LEVEL, SEEN

_SUFFIX = f" with probability {SEEN:g}"


def deviations(tests: float) -> float:
    """Standard deviations that a mean must be off where the level is divided by so many tests."""
    from scipy import stats

    return float(stats.norm.isf(LEVEL / (2.0 * tests)) + stats.norm.ppf(SEEN))


def shown(what: str, least: float, unseen: str = "", limit: float = 1.0) -> str:
    """The smallest deviation that shows, in words.

    Args:
        what: The deviation; "{0:.2g}" (or "{0:.2%}") stands for its size.
        least: Its size.
        unseen: What to say if none shows, because it would have to be ``limit`` or more.
        limit: See above.
    """
    return unseen if unseen and not least < limit else what.format(least, 100.0 * least) + _SUFFIX


def scale_error(draws: float, tests: float, kurtosis: float = 3.0) -> str:
    """A standard deviation that is wrong, by so many draws of that kurtosis."""
    relative = 0.5 * math.sqrt((kurtosis - 1.0) / max(1.0, draws)) * deviations(tests)
    unseen = "no error of the scale: it has too few draws"
    return shown("a scale that is {1:.2g} % off or more", relative, unseen)
