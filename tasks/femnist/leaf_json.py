"""Read FEMNIST in LEAF's JSON form, streaming: one writer of one file in memory at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_bench.types import DataError, SplitBy
from tasks.common.leaf.json_files import LOOKED_FOR, UNSPLIT, LeafUser, find_files, read_splits
from tasks.common.leaf.partition import Gathering
from tasks.common.progress import Progress
from tasks.femnist.forms import (
    NUM_CHARACTERS,
    NUM_PIXELS,
    SIDE,
    Form,
    Reading,
    rounding_facts,
    to_bytes,
    to_labels,
)


def read(source: Path, gathering: Gathering, progress: Progress) -> Reading:
    """Read all files, in which writers are the same, disjoint, or not split."""
    files, error = find_files(source), 0.0
    for split, user, where in read_splits(source, files, progress):
        images, labels, rounding = _examples(user, where)
        gathering.append(split, user.user, inputs=images, targets=labels)
        error = max(error, rounding)
    paths = [path for of_split in files.values() for path in of_split]
    return Reading(
        source="FEMNIST in LEAF's JSON form"
        + (", split as published" if UNSPLIT not in files else ", all_data files"),
        num_classes=NUM_CHARACTERS,
        split_by=None if UNSPLIT in files else _split_by(source, gathering),
        extra={"files": len(paths), "first_file": paths[0].name, **rounding_facts(error)},
    )


def _split_by(source: Path, gathering: Gathering) -> SplitBy:
    """Division of the data by the files; stricter than ``Gathering``, as LEAF's own splits are."""
    users = {split: set(gathering.clients(split)) for split in gathering.splits}
    train, *others = users.values()
    if all(other == train for other in others):
        return "example"
    pooled = set().union(*users.values())
    if sum(map(len, users.values())) == len(pooled):
        return "user"
    in_several = sorted(u for u in pooled if sum(u in split for split in users.values()) > 1)
    in_some = sorted(u for u in pooled if any(u not in split for split in users.values()))
    raise DataError(
        f"{source}: the splits {', '.join(users)} share some users but not all: "
        f"{len(in_several)} users are in several splits, such as {in_several[0]!r}, and "
        f"{len(in_some)} are not in every one, such as {in_some[0]!r}; splits must divide users "
        "(no user twice) or each user's examples (the same users everywhere): split all_data anew"
    )


def _examples(user: LeafUser, where: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8], float]:
    """Images, labels and the largest rounding error in grey levels."""
    for index, row in enumerate(user.x):
        if not isinstance(row, list) or len(row) != NUM_PIXELS:
            length = f"{len(row)} values" if isinstance(row, list) else f"{type(row).__name__}"
            raise DataError(
                f"{where}: image {index} of 'x' has {length}; a FEMNIST image has {NUM_PIXELS} "
                f"({SIDE} x {SIDE}): is this another LEAF data set?"
            )
    images, error = to_bytes(_array(user.x), where)
    return images, to_labels(_array(user.y), NUM_CHARACTERS, where), error


def _array(values: list[Any]) -> NDArray[Any]:
    try:
        return np.asarray(values)
    except ValueError:  # nested unevenly; the checks refuse objects with the place
        return np.asarray([None])


FORM = Form(
    name="leaf-json",
    looked_for=LOOKED_FOR,
    is_there=lambda source: bool(find_files(source)),
    read=read,
    is_leafs=True,
)
