"""One split of examples that lie in memory, for tasks that are too small for a store's file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from pfl_bench.types import DataError, Examples, FederatedSplit

if TYPE_CHECKING:
    from torch import Tensor

Split = TypeVar("Split", bound="FederatedSplit")


def split_named(name: str, splits: Mapping[str, Split], task: str) -> Split:
    """Give one of a task's splits; DataError if there is none of that name."""
    if name not in splits:
        raise DataError(f"task {task} has no split {name!r}; choose from {', '.join(splits)}")
    return splits[name]


def user_range(split: FederatedSplit, user: int) -> tuple[int, int]:
    """First example of a user, and one past the last; IndexError if there is no such user."""
    if not 0 <= user < split.num_users:
        raise IndexError(
            f"user {user} of split {split.name!r}: there are users 0 to {split.num_users - 1}"
        )
    return int(split.offsets[user]), int(split.offsets[user + 1])


def check_examples(split: str, num_examples: int, indices: NDArray[np.int64]) -> None:
    """Refuse, by an IndexError, examples, shape (n,), of which one is not in the split."""
    outside = indices[(indices < 0) | (indices >= num_examples)]
    if len(outside):
        raise IndexError(
            f"example {outside[0]} of split {split!r}: there are examples 0 to {num_examples - 1}"
        )


class InMemorySplit:
    """One split in memory.

    Args:
        name: Name of the split.
        inputs: Shape (n, ...).
        targets: Shape (n, ...).
        offsets: Shape (U + 1,), int64: user u owns the examples ``offsets[u]:offsets[u + 1]``.
        client_ids: The users' U names.

    Attributes:
        name: Name of the split.
        offsets: As given.
        num_users: Number of users, U.
        num_examples: Number of examples of all users, n.
    """

    def __init__(
        self,
        name: str,
        inputs: Tensor,
        targets: Tensor,
        offsets: NDArray[np.int64],
        client_ids: Sequence[str],
    ) -> None:
        self.name = name
        self.offsets = offsets
        self.num_users = len(offsets) - 1
        self.num_examples = int(offsets[-1])
        self._inputs = inputs
        self._targets = targets
        self._client_ids = client_ids

    def client_ids(self) -> list[str]:
        """The users' names, in the order of ``offsets``."""
        return list(self._client_ids)

    def content(self) -> list[NDArray[np.generic]]:
        """Inputs (little-endian float32), targets and offsets (int64), for a digest.

        Returns:
            Of shapes (N, ...), (N, ...) and (U + 1,): N examples of U users.
        """
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
        return self.read_range(*user_range(self, user))

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
        check_examples(self.name, self.num_examples, indices)
        # Here, because preparing data needs no torch, which alone takes 0.3 GB.
        import torch

        chosen = torch.from_numpy(indices)
        return Examples(self._inputs[chosen], self._targets[chosen])

    def _check_range(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= self.num_examples:
            raise IndexError(
                f"examples {start}:{stop} of split {self.name!r}: "
                f"must lie within 0:{self.num_examples}"
            )
