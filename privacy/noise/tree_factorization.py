"""Noise at the nodes of binary trees: what it costs, and gives.

Guarantee: as in ``privacy.noise.factorization``, for the strategy C that has a row a complete node.
M makes the estimates of the prefix sums, each less the one before.

Source: Kairouz et al. 2021 (arXiv 2103.00039, appendices B.1 and D); Honaker 2015 (node estimates).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from privacy.errors import check_count

# 2^40 rounds are more than any run has.
_LEVELS = 40


def tree_levels() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Weights of a node's estimate: of its own draw and of its two children, by level.

    The estimate of a node on level j is v_j times its own noisy sum plus c_j times the sum of its
    children's estimates, the weights that make its variance least: v_0 = 1,
    v_j = 1 / (1 + 1 / (2 v_(j-1))), c_j = v_j / (2 v_(j-1)).

    Shape (40,) each, float64: v, the variance of the estimate at z = 1 and the weight of the node's
    own draw; and c, the weight of each child (0 for leaves).

    Source: Honaker 2015, section 3.1 (estimation from below); Kairouz et al. 2021, appendix B.1.
    """
    variances = [1.0]
    for _ in range(_LEVELS - 1):
        variances.append(1.0 / (1.0 + 0.5 / variances[-1]))
    own = np.array(variances)
    return own, np.concatenate([[0.0], 0.5 * own[1:] / own[:-1]])


def tree_noise_profile(
    rounds: int, restart_every: int | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Marginal noise of each round's release, and its correlation with the one before.

    Round i of a tree completes the nodes up to level j, the number of zeros that end i in base 2.
    It releases the estimate of the highest less those of the j nodes that it replaces. An odd i
    releases a fresh leaf, independent of all before; an even one subtracts the leaf before it.

    Shape (rounds,) each, float64: standard deviation in multiples of z, and correlation. No
    ``restart_every`` is one tree.
    """
    own, child = tree_levels()
    stddevs, correlations = np.ones(_LEVELS), np.zeros(_LEVELS)
    for level in range(1, _LEVELS):
        # Weight of the open node of each lower level in the estimate of this one.
        share = np.cumprod(child[level:0:-1])[::-1]
        stddevs[level] = np.sqrt(own[level] + ((1.0 - 2.0 * share) * own[:level]).sum())
        correlations[level] = (share[0] - 1.0) / stddevs[level]
    index = _index_in_tree(rounds, restart_every) + 1
    highest = np.log2(index & -index).astype(np.int64)
    return stddevs[highest], correlations[highest]


def tree_prefix_errors(rounds: int, restart_every: int | None) -> NDArray[np.float64]:
    """Expected squared error of each prefix sum, an element of it, at z = 1.

    Shape (rounds,), float64: of the open nodes, and of the trees before, whose last errors stay.
    """
    index = _index_in_tree(rounds, restart_every) + 1
    own, _ = tree_levels()
    bits = (index[:, None] >> np.arange(_LEVELS)) & 1
    errors: NDArray[np.float64] = bits @ own
    if restart_every is None:
        return errors
    finished = np.concatenate([[0.0], errors[restart_every - 1 :: restart_every].cumsum()])
    errors += finished[np.arange(rounds) // restart_every]
    return errors


@lru_cache(maxsize=4096)
def tree_squared_sensitivity(rounds: int, separation: int, restart_every: int | None) -> float:
    """Squared sensitivity of all complete nodes of all trees, for users every b rounds.

    A node counts as many times as a group of rounds g, g + b, ... has leaves under it, squared;
    the worst group of all g. Nodes that the rounds leave incomplete are never drawn.

    Source: Kairouz et al. 2021, appendix D (squared counts), here for the sampler's patterns alone.
    """
    check_count("separation", separation)
    if rounds < 1:
        return 0.0
    position = np.arange(rounds)
    index = _index_in_tree(rounds, restart_every)
    size = restart_every or rounds
    tree = position // size
    # Rounds of the tree that have been released, for each round in it.
    released = np.minimum(rounds - tree * size, size)
    group = position % separation
    totals = np.zeros(min(separation, rounds))
    for level in range(int(size).bit_length()):
        node = index >> level
        complete = (node + 1) << level <= released
        if not complete.any():
            break
        keys = ((tree * (size + 1) + node) * separation + group)[complete]
        found, counts = np.unique(keys, return_counts=True)
        np.add.at(totals, found % separation, counts.astype(np.float64) ** 2)
    return float(totals.max())


def separated_tree_squared_sensitivity(
    rounds: int, separation: int, participations: int, restart_every: int | None
) -> float:
    """Bound of that of all complete nodes, for at most k rounds, each two at least b apart.

    On each level a node of n leaves has at most ceil(n / b) of a user's rounds under it, and all
    nodes together at most as many as fit under them, and k. So the squares add up to no more than
    those of full nodes, one after another until there are so many. Exact for one round; above the
    worst case by a little for more, as all levels are taken at their worst at once.
    """
    check_count("separation", separation)
    size = restart_every or rounds
    trees, rest = divmod(rounds, size) if rounds else (0, 0)
    total = 0
    for level in range(int(size).bit_length()):
        leaves = 1 << level
        most = -(-leaves // separation)
        nodes = trees * (size // leaves) + rest // leaves
        # Under the complete nodes of each tree, which follow one another.
        fitting = [-(-(part - part % leaves) // separation) for part in (size, rest)]
        count = min(participations, trees * fitting[0] + fitting[1])
        full = min(count // most, nodes)
        left = count - full * most if full < nodes else 0
        total += full * most**2 + left**2
    return float(total)


def _index_in_tree(rounds: int, restart_every: int | None) -> NDArray[np.int64]:
    index = np.arange(rounds, dtype=np.int64)
    return index if restart_every is None else index % restart_every
