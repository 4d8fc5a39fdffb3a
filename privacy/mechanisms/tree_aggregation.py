"""DP-FTRL by tree aggregation: each prefix sum of the rounds is noised by a few nodes of a tree.

Guarantee: unit user, added or removed. Each of a user's contributions has norm at most
``clip_norm``. A binary tree has the rounds' sums as its leaves; each complete node's sum gets
Gaussian noise of standard deviation ``z * C_sm / C_lg * clip_norm`` in each element, once. What is
released in a round, the increment of the estimated prefix sum, is made of noised nodes alone.

- z, ``noise_multiplier``, is the noise of a *node* in multiples of clip_norm, as in the literature
  (Gboard's 7.0). What the accountant sees is one Gaussian mechanism over all rounds, of the
  effective multiplier z / sensitivity: ``composition`` divides.
- The sensitivity is exact for the sampler's pattern (cyclic_poisson: the rounds g, g + b, g + 2b,
  ... of one group g; full: every round): in each complete node of each tree, the number of the
  user's rounds under it, squared, summed; the worst g. The user is taken to be in all of them:
  no amplification by sampling is claimed.
- selected: a bound of the sensitivity of all patterns within the separation and the cap of rounds
  takes the place of the exact one. Adjacency zero-out.
- A restart begins a new tree; the last estimate of the old one stays in the model. A user is in all
  trees, and pays for all. Nodes that a run's end leaves incomplete are never drawn: a run that
  stops early claims what it has spent.
- poisson and fixed_size are refused: they keep no pattern (see
  ``privacy.mechanisms.banded_matrix_factorization``).

A node is estimated from its own noisy sum and its children's, by the weights of least variance,
which is post-processing. The noise of two releases is correlated: mostly a release takes back part
of the noise of the ones before. ``Release.update_noise_stddev`` is the marginal one of the
increment, which for even rounds is more than z.

Memory: the noise of the open nodes' estimates, float32, on the CPU and in each checkpoint: at
most 4 * (floor(log2(rounds of a tree)) + 1) * P bytes.

Source: Kairouz et al. 2021 (arXiv 2103.00039), algorithm 1 and appendices B.1 and D; Honaker 2015.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from privacy.amplification import Participation
from privacy.description import OF_THE_BOUND, Description, Tree
from privacy.errors import PlanError
from privacy.mechanism import NoiseScale, NormalSource
from privacy.noise.clipped_sum import ClipOptions
from privacy.noise.correlated_noise import CorrelatedSum, check_length
from privacy.noise.tree_factorization import (
    separated_tree_squared_sensitivity,
    tree_levels,
    tree_noise_profile,
    tree_squared_sensitivity,
)

DESCRIPTION = Description(
    "sums of clipped updates over rounds get Gaussian noise at the nodes of binary trees, once a "
    f"node; its standard deviation is {OF_THE_BOUND}",
    law="gaussian",
    stddev=1.0,
    strategy=Tree(None),
)


class Options(ClipOptions):
    """Settings of tree aggregation.

    Attributes:
        clip_norm: L2 bound of a user's update, the same in every round.
        restart_every: Rounds of a tree; null for one tree over the whole run.
    """

    restart_every: Annotated[int, Field(ge=1)] | None = None


class TreeAggregation(CorrelatedSum):
    """Clip to a fixed bound, sum, release the increment of the tree's estimate of the prefix sum.

    Restarts that would come after the planned rounds are refused.
    """

    name = "tree_aggregation"

    def __init__(self, options: Options, noise: NoiseScale) -> None:
        if noise.num_rounds and (options.restart_every or 0) > noise.num_rounds:
            raise PlanError(
                f"restart_every is {options.restart_every}, but the run has {noise.num_rounds} "
                "rounds, so that no tree would be restarted; set restart_every to null for one "
                "tree, or to fewer rounds"
            )
        super().__init__(options, noise)
        self._restart_every = options.restart_every
        self.description = replace(DESCRIPTION, strategy=Tree(options.restart_every))

    def _squared_sensitivity(self, participation: Participation, rounds: int) -> float:
        apart, restart_every = participation.min_separation, self._restart_every
        if participation.scheme.pattern == "separated":
            most = participation.most_participations(rounds)
            return separated_tree_squared_sensitivity(rounds, apart, most, restart_every)
        return tree_squared_sensitivity(rounds, apart, restart_every)

    def _next_noise(self, rng: NormalSource, length: int) -> NDArray[np.float64]:
        """Draw the nodes that the coming round completes; noise of the estimate, less the last.

        The stream gives ``length`` normal draws for each node that the round completes, leaf first.
        Shape (length,), float64.
        """
        index = self._rounds % (self._restart_every or self._rounds + 1)
        if index == 0:
            self._kept = []
        check_length(self._kept, length)
        own, child = tree_levels()
        estimate = rng.standard_normal(length)
        replaced = np.zeros(length)
        level = 0
        # A carry: as long as the tree has an open node of this level, the two are siblings.
        while index >> level & 1:
            left = self._kept.pop().numpy().astype(np.float64)
            replaced += left
            level += 1
            estimate = child[level] * (left + estimate)
            estimate += own[level] * rng.standard_normal(length)
        self._kept.append(torch.from_numpy(estimate).to(torch.float32))
        return np.subtract(estimate, replaced, out=replaced)

    def _noise_profile(self, rounds: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return tree_noise_profile(rounds, self._restart_every)

    def _num_kept(self, rounds: int) -> int:
        """The open nodes' estimates, the highest first: one for each 1 of the tree's rounds.

        A finished tree is left as it is until the next round.
        """
        size = self._restart_every or rounds + 1
        return ((rounds - 1) % size + 1 if rounds else 0).bit_count()


build = TreeAggregation
