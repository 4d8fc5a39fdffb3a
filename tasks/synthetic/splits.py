"""One split of in-memory examples, as trainers and evaluation read it."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from pfl_bench.types import Examples
from tasks.synthetic.dividing import Share
from tasks.synthetic.generator import Pool

CLUSTER = "cluster"


class ArraySplit:
    """One split in memory.

    Args:
        name: Name of the split.
        pool: The examples that it has a share of.
        share: Its share.

    Attributes:
        name: Name of the split.
        offsets: Shape (U + 1,): user u owns the examples ``offsets[u]:offsets[u + 1]``.
        num_users: Number of users, U.
        num_examples: Number of examples of all users.
    """

    def __init__(self, name: str, pool: Pool, share: Share) -> None:
        self.name = name
        self.offsets: NDArray[np.int64] = share.offsets
        self.num_users = len(share.names)
        self.num_examples = len(share.places)
        self._names = share.names
        self._inputs = torch.from_numpy(pool.inputs[share.places])
        self._targets = torch.from_numpy(pool.targets[share.places])
        self._clusters: NDArray[np.int64] | None = None
        if pool.clusters is not None:
            owners = np.repeat(np.arange(len(pool.names)), np.diff(pool.offsets))
            self._clusters = pool.clusters[owners[share.places]]

    def client_ids(self) -> list[str]:
        """The users' names, in the order of ``offsets``."""
        return list(self._names)

    def content(self) -> list[NDArray[np.generic]]:
        """Inputs (little-endian float32), targets and offsets (int64), for a digest."""
        return [
            self._inputs.numpy().astype("<f4", copy=False),
            self._targets.numpy().astype("<i8", copy=False),
            self.offsets.astype("<i8", copy=False),
        ]

    def read_user(self, user: int, rng: np.random.Generator) -> Examples:
        """Read a user's examples; nothing is random here, so ``rng`` stays untouched.

        Raises:
            IndexError: There is no such user.
        """
        if not 0 <= user < self.num_users:
            raise IndexError(
                f"user {user} of split {self.name!r}: there are users 0 to {self.num_users - 1}"
            )
        return self.read_range(int(self.offsets[user]), int(self.offsets[user + 1]))

    def read_range(self, start: int, stop: int) -> Examples:
        """Read the examples ``start:stop`` as fresh tensors.

        Raises:
            IndexError: The range leaves the split.
        """
        self._check_range(start, stop)
        return Examples(self._inputs[start:stop].clone(), self._targets[start:stop].clone())

    def read_examples(self, indices: NDArray[np.int64], rng: np.random.Generator) -> Examples:
        """Read chosen examples, in the order of ``indices``; ``rng`` stays untouched.

        Raises:
            IndexError: An index is outside the split.
        """
        outside = indices[(indices < 0) | (indices >= self.num_examples)]
        if len(outside):
            raise IndexError(
                f"example {outside[0]} of split {self.name!r}: "
                f"there are examples 0 to {self.num_examples - 1}"
            )
        chosen = torch.from_numpy(indices)
        return Examples(self._inputs[chosen], self._targets[chosen])

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

    def _check_range(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= self.num_examples:
            raise IndexError(
                f"examples {start}:{stop} of split {self.name!r}: "
                f"must lie within 0:{self.num_examples}"
            )
