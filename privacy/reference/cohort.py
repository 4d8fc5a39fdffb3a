"""Participants of a round: users, by the definition of each sampling scheme, and canaries.

Of N users C are expected in a round. Of n users k are a uniformly chosen set, in ascending order.

| scheme | users of round t |
|---|---|
| poisson | each by a coin of its own, of probability C / N: a binomial number, uniformly chosen |
| truncated_poisson | the same, at most C + 4 sqrt(C) (rounded up), at most N |
| fixed_size | C, uniformly chosen |
| full | all |
| cyclic_poisson | of group (t - 1) mod b, of b drawn once, each by a coin of C b / N |

Canaries are updates of an auditor's own, which come into the sum after those of the users.
The streams (private seed, CANARIES, .) of n canaries: (0, 0) gives n coins, of which those below
1/2 are included (one_run; else all are), and then a group of b for each. Direction i is, of kind
"coordinate", the i-th of n distinct coordinates of (0, 1); of kind "sphere" the P normal draws of
(0, i + 1), over their norm. (t, 0) gives n uniform numbers: canary i takes part in round t if its
number is below q, it is included and its group's turn is (t - 1) mod b, one of the first k (as
for a user of selected, of whom q is 1); of kind worst_case, if the
number is below 1/2. Its norm is 1 - 2^-18 times the bound, or for odd i the bound over that.

Source: Abadi et al. 2016 (poisson); Choquette-Choo et al. 2023, theorem 4 (cyclic_poisson); Andrew
et al. 2024 (one_shot), Steinke et al. 2023 (one_run), Nasr et al. 2021 (worst_case canaries).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privacy.reference.streams import CANARIES, COHORT, stream

SCHEMES = ("poisson", "truncated_poisson", "fixed_size", "full", "cyclic_poisson")


def draw(
    scheme: str, seed: int, number: int, num_users: int, cohort_size: int, groups: int
) -> NDArray[np.int64]:
    """The users of a round, shape (realised cohort,), ascending; ``groups`` is b."""
    rng, users, count = stream(seed, COHORT, number), None, num_users
    if scheme == "full":
        return np.arange(num_users)
    if scheme == "cyclic_poisson":
        group = stream(seed, COHORT).integers(groups, size=num_users)
        users = np.flatnonzero(group == (number - 1) % groups)
        count = len(users)
    size = cohort_size
    if scheme != "fixed_size":
        size = int(rng.binomial(count, cohort_size * groups / num_users))
    if scheme == "truncated_poisson":
        size = min(size, num_users, math.ceil(cohort_size + 4.0 * math.sqrt(cohort_size)))
    chosen = rng.choice(count, size=size, replace=False, shuffle=False)
    return np.sort(chosen if users is None else users[chosen])


def canaries(
    options: Any, seed: int, turn: tuple[int, int, int | None, float], length: int, bound: float
) -> Iterator[Tensor]:
    """Updates of the canaries of a round, shape (P,), float32, each; ``turn`` has t, b, k and q.

    ``options`` are ``privacy.empirical.canary_options.CanaryOptions``, of which fields are read.
    """
    (number, groups, most, rate), count = turn, options.count
    once = stream(seed, CANARIES)
    included = (once.random(count) < 0.5) | (options.kind != "one_run")
    included &= once.integers(groups, size=count) == (number - 1) % groups
    included &= most is None or (number - 1) // groups < most
    uniform = stream(seed, CANARIES, number).random(count)
    part = uniform < 0.5 if options.kind == "worst_case" else included & (uniform < rate)
    by_coordinate, places = options.seen_direction == "coordinate", [0]
    if by_coordinate:
        places = stream(seed, CANARIES, 0, 1).choice(length, size=count, replace=False).tolist()
    for i in np.flatnonzero(part).tolist():
        if by_coordinate:
            row = np.eye(1, length, places[i])[0]
        else:
            row = stream(seed, CANARIES, 0, i + 1).standard_normal(length)
            row /= np.linalg.norm(row)
        short = 1.0 - 2.0**-18
        yield torch.from_numpy(row).float() * (bound * (1.0 / short if i % 2 else short))
