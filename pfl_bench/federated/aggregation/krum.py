"""Krum: of a round's updates the one (or the mean of the few) that lies nearest to its neighbours.

Not private: the centre sees each update. It keeps a round's updates, cohort times P numbers of
four bytes, and compares each with each.

Source: Blanchard et al. 2017, "Machine learning with adversaries: Byzantine tolerant gradient
descent", section 4 (Krum), and its Multi-Krum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from pfl_bench.config.training import Strict
from pfl_bench.federated.aggregation._kept import BufferedAggregation, chunks
from pfl_bench.types import ConfigError
from privacy.mechanism import NoiseScale

_FEWEST_MORE = 3  # clients beyond twice the attackers


class Options(Strict):
    """Options of Krum.

    Attributes:
        num_attackers: f: of n clients in a round at most so many attack; n must be 2 f + 3 or more.
        num_selected: m: the mean of the m best updates is taken; 1 for Krum, more for Multi-Krum,
            at most n - f.
    """

    num_attackers: Annotated[int, Field(ge=0)]
    num_selected: Annotated[int, Field(ge=1)] = 1


def squared_distances(updates: Sequence[Tensor]) -> Tensor:
    """Squared L2 distances of all pairs, shape (n, n), float64 on the CPU."""
    count = len(updates)
    pairs = torch.zeros(count * (count - 1) // 2, dtype=torch.float64)
    for _, values in chunks(updates):
        # Not by a matrix product: one huge update would take the digits from all other distances,
        # and so hide a second attacker.
        pairs += functional.pdist(values.cpu().double()).square_()
    result = torch.zeros((count, count), dtype=torch.float64)
    rows, columns = torch.triu_indices(count, count, offset=1)
    result[rows, columns] = result[columns, rows] = pairs
    return result


def select(updates: Sequence[Tensor], num_attackers: int, num_selected: int) -> list[int]:
    """Indices, ascending, of the updates, of shape (P,) each, with the smallest scores.

    The score is the sum of squared distances to the n - f - 2 nearest others.
    """
    count = len(updates)
    distances = squared_distances(updates)
    distances.fill_diagonal_(torch.inf)
    nearest = distances.sort(dim=1).values[:, : count - num_attackers - 2]
    best = nearest.sum(dim=1).argsort(stable=True)[:num_selected]
    return sorted(best.tolist())


def build(options: Options, noise: NoiseScale) -> BufferedAggregation:
    """Build Krum; nothing is noised. A round with too few finite updates is left out."""
    fewest = max(
        2 * options.num_attackers + _FEWEST_MORE, options.num_selected + options.num_attackers
    )
    if noise.cohort_size < fewest:
        raise ConfigError(
            f"federated.aggregation: krum with num_attackers {options.num_attackers} and "
            f"num_selected {options.num_selected} needs {fewest} clients in each round (2 "
            "num_attackers + 3, and num_attackers + num_selected), but federated.cohort_size is "
            f"{noise.cohort_size:g}; raise it, or lower the two"
        )

    def combine(updates: Sequence[Tensor]) -> Tensor:
        chosen = select(updates, options.num_attackers, options.num_selected)
        result = torch.zeros_like(updates[0])
        for place in chosen:
            result += updates[place]
        return result / len(chosen)

    return BufferedAggregation("krum", combine, fewest)
