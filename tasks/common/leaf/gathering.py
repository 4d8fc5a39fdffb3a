"""LEAF's data tools: gather examples by user, drop, sample and split users, and write a store.

What is gathered waits on disk, in bounded memory; ``plan`` decides who is kept and how many of
whose examples go where, ``parts`` gives them part by part.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_bench.data import FieldSpec, StoreWriter
from pfl_bench.data.layout import offsets_name
from pfl_bench.data.spool import Spool
from pfl_bench.data.writer import SpooledExamples
from pfl_bench.types import DataError, Progress, SplitBy
from tasks.common.leaf.options import OF_SPLIT, PartitionOptions
from tasks.common.leaf.parts import Block, Part, Partition
from tasks.common.leaf.plan import UNSPLIT, check_options, make_plan, totals_by_user

__all__ = ["UNSPLIT", "Gathering", "Part", "Partition", "PartitionOptions", "write_partition"]

BATCH_BYTES = 8 << 20


class Gathering(SpooledExamples):
    """Examples by split and user, on disk beside the store to come; a context manager.

    Sources give a user's examples in pieces, and some facts (how the publisher split the data,
    how many examples a user has) are known only at the end, so examples wait here. Memory does
    not grow with the examples, only with users and appends.
    """

    _KIND = "gathering"

    def __init__(self, path: Path, fields: Mapping[str, FieldSpec]) -> None:
        super().__init__(path, fields)
        self._names: dict[str, list[str]] = {}  # of the splits, once partitioned

    def append(self, split: str, client_id: str, **arrays: Any) -> None:
        """Add examples of a user; the same user may come again.

        Args:
            split: Name of the split; "all" for what its publisher did not split.
            client_id: The user.
            arrays: One a field, as ``StoreWriter.append`` takes them.

        Raises:
            ValueError: The gathering is not open, or has been partitioned already.
            DataError: As ``StoreWriter.append`` says, targets aside: they are checked when the
                store is written.
        """
        if self._names:
            raise ValueError(f"{self.path}: has been partitioned; gather everything before")
        self._append(split, client_id, arrays, None)

    def clients(self, split: str) -> list[str]:
        """The users of a split, in the order in which they came."""
        if split in self._names:
            return self._names[split]
        return list(self._spools[split].clients) if split in self._spools else []

    def examples_per_user(self) -> dict[str, int]:
        """Examples of each user over all splits, before any is dropped; once partitioned."""
        users, totals = totals_by_user(self._names, self._sizes())
        return dict(zip(users, totals.tolist(), strict=True))

    def _sizes(self) -> dict[str, NDArray[np.int64]]:
        """Examples of each user of each split."""
        return {name: spool.examples_per_client() for name, spool in self._spools.items()}

    def partition(
        self,
        options: PartitionOptions,
        order_by: str | None = None,
        published_as: SplitBy | None = None,
    ) -> Partition:
        """Drop, sample and split what was gathered; nothing can be appended from then on.

        Users with fewer examples than ``min_examples`` go first; the users that are kept are
        drawn from the rest, and artificial users are made of what these have, split by split, so
        that natural and artificial users are tested on the same examples.

        Args:
            options: What to drop, and how to split.
            order_by: A field such as a time: inside each user the earliest examples go to train,
                then val, then test, and stay in that order (equal times: as they came). None
                ranks by a keyed digest of the content and the seed. Published splits stay as they
                came in either case.
            published_as: How the publisher split the data, if the caller has found out; None to
                see it from the users.

        Raises:
            DataError: Nothing is left; fewer users than are asked for; published splits that
                share some users but not all.
            ConfigError: An option that these data cannot honour, such as options of the split for
                data that are split as published.
        """
        self._check_order_field(order_by)
        if not self._names:
            try:
                for spool in self._spools.values():
                    spool.freeze()
            except OSError as error:
                raise self._cannot_write(error) from error
            self._names = {name: spool.forget_clients() for name, spool in self._spools.items()}
        plan = make_plan(self._names, self._sizes(), options, order_by, published_as)
        return Partition(self, plan)

    def published_as(self) -> SplitBy | None:
        """Whether splits of whole clients, as FedScale's, are that, or some client is in several.

        None of data that are not split.
        """
        if UNSPLIT in self._spools:
            return None
        return split_by_of(self.clients(split) for split in self._spools)

    def partition_divided(
        self, options: PartitionOptions, order_by: str, min_examples: int
    ) -> Partition:
        """Partition what has been divided by example before it was gathered: drop and sample.

        Args:
            options: What to drop beside users of few examples; its split has been made.
            order_by: What each user's examples were divided in the order of.
            min_examples: Users with fewer examples are dropped.

        Raises:
            DataError, ConfigError: As ``partition`` says; a seed of which nothing depends.
        """
        check_options(options, "example", False, order_by)
        given = options.model_fields_set.intersection(PartitionOptions.model_fields)
        rest = options.model_dump(include=given.difference(OF_SPLIT, ["min_examples"]))
        kept = PartitionOptions(**rest, min_examples=min_examples)
        partition = self.partition(kept, published_as="example")
        partition.facts["split"] = {
            "by": "example",
            "as": "prepared here",
            "order_by": order_by,
            "train_fraction": options.train_fraction,
            "val_fraction": options.val_fraction,
        }
        return partition

    def read(self, split: str, users: NDArray[np.int64]) -> Iterator[Block]:
        """Read users, shape (u,), in blocks of some MB, or of one user; needs a partition.

        ``users`` are indices into ``clients``; ascending ones cost one pass.
        """
        spool = self._spools[split]
        segments_of = spool.segments_by_number()
        counts, sizes = spool.examples_per_client()[users], spool.bytes_per_client()[users]
        for batch in _batches(sizes):
            segments = np.concatenate([segments_of(user) for user in users[batch].tolist()])
            yield Block(batch.start, counts[batch], self._fields_of(spool, segments))

    def _fields_of(self, spool: Spool, segments: NDArray[np.int64]) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for name, spec in self.fields.items():
            rows = self._column(spool, name, segments).view(spec.numpy_dtype)
            if spec.ragged:
                sizes = self._column(spool, offsets_name(name), segments).view("<i8")
                fields[name] = np.split(rows, np.cumsum(sizes)[:-1])
            else:
                fields[name] = rows.reshape(-1, *spec.shape)
        return fields

    def _column(self, spool: Spool, name: str, segments: NDArray[np.int64]) -> NDArray[np.uint8]:
        try:
            blocks = [block.copy() for block in spool.gather(name, segments)]
        except OSError as error:
            raise DataError(
                f"{self.path}: temporary data beside it cannot be read ({error}); do not touch the "
                "hidden files of a running command, and start it again"
            ) from error
        return np.concatenate(blocks) if blocks else np.empty(0, np.uint8)

    def _check_order_field(self, order_by: str | None) -> None:
        if order_by is None:
            return
        spec = self.fields.get(order_by)
        if spec is None or spec.ragged or spec.shape:
            raise ValueError(
                f"order_by {order_by!r} is no field with one number an example; there are "
                f"{list(self.fields)}"
            )

    def _cannot_write(self, error: OSError) -> DataError:
        return DataError(
            f"cannot write temporary data into {self.path.absolute().parent} ({error.strerror}): "
            "preparing needs about three times the store's size; free space or choose another "
            "disk by --out"
        )


def _batches(sizes: NDArray[np.int64]) -> Iterator[slice]:
    """Divide users of so many bytes each into runs of about ``BATCH_BYTES``, or of one user."""
    number = (np.cumsum(sizes) - sizes) // BATCH_BYTES
    starts = np.flatnonzero(np.diff(number, prepend=-1))
    for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(sizes)], strict=True):
        yield slice(start, stop)


def write_partition(
    out: Path,
    partition: Partition,
    progress: Progress,
    convert: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    *,
    variant: str,
    source: str,
    extra: Mapping[str, Any],
    **facts: Any,
) -> dict[str, Any]:
    """Write a store of what was partitioned, whole or not at all; gives facts for printing.

    ``convert`` turns a part's arrays into the store's fields, None if they are the same;
    ``progress`` is told the users of a split written, and how many there are. The rest is as for
    ``StoreWriter``; the partition's facts go into the store before those of ``extra``.
    """
    extra = {**partition.facts, **extra}
    facts |= {"variant": variant, "source": source, "split_by": partition.split_by}
    with StoreWriter(out, extra=extra, **facts) as writer:
        for done, part in enumerate(partition, start=1):
            arrays = convert(part.arrays) if convert else part.arrays
            writer.append(part.split, part.client_id, **arrays)
            progress("writing the store (users by split)", done, partition.num_parts)
        splits = writer.counts
    return {"variant": variant, "source": source, "splits": splits, **extra}


def split_by_of(clients: Iterable[Collection[str]]) -> SplitBy:
    """Whether splits, given the clients of each, divide clients, or some client is in several."""
    seen: set[str] = set()
    for own in clients:
        if not seen.isdisjoint(own):
            return "example"
        seen.update(own)
    return "user"
