"""Training examples that are assigned at random to artificial users."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pfl_bench.data import StoredSplit, StoreSplit
from pfl_bench.data.in_memory import check_examples, user_range
from pfl_bench.data.stored_task import Convert
from pfl_bench.types import Examples


class PartitionedSplit(StoredSplit):
    """A split whose examples may be assigned at random to artificial users; see ``StoredSplit``.

    Args:
        seed: Seed of the permutation; None leaves the users as they are.
        offsets: Shape (U + 1,), of the artificial users; None for those of the store.

    Attributes:
        order: Shape (N,): which stored example each of this split's examples is.
    """

    def __init__(
        self,
        stored: StoreSplit,
        fields: Sequence[str],
        convert: Convert,
        max_examples_per_user: int | None,
        seed: int | None,
        offsets: NDArray[np.int64] | None = None,
    ) -> None:
        super().__init__(stored, fields, convert, max_examples_per_user)
        self._is_natural = seed is None
        self.order = np.arange(self.num_examples)
        if seed is not None:
            self.order = np.random.default_rng(seed).permutation(self.num_examples)
        if offsets is not None:
            self.offsets = offsets

    def client_ids(self) -> Sequence[str]:
        """The users' identifiers, in the order of ``offsets``; numbers if they are artificial."""
        if self._is_natural:
            return super().client_ids()
        return [f"iid-{user}" for user in range(self.num_users)]

    def read_user(self, user: int, rng: np.random.Generator) -> Examples:
        """Read a user's examples, or a fresh random subset; see ``StoredSplit.read_user``."""
        chosen = np.arange(*user_range(self, user))
        most = self._max_examples
        if most is not None and len(chosen) > most:
            chosen = chosen[np.sort(rng.choice(len(chosen), most, replace=False))]
        return self._read(chosen)

    def read_range(self, start: int, stop: int) -> Examples:
        """Read the examples ``start:stop`` of all users.

        Raises:
            ValueError: The range is not within the split.
        """
        if not 0 <= start <= stop <= self.num_examples:
            raise ValueError(
                f"examples {start}:{stop} of split {self.name!r} are not within "
                f"0:{self.num_examples}"
            )
        return self._read(np.arange(start, stop))

    def gather(self, field: str, indices: NDArray[np.int64]) -> object:
        """Read one field of chosen examples; see ``StoredSplit.gather``."""
        # A negative index would take another example's place.
        check_examples(self.name, self.num_examples, indices)
        return super().gather(field, self.order[indices])
