"""LEAF's data tools: gather examples by user, drop, sample and split users, and write a store.

What is gathered waits on disk (``gathering``), ``plan`` decides who is kept and how many of whose
examples go where, ``parts`` hands them out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pfl_bench.data import FieldSpec, StoreWriter
from tasks.common.leaf.gathering import Gathering
from tasks.common.leaf.options import DealOptions
from tasks.common.leaf.parts import Dealing, Part

__all__ = ["DealOptions", "Dealing", "Gathering", "Part", "Progress", "write_dealt"]

Progress = Callable[[str, int, int | None], None]


def write_dealt(
    out: Path,
    dealing: Dealing,
    *,
    task: str,
    variant: str,
    source: str,
    num_classes: int,
    input_shape: tuple[int, ...],
    fields: Mapping[str, FieldSpec],
    extra: Mapping[str, Any],
    names: Mapping[str, Sequence[str]],
    progress: Progress,
    convert: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> dict[str, dict[str, int]]:
    """Write a store of what was dealt, whole or not at all.

    Args:
        out: The store.
        dealing: What goes into it; its facts go into the store's before ``extra``.
        task: Name of the task.
        variant: Machine name of the variant of the data.
        source: One line for a human.
        num_classes: Classes of the target.
        input_shape: Shape of one example's input.
        fields: What each example has in the store.
        extra: Further facts.
        names: Lists of names, as ``StoreWriter.set_names`` takes them.
        progress: Told the users (of a split) written, and how many there are.
        convert: Turns a part's arrays into the store's fields; None if they are the same.

    Returns:
        Numbers of "users" and "examples" by split.

    Raises:
        DataError: The store cannot be written, or refuses an example.
    """
    counts: dict[str, dict[str, int]] = {}
    with StoreWriter(
        out,
        task=task,
        variant=variant,
        source=source,
        split_by=dealing.split_by,
        num_classes=num_classes,
        input_shape=input_shape,
        fields=fields,
        extra={**dealing.facts, **extra},
    ) as writer:
        for name, values in names.items():
            writer.set_names(name, values)
        for done, part in enumerate(dealing, start=1):
            arrays = convert(part.arrays) if convert else part.arrays
            writer.append(part.split, part.client_id, **arrays)
            count = counts.setdefault(part.split, {"users": 0, "examples": 0})
            count["users"] += 1
            count["examples"] += len(next(iter(arrays.values())))
            progress("writing the store (users by split)", done, dealing.num_parts)
    return counts
