"""Statistics as LEAF's tool prints them, and those that its paper published."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

# Caldas et al. 2018 (LEAF), table 1: of all windows, before any split.
TABLE_1 = {"users": 1129, "examples": 4_226_158, "mean": 3743.28, "sd": 6212.26}
_BINS = np.arange(0, 20_001, 2000)


def describe(sizes: NDArray[np.int64]) -> dict[str, Any]:
    """Describe users' sizes as LEAF's stats tool does for Shakespeare.

    Args:
        sizes: Shape (U,), windows of each user, at least one user.

    Returns:
        "users", "examples", "mean", "sd" (population: divided by U), "sd_over_mean", "skewness"
        (population; None if all users are alike), and "histogram": users with 0 to 1,999 windows,
        2,000 to 3,999, ... 18,000 to 20,000 (larger users are in no bin, as in LEAF's).
    """
    mean, sd = float(sizes.mean()), float(sizes.std())
    return {
        "users": len(sizes),
        "examples": int(sizes.sum()),
        "mean": mean,
        "sd": sd,
        "sd_over_mean": sd / mean,
        "skewness": float((((sizes - mean) / sd) ** 3).mean()) if sd > 0 else None,
        "histogram": {"edges": _BINS.tolist(), "users": np.histogram(sizes, _BINS)[0].tolist()},
    }
