"""The digits task: 1,797 real handwritten digits of 8 x 8 pixels, dealt to artificial users."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor
from torch.nn import functional

from pfl_bench.types import DataError, DataFacts, Examples
from tasks.digits.partition import deal

NUM_EXAMPLES = 1797
NUM_CLASSES = 10
NUM_HELD_OUT = NUM_EXAMPLES // 6  # a sixth for "val" and a sixth for "test"
MAX_PIXEL = 16.0
USERS_PER_HELD_OUT_USER = 6


class Options(BaseModel):
    """Options of the digits task.

    Attributes:
        num_users: Training users, 1 to 1,199; "val" and "test" get a sixth as many each.
        label_concentration: Dirichlet parameter of the users' label skew, 0.001 to 1,000,000.
        partition_seed: Seed of the split and of the dealing; separate from the run's seed, so
            that runs with different seeds see the same users.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    num_users: int = Field(default=300, ge=1, le=NUM_EXAMPLES - 2 * NUM_HELD_OUT)
    label_concentration: float = Field(default=1.0, ge=1e-3, le=1e6)
    partition_seed: int = Field(default=0, ge=0)


class DigitsSplit:
    """One split in memory.

    Args:
        name: Name of the split.
        inputs: Shape (n, 64), float32, 0 (ground) to 1 (ink).
        targets: Shape (n,), int64, 0 to 9.
        offsets: Shape (U + 1,): user u owns the examples ``offsets[u]:offsets[u + 1]``.
    """

    def __init__(
        self, name: str, inputs: Tensor, targets: Tensor, offsets: NDArray[np.int64]
    ) -> None:
        self.name = name
        self.offsets = offsets
        self._inputs = inputs
        self._targets = targets

    @property
    def num_users(self) -> int:
        """Number of users."""
        return len(self.offsets) - 1

    @property
    def num_examples(self) -> int:
        """Number of examples of all users."""
        return int(self.offsets[-1])

    def client_ids(self) -> list[str]:
        """Names of the users, such as "train-0007"."""
        return [f"{self.name}-{user:04d}" for user in range(self.num_users)]

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
        if not 0 <= start <= stop <= self.num_examples:
            raise IndexError(
                f"examples {start}:{stop} of split {self.name!r}: "
                f"must lie within 0:{self.num_examples}"
            )
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


class DigitsTask:
    """Classify handwritten digits; cross entropy loss.

    Args:
        splits: The splits by name.
        facts: What is known of the data.
    """

    metrics: tuple[str, ...] = ("classification",)

    def __init__(self, splits: dict[str, DigitsSplit], facts: DataFacts) -> None:
        self.facts = facts
        self._splits = splits

    @property
    def split_names(self) -> tuple[str, ...]:
        """Names of the splits."""
        return tuple(self._splits)

    def split(self, name: str) -> DigitsSplit:
        """Open one split.

        Raises:
            DataError: There is no split of that name.
        """
        if name not in self._splits:
            raise DataError(f"task digits has no split {name!r}; choose from {self.split_names}")
        return self._splits[name]

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy of logits of shape (n, 10) and targets of shape (n,)."""
        return functional.cross_entropy(outputs, targets)


def build(options: Options) -> DigitsTask:
    """Load the digits from scikit-learn's own installation and deal them to users.

    Args:
        options: Options of the task.

    Returns:
        The task, with splits "train", "val" and "test" of disjoint examples and disjoint users.
    """
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    inputs = (pixels / MAX_PIXEL).astype(np.float32)
    targets = labels.astype(np.int64)
    # The order of these draws defines the partition of a seed: new ones go to the end.
    rng = np.random.default_rng(options.partition_seed)
    shuffled = rng.permutation(NUM_EXAMPLES)
    parts = {
        "train": shuffled[2 * NUM_HELD_OUT :],
        "val": shuffled[:NUM_HELD_OUT],
        "test": shuffled[NUM_HELD_OUT : 2 * NUM_HELD_OUT],
    }
    num_held_out_users = max(1, options.num_users // USERS_PER_HELD_OUT_USER)
    splits: dict[str, DigitsSplit] = {}
    digest = hashlib.sha256()
    for name, part in parts.items():
        num_users = options.num_users if name == "train" else num_held_out_users
        order, offsets = deal(targets[part], num_users, options.label_concentration, rng)
        part = part[order]
        for array, dtype in ((inputs[part], "<f4"), (targets[part], "<i8"), (offsets, "<i8")):
            digest.update(np.ascontiguousarray(array, dtype=dtype).tobytes())
        splits[name] = DigitsSplit(
            name, torch.from_numpy(inputs[part]), torch.from_numpy(targets[part]), offsets
        )
    facts = DataFacts(
        source=(
            "scikit-learn load_digits (1,797 of the UCI optical recognition digits); the writers "
            "are not known: users are dealt artificially"
        ),
        variant="sklearn-digits-dirichlet",
        checksum=f"sha256:{digest.hexdigest()}",
        num_classes=NUM_CLASSES,
        input_shape=(inputs.shape[1],),
        split_by="user",
        extra=options.model_dump(),
        artificial_users=True,
    )
    return DigitsTask(splits, facts)
