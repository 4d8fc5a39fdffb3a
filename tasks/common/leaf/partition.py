"""LEAF's data tools: gather examples by user, drop, sample and split users, and write a store.

What is gathered waits on disk (``gathering``), ``plan`` decides who is kept and how many of whose
examples go where, ``parts`` gives them part by part.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tasks.common.description import SplitCounts, StoreDescription
from tasks.common.leaf.gathering import Gathering
from tasks.common.leaf.options import PartitionOptions
from tasks.common.leaf.parts import Part, Partition
from tasks.common.progress import Progress

__all__ = ["Gathering", "Part", "Partition", "PartitionOptions", "write_partition"]


def write_partition(
    out: Path,
    partition: Partition,
    description: StoreDescription,
    progress: Progress,
    convert: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> dict[str, dict[str, int]]:
    """Write a store of what was partitioned, whole or not at all; gives counts by split.

    The partition's facts go into the store before the description's. ``convert`` turns a part's
    arrays into the store's fields, None if they are the same; ``progress`` is told the users of a
    split written, and how many there are.
    """
    written = SplitCounts()
    with description.writer(out, partition.split_by, partition.facts) as writer:
        for done, part in enumerate(partition, start=1):
            arrays = convert(part.arrays) if convert else part.arrays
            writer.append(part.split, part.client_id, **arrays)
            written.add(part.split, len(next(iter(arrays.values()))))
            progress("writing the store (users by split)", done, partition.num_parts)
    return written.counts
