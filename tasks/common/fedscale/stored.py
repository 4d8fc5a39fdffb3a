"""What the classification tasks on FedScale's layout share once their store is open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor
from torch.nn import functional

from pfl_bench.data import Store, StoredSplit, StoredTask, StoreSplit, gather
from pfl_bench.data.stored_task import Convert
from pfl_bench.types import Examples

# Of the store's facts, what a summary repeats.
FACTS_SHOWN = ("generated", "table5", "differs_from_published", "bad_samples", "dropped_clients")


class TaskOptions(BaseModel):
    """Options that these tasks have in common.

    Attributes:
        data: Path of the store that ``pfl-bench data prepare`` wrote.
        partition: "natural" clients, or "iid": as many, to whom the training samples are dealt at
            random in equal shares, as FedScale does without a mapping; a guarantee for such a
            client protects no person, and the statement says so.
        partition_seed: Seed of that deal.
        max_examples_per_user: A client with more gives a random subset of this size, drawn anew
            at each read for training; None for no limit.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    data: str
    partition: Literal["natural", "iid"] = "natural"
    partition_seed: int = Field(default=0, ge=0)
    max_examples_per_user: int | None = Field(default=None, ge=1)


class DealtSplit(StoredSplit):
    """The training split, dealt at random in equal shares to as many artificial clients.

    Args:
        stored: The store's split.
        fields: As for ``StoredSplit``.
        convert: As for ``StoredSplit``.
        max_examples_per_user: As for ``StoredSplit``.
        seed: Seed of the deal.

    Attributes:
        deal: Shape (N,): which stored example each of this split's examples is.
    """

    def __init__(
        self,
        stored: StoreSplit,
        fields: Sequence[str],
        convert: Convert,
        max_examples_per_user: int | None,
        seed: int,
    ) -> None:
        super().__init__(stored, fields, convert, max_examples_per_user)
        self.deal = np.random.default_rng(seed).permutation(self.num_examples)
        shares = np.arange(self.num_users + 1, dtype=np.int64)
        self.offsets = shares * self.num_examples // self.num_users

    def client_ids(self) -> Sequence[str]:
        """Names of the artificial clients."""
        return [f"iid-{user}" for user in range(self.num_users)]

    def read_user(self, user: int, rng: np.random.Generator) -> Examples:
        """Read a client's examples, or a fresh random subset; see ``StoredSplit.read_user``.

        Raises:
            IndexError: There is no such client.
        """
        if not 0 <= user < self.num_users:
            raise IndexError(
                f"user {user} of split {self.name!r}: there are users 0 to {self.num_users - 1}"
            )
        chosen = np.arange(self.offsets[user], self.offsets[user + 1])
        most = self._max_examples
        if most is not None and len(chosen) > most:
            chosen = chosen[np.sort(rng.choice(len(chosen), most, replace=False))]
        return self.read_examples(chosen, rng)

    def read_range(self, start: int, stop: int) -> Examples:
        """Read the examples ``start:stop`` of all clients.

        Raises:
            ValueError: The range is not within the split.
        """
        if not 0 <= start <= stop <= self.num_examples:
            raise ValueError(
                f"examples {start}:{stop} of split {self.name!r} are not within "
                f"0:{self.num_examples}"
            )
        chosen = np.arange(start, stop)
        return self._convert({name: self.gather(name, chosen) for name in self._fields})

    def gather(self, field: str, indices: NDArray[np.int64]) -> Any:
        """Read one field of chosen examples; see ``StoredSplit.gather``."""
        outside = indices[(indices < 0) | (indices >= self.num_examples)]
        if len(outside):  # before the deal, which would take a negative index for another example
            raise IndexError(
                f"example {outside[0]} of split {self.name!r}: "
                f"there are examples 0 to {self.num_examples - 1}"
            )
        return super().gather(field, self.deal[indices])


class LabelledTask(StoredTask):
    """One label a sample, cross entropy.

    Args:
        store: An open store.
        fields: As for ``StoredTask``.
        convert: As for ``StoredTask``.
        options: Which clients, and how much of them.
        facts: As for ``StoredTask``.
    """

    metrics: tuple[str, ...] = ("classification",)

    def __init__(
        self,
        store: Store,
        fields: Sequence[str],
        convert: Convert,
        options: TaskOptions,
        **facts: Any,
    ) -> None:
        known = store.facts.extra
        super().__init__(
            store,
            fields,
            convert,
            options.max_examples_per_user,
            class_names=tuple(store.names("targets")),
            extra={key: known[key] for key in FACTS_SHOWN if key in known},
            **facts,
        )
        self._dealt: DealtSplit | None = None
        if options.partition == "iid":
            stored = store.split("train")
            most, seed = options.max_examples_per_user, options.partition_seed
            self._dealt = DealtSplit(stored, fields, convert, most, seed)
            variant = f"{self.facts.variant}-iid"
            self.facts = replace(self.facts, variant=variant, artificial_users=True)

    def split(self, name: str) -> StoredSplit:
        """Open one split.

        Raises:
            DataError: The store has no split of that name.
        """
        if name == "train" and self._dealt is not None:
            return self._dealt
        return super().split(name)

    def read_column(self, split: str, name: str, start: int, stop: int) -> NDArray[np.int64]:
        """Read a column of the examples ``start:stop`` of a split; see ``StoredTask``."""
        if split != "train" or self._dealt is None:
            return super().read_column(split, name, start, stop)
        super().read_column(split, name, 0, 0)  # is there such a column?
        values = gather(self.store.split(split), name, self._dealt.deal[start:stop])
        return np.asarray(values, dtype=np.int64)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy of logits of shape (n, K) and targets of shape (n,)."""
        return functional.cross_entropy(outputs, targets)

    def example_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Cross entropy of each example, shape (n,)."""
        return functional.cross_entropy(outputs, targets, reduction="none")
