"""Who takes part in a round, by the definition of each sampling scheme.

N users, C of them expected in a round. A set of k users is drawn as ``subset`` says.

| scheme | users of round t |
|---|---|
| poisson | each by a coin of its own, of probability C / N: a binomial number, uniformly chosen |
| truncated_poisson | the same, at most C + 4 sqrt(C) (rounded up), at most N |
| fixed_size | C, uniformly chosen |
| full | all |
| cyclic_poisson | of group (t - 1) mod b, of b drawn once, each by a coin of C b / N |

Source: Abadi et al. 2016 (poisson); Choquette-Choo et al. 2023, theorem 4 (cyclic_poisson).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from privacy.reference.streams import COHORT, stream

Users = NDArray[np.int64]
SCHEMES = ("poisson", "truncated_poisson", "fixed_size", "full", "cyclic_poisson")


def subset(rng: np.random.Generator, among: Users, size: int) -> Users:
    """So many of these users, each such set as likely: ascending, none twice.

    Args:
        rng: Gives ``choice`` without replacement, in no order that is kept.
        among: Shape (n,), ascending.
        size: At most n.
    """
    return np.sort(among[rng.choice(len(among), size=size, replace=False, shuffle=False)])


def draw(
    scheme: str, seed: int, number: int, num_users: int, cohort_size: int, groups: int
) -> Users:
    """The users of a round.

    Args:
        scheme: One of ``SCHEMES``.
        seed: The private seed.
        number: The round, from 1.
        num_users: N.
        cohort_size: C.
        groups: b, of cyclic_poisson.

    Returns:
        Shape (realised cohort,), ascending.
    """
    rng, everybody = stream(seed, COHORT, number), np.arange(num_users)
    if scheme == "full":
        return everybody
    if scheme == "fixed_size":
        return subset(rng, everybody, cohort_size)
    if scheme == "cyclic_poisson":
        group = stream(seed, COHORT).integers(groups, size=num_users)
        everybody = np.flatnonzero(group == (number - 1) % groups)
    heads = int(rng.binomial(len(everybody), cohort_size * groups / num_users))
    if scheme == "truncated_poisson":
        heads = min(heads, num_users, math.ceil(cohort_size + 4.0 * math.sqrt(cohort_size)))
    return subset(rng, everybody, heads)
