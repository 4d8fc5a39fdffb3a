"""Small examples that LEAF's data tools deal, and what became of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from pfl_bench.data import FieldSpec
from tasks.common.leaf.gathering import Gathering, Partition, PartitionOptions

# Each example is a number that is in all of its fields.
FIELDS = {
    "inputs": FieldSpec("uint16", (2,)),
    "words": FieldSpec("uint32", ragged=True),
    "time": FieldSpec("int64"),
}
# By user the numbers of its examples.
USERS = {"a": [10], "b": [20, 21], "c": list(range(30, 40)), "d": list(range(40, 65))}


def arrays_of(numbers: Iterable[int]) -> dict[str, Any]:
    values = np.array(list(numbers), dtype=np.int64)
    return {
        "inputs": np.stack([values, values + 1], axis=1),
        "words": [[value] * (value % 3) for value in values.tolist()],
        "time": -values,
    }


def numbers_of(arrays: Mapping[str, Any]) -> list[int]:
    """The numbers of a part's examples; checks that its fields belong together."""
    numbers: list[int] = arrays["inputs"][:, 0].astype(int).tolist()
    assert arrays["inputs"][:, 1].tolist() == [number + 1 for number in numbers]
    assert arrays["time"].tolist() == [-number for number in numbers]
    words = [row.tolist() for row in arrays["words"]]
    assert words == [[number] * (number % 3) for number in numbers]
    assert list(arrays) == list(FIELDS)
    return numbers


def append(gathering: Gathering, split: str, users: Mapping[str, Iterable[int]]) -> None:
    for user, numbers in users.items():
        gathering.append(split, user, **arrays_of(numbers))


@contextmanager
def partitioned(
    folder: Path,
    users: Mapping[str, Iterable[int]] = USERS,
    order_by: str | None = None,
    **options: Any,
) -> Iterator[Partition]:
    """Deal examples that their publisher did not split."""
    with Gathering(folder / "x.h5", FIELDS) as gathering:
        append(gathering, "all", users)
        yield gathering.partition(PartitionOptions(**options), order_by)


def contents(partition: Partition) -> dict[str, dict[str, list[int]]]:
    """Numbers by split and user; no user comes twice in a split, and counts are as announced."""
    result: dict[str, dict[str, list[int]]] = {}
    for part in partition:
        users = result.setdefault(part.split, {})
        assert part.client_id not in users
        users[part.client_id] = numbers_of(part.arrays)
        assert users[part.client_id]
    assert partition.counts == {
        name: {"users": len(users), "examples": sum(map(len, users.values()))}
        for name, users in result.items()
    }
    assert partition.num_parts == sum(map(len, result.values()))
    return result


def pooled(parts: Mapping[str, Mapping[str, list[int]]]) -> list[int]:
    """All numbers of all splits, sorted."""
    return sorted(n for users in parts.values() for own in users.values() for n in own)
