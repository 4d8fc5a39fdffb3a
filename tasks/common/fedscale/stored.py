"""Base of the classification tasks on FedScale's layout, once their store is open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from pfl_bench.data import Store, StoredSplit, StoredTask, gather
from pfl_bench.data.stored_task import Convert
from pfl_bench.types import DataFacts
from tasks.common.classification import CrossEntropy, known_facts
from tasks.common.options import StoredOptions
from tasks.common.partition.split import PartitionedSplit

# Of the store's facts, what a summary repeats.
FACTS_SHOWN = ("generated", "table5", "differs_from_published", "bad_samples", "dropped_clients")


class TaskOptions(StoredOptions):
    """Options that these tasks have in common, beside those of all tasks on a store.

    Attributes:
        partition: "natural" clients, or "iid": as many, to whom the training samples are assigned
            at random in equal shares, as FedScale does without a mapping; a guarantee for such a
            client protects no person, and the statement says so.
        partition_seed: Seed of that partition.
    """

    partition: Literal["natural", "iid"] = "natural"
    partition_seed: int = Field(default=0, ge=0)


class PartitionedTask(StoredTask):
    """A task whose training examples may be assigned to artificial clients; see ``StoredTask``."""

    def __init__(
        self,
        store: Store,
        fields: Sequence[str],
        convert: Convert,
        options: TaskOptions,
        **facts: Any,
    ) -> None:
        most = options.max_examples_per_user
        super().__init__(store, fields, convert, most, **facts)
        self._partitioned: PartitionedSplit | None = None
        if options.partition == "iid":
            stored = store.split("train")
            # Shares that differ by one at most.
            offsets = np.arange(stored.num_users + 1) * stored.num_examples // stored.num_users
            self._partitioned = PartitionedSplit(
                stored, fields, convert, most, options.partition_seed, offsets
            )
            variant = f"{self.facts.variant}-iid"
            self.facts: DataFacts = replace(self.facts, variant=variant, artificial_users=True)

    def split(self, name: str) -> StoredSplit:
        """Open one split."""
        if name == "train" and self._partitioned is not None:
            return self._partitioned
        return super().split(name)

    def read_column(self, split: str, name: str, start: int, stop: int) -> NDArray[np.int64]:
        """Read a column of the examples ``start:stop`` of a split; see ``StoredTask``."""
        if split != "train" or self._partitioned is None:
            return super().read_column(split, name, start, stop)
        super().read_column(split, name, 0, 0)  # is there such a column?
        values = gather(self.store.split(split), name, self._partitioned.order[start:stop])
        return np.asarray(values, dtype=np.int64)


class LabelledTask(CrossEntropy, PartitionedTask):
    """One label a sample, cross entropy; arguments as for ``PartitionedTask``."""

    def __init__(self, store: Store, *arguments: Any, **facts: Any) -> None:
        names = tuple(store.names("targets"))
        extra = known_facts(store, FACTS_SHOWN)
        super().__init__(store, *arguments, class_names=names, extra=extra, **facts)
