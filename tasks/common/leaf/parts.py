"""Handing out what was gathered, part by part: a user of a split each."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pfl_bench.data import FieldSpec
from pfl_bench.data.stored_task import rows_at
from pfl_bench.types import SplitBy
from tasks.common.leaf.plan import SPLITS, UNSPLIT, Plan

GROUP_BYTES = 256 << 20
_OBJECT_BYTES = 120  # about what NumPy needs for an array, however small


@dataclass(frozen=True, slots=True)
class Part:
    """A user's examples of one split.

    Attributes:
        arrays: Of each field an array of shape (n, *shape), or a list of n arrays if ragged.
    """

    split: str
    client_id: str
    arrays: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Block:
    """Users that were read together.

    Attributes:
        first: The place of the first of them among the users who are being read.
        counts: Shape (u,), the examples of each.
        arrays: As in a ``Part``, of all of them, one after another.
    """

    first: int
    counts: NDArray[np.int64]
    arrays: dict[str, Any]


class Readable(Protocol):
    """Gathered examples, as ``Gathering`` has them, whose module needs this one."""

    fields: dict[str, FieldSpec]

    def clients(self, split: str) -> list[str]:
        """The users of a split."""

    def read(self, split: str, users: NDArray[np.int64]) -> Iterator[Block]:
        """Read users in blocks; ``users`` has shape (u,)."""


class Partition:
    """Partitioned examples; iterable again and again, one part in memory at a time.

    Artificial users come in groups of at most about ``GROUP_BYTES``, each of which costs a pass
    over the data; beside it there are four bytes an example in memory.

    Attributes:
        facts: How they were split, what was dropped: for the store's ``extra``.
        artificial_users: Whether examples were assigned to users who never had them.
        num_parts: Number of parts: users, counted in each split.
    """

    def __init__(self, gathered: Readable, plan: Plan) -> None:
        self._gathered = gathered
        self._plan = plan
        self.split_by: SplitBy = plan.split_by
        self.facts: dict[str, Any] = dict(plan.facts)
        self.artificial_users = bool(plan.artificial_users)
        self.counts: dict[str, dict[str, int]] = {}
        for name, row in plan.pieces.items():
            start, stop = plan.artificial_users.get(name, (0, int(np.count_nonzero(row))))
            self.counts[name] = {"users": stop - start, "examples": int(row.sum())}
        self.num_parts = sum(count["users"] for count in self.counts.values())

    def __iter__(self) -> Iterator[Part]:
        if self.artificial_users:
            for split in self._plan.pieces:
                yield from self._artificial(split)
            return
        for name in self._plan.kept:
            for _, part in self._natural(name):
                yield part

    def _natural(self, name: str, only: str | None = None) -> Iterator[tuple[int, Part]]:
        """Parts of the users of a gathered split, each with its user's place among those kept.

        Only those of one split to come if ``only`` is given.
        """
        users = self._plan.kept[name]
        clients = self._gathered.clients(name)
        for block in self._gathered.read(name, users):
            stop = 0
            for place, count in enumerate(block.counts.tolist(), start=block.first):
                start, stop = stop, stop + count
                client_id = clients[users[place]]
                arrays = {field: rows[start:stop] for field, rows in block.arrays.items()}
                if name != UNSPLIT:
                    yield place, Part(name, client_id, arrays)
                    continue
                for part in self._divide(place, client_id, arrays, only):
                    yield place, part

    def _divide(
        self, place: int, client_id: str, arrays: dict[str, Any], only: str | None
    ) -> Iterator[Part]:
        plan = self._plan
        pieces = {name: int(row[place]) for name, row in plan.pieces.items()}
        if only and not pieces[only]:
            return
        if plan.order_by:
            order = np.argsort(arrays[plan.order_by], kind="stable")
        else:
            order = rank_examples(arrays, self._gathered.fields, client_id, plan.options.split_seed)
        start = 0
        for name in SPLITS:
            count = pieces.get(name, 0)
            if count and only in (None, name):
                chosen = order[start : start + count]
                yield Part(name, client_id, {f: rows_at(v, chosen) for f, v in arrays.items()})
            start += count

    def _artificial(self, split: str) -> Iterator[Part]:
        """Parts of artificial users: the split's examples shuffled, cut into equal shares."""
        first, last = self._plan.artificial_users[split]
        positions, starts = self._shuffled_positions(split)
        ends = np.arange(last - first + 1) * len(positions) // (last - first)
        width = len(str(max(stop for _, stop in self._plan.artificial_users.values()) - 1))
        row_bytes = sum(map(_row_bytes, self._gathered.fields.values()))
        step = max(1, max(1, GROUP_BYTES // row_bytes) * (last - first) // len(positions))
        for low in range(0, last - first, step):
            high = min(low + step, last - first)
            group = self._at_positions(split, positions, starts, int(ends[low]), int(ends[high]))
            for user in range(low, high):
                mine = slice(int(ends[user] - ends[low]), int(ends[user + 1] - ends[low]))
                # One string a user, however many splits it is in.
                client_id = sys.intern(f"iid-{first + user:0{width}d}")
                yield Part(split, client_id, {f: rows[mine] for f, rows in group.items()})

    def _shuffled_positions(self, split: str) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Shuffle a split's examples, users in the order of their names.

        Gives the position of each example, and where each kept user's examples begin.
        """
        plan = self._plan
        name = split if plan.published else UNSPLIT
        clients, users = self._gathered.clients(name), plan.kept[name].tolist()
        order = np.array(sorted(range(len(users)), key=lambda place: clients[users[place]]))
        counts = plan.pieces[split][order]
        starts = np.empty(len(users), dtype=np.int64)
        starts[order] = np.cumsum(counts) - counts
        total = int(counts.sum())
        positions = np.arange(total, dtype=np.uint32 if total < 1 << 32 else np.uint64)
        key = hashlib.sha256(f"{plan.options.split_seed}\0iid\0{split}".encode()).digest()
        np.random.Generator(np.random.PCG64(int.from_bytes(key, "little"))).shuffle(positions)
        return positions, starts

    def _split_blocks(
        self, split: str, starts: NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[np.int64], dict[str, Any]]]:
        """A split's examples, some at a time: their numbers, by name of user, and their fields."""
        if self._plan.published:
            for block in self._gathered.read(split, self._plan.kept[split]):
                ends = np.cumsum(block.counts)
                begin = starts[block.first : block.first + len(ends)]
                numbers = np.repeat(begin - (ends - block.counts), block.counts)
                yield numbers + np.arange(len(numbers)), block.arrays
            return
        for place, part in self._natural(UNSPLIT, split):
            count = len(next(iter(part.arrays.values())))
            yield np.arange(starts[place], starts[place] + count), part.arrays

    def _at_positions(
        self, split: str, positions: NDArray[Any], starts: NDArray[np.int64], low: int, high: int
    ) -> dict[str, Any]:
        """The fields of the examples whose positions are ``low`` to ``high``, in that order."""
        group: dict[str, Any] = {
            name: [None] * (high - low)
            if spec.ragged
            else np.empty((high - low, *spec.shape), spec.numpy_dtype)
            for name, spec in self._gathered.fields.items()
        }
        for numbers, arrays in self._split_blocks(split, starts):
            mine = positions[numbers].astype(np.int64)
            inside = np.flatnonzero((mine >= low) & (mine < high))
            places = mine[inside] - low
            for name, values in arrays.items():
                rows = group[name]
                if isinstance(values, list):
                    for place, example in zip(places.tolist(), inside.tolist(), strict=True):
                        rows[place] = values[example].copy()  # not a view of a whole block
                else:
                    rows[places] = values[inside]
        return group


def rank_examples(
    arrays: Mapping[str, Any], fields: Mapping[str, FieldSpec], client_id: str, seed: int
) -> NDArray[np.int64]:
    """Order a user's n examples by keyed digests of their content: shape (n,), a permutation.

    ``arrays`` are as in a ``Part`` and enter the digest in the order of ``fields``; equal examples
    stay neighbours.
    """
    key = hashlib.sha256(f"{seed}\0{client_id}".encode()).digest()
    digests: list[Any] = []
    for name, spec in fields.items():
        values = arrays[name]
        digests = digests or [hashlib.blake2b(digest_size=16, key=key) for _ in range(len(values))]
        for digest, value in zip(digests, values, strict=True):
            if spec.ragged:
                digest.update(len(value).to_bytes(8, "little"))
            digest.update(value.tobytes())
    ranks = [digest.digest() for digest in digests]
    return np.array(sorted(range(len(ranks)), key=ranks.__getitem__), dtype=np.int64)


def _row_bytes(spec: FieldSpec) -> int:
    # The length of a ragged value is not known here: 32 items is what short texts have.
    return spec.row_bytes * 32 + _OBJECT_BYTES if spec.ragged else spec.row_bytes
