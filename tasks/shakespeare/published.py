"""Statistics of all windows as LEAF's tool prints them, beside those that its paper published."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from tasks.common.leaf.table1 import SHAKESPEARE, compare

_BINS = np.arange(0, 20_001, 2000)


def describe(sizes: Collection[int]) -> dict[str, Any]:
    """Compare users' sizes with LEAF's table 1, and describe them as its stats tool does.

    Args:
        sizes: Windows of each user, at least one user.

    Returns:
        As ``tasks.common.leaf.table1.compare``; "table1" has beside it "sd_over_mean", "skewness"
        (population; None if all users are alike), and "histogram": users with 0 to 1,999 windows,
        2,000 to 3,999, ... 18,000 to 20,000 (larger users are in no bin, as in LEAF's).
    """
    facts = compare(sizes, SHAKESPEARE, "windows of all roles, overlapping ones too")
    mean, sd = facts["table1"]["mean"], facts["table1"]["sd"]
    own = np.array(list(sizes), dtype=np.int64)
    facts["table1"] |= {
        "sd_over_mean": sd / mean,
        "skewness": float((((own - mean) / sd) ** 3).mean()) if sd > 0 else None,
        "histogram": {"edges": _BINS.tolist(), "users": np.histogram(own, _BINS)[0].tolist()},
    }
    return facts
