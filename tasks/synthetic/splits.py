"""One split of in-memory examples whose clusters may be known."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from pfl_bench.data import InMemorySplit
from tasks.synthetic.dividing import Subset
from tasks.synthetic.generator import Pool

CLUSTER = "cluster"


class ArraySplit(InMemorySplit):
    """One split in memory.

    Args:
        name: Name of the split.
        pool: The examples that it has a share of.
        share: Its share.
    """

    def __init__(self, name: str, pool: Pool, share: Subset) -> None:
        inputs, targets = (
            torch.from_numpy(values[share.places]) for values in (pool.inputs, pool.targets)
        )
        super().__init__(name, inputs, targets, share.offsets, share.names)
        self._clusters: NDArray[np.int64] | None = None
        if pool.clusters is not None:
            owners = np.repeat(np.arange(len(pool.names)), np.diff(pool.offsets))
            self._clusters = pool.clusters[owners[share.places]]

    def read_clusters(self, start: int, stop: int) -> NDArray[np.int64]:
        """Read the clusters of the examples ``start:stop``; shape (stop - start,).

        Raises:
            IndexError: The range leaves the split.
            ValueError: Clusters are not known.
        """
        self._check_range(start, stop)
        if self._clusters is None:
            raise ValueError(f"split {self.name!r}: the clusters of these data are not known")
        return self._clusters[start:stop].copy()
