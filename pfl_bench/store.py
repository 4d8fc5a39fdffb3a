"""The federated store: one HDF5 layout for all tasks, read a client at a time.

A client is a slice of contiguous arrays; opening a split reads one array, ``offsets``, however
many clients there are. Slices are read by position straight from the file: no call into HDF5 a
client, no memory map whose pages would count as the process's, safe across threads and forks.
The layout is in ``store_layout``; ``StoreWriter`` and ``FieldSpec`` are exported from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import h5py

from pfl_bench.store_columns import Column, Descriptor, RaggedColumn, open_column
from pfl_bench.store_file import damaged, open_file, read_attributes, read_fields, read_offsets
from pfl_bench.store_layout import (
    FORMAT,
    LAYOUT_VERSION,
    ContentDigest,
    FieldSpec,
    offsets_name,
    ordered_splits,
)
from pfl_bench.store_writer import StoreWriter
from pfl_bench.types import DataError, DataFacts

__all__ = ["FORMAT", "LAYOUT_VERSION", "FieldSpec", "Store", "StoreSplit", "StoreWriter"]


class StoreSplit:
    """One split of an open store.

    Attributes:
        name: Name of the split.
        offsets: Shape (U + 1,), int64: user u owns the examples ``offsets[u]:offsets[u + 1]``.
        num_users: Number of users, U, at least 1.
        num_examples: Number of examples of all users.
        fields: What each example has, by name.
    """

    def __init__(
        self,
        path: Path,
        checksum: str,
        name: str,
        group: Any,
        descriptor: Descriptor,
        fields: Mapping[str, FieldSpec],
        counts: Mapping[str, int],
    ) -> None:
        self.name = name
        self._origin = path, checksum, name
        self.fields = dict(fields)
        self._where = f"{path}: split {name!r}"
        self._group = group
        self.offsets = read_offsets(group, descriptor, counts, self._where)
        self.num_users = len(self.offsets) - 1
        self.num_examples = int(self.offsets[-1])
        self._columns: dict[str, Column | RaggedColumn] = {}
        for field, spec in fields.items():
            where = f"{self._where}, field {field!r}"
            rows = None if spec.ragged else self.num_examples
            column = open_column(group, field, spec, rows, descriptor, where)
            if not spec.ragged:
                self._columns[field] = column
                continue
            bounds = open_column(
                group,
                offsets_name(field),
                FieldSpec("int64"),
                self.num_examples + 1,
                descriptor,
                where,
            )
            self._columns[field] = RaggedColumn(column, bounds, where)

    def client_ids(self) -> list[str]:
        """Read the users' identifiers, in the order of ``offsets``.

        Raises:
            ValueError: The store is closed.
            DataError: The identifiers are missing or cannot be read.
        """
        if not self._group:
            raise ValueError(f"{self._where}: the store is closed; read inside its `with` block.")
        dataset = self._group.get("client_ids")
        text = isinstance(dataset, h5py.Dataset) and h5py.check_string_dtype(dataset.dtype)
        if not text or dataset.shape != (self.num_users,):
            raise DataError(
                f"{self._where}: client_ids are missing or are not {self.num_users} strings; "
                "prepare the data again."
            )
        try:
            return [str(client_id) for client_id in dataset.asstr()[:]]
        except (OSError, RuntimeError, UnicodeDecodeError) as error:
            raise DataError(
                f"{self._where}: client_ids cannot be read ({error}); prepare the data again."
            ) from error

    def read(self, field: str, start: int, stop: int) -> Any:
        """Read a field of the examples ``start:stop``.

        Args:
            field: Name of the field.
            start: First example, counted over all users of the split.
            stop: One past the last example.

        Returns:
            A fresh writable array of shape (stop - start, *shape); for a ragged field a list of
            stop - start 1-d arrays.

        Raises:
            ValueError: There is no such field, the range is not within the split, or the store
                is closed.
            DataError: The file was cut or damaged after it was opened.
        """
        column = self._columns.get(field)
        if column is None:
            raise ValueError(f"{self._where}: no field {field!r}; it has {list(self.fields)}.")
        if not 0 <= start <= stop <= self.num_examples:
            raise ValueError(
                f"{self._where}: examples {start}:{stop} are not within 0:{self.num_examples}."
            )
        return column.read(start, stop)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen_split, self._origin

    def digest(self, field: str, digest: ContentDigest) -> None:
        """Feed all of a field to a digest, in blocks."""
        self._columns[field].digest(digest, self.name, field)


class Store:
    """A store opened for reading; a context manager.

    A store and its splits can be pickled (the other process opens the file again and checks that
    its content is the same) and survive a fork.

    Attributes:
        path: The file.
        task: Name of the task that the store was made for.
        facts: What is known of the data.
        attributes: All attributes of the file, JSON ones decoded.
        fields: What each example has, by name.
        split_names: Splits that the store has: train, val, test, then others by name.

    Args:
        path: A file that ``StoreWriter`` wrote.

    Raises:
        DataError: The file is missing, is not HDF5, is not a store, has another layout version,
            is cut or damaged, has no split "train" or a split without users.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file = open_file(self.path)
        self._descriptor = Descriptor(self._file)
        self._splits: dict[str, StoreSplit] = {}
        try:
            self.attributes = read_attributes(self._file, self.path)
            self.fields = read_fields(self.attributes["fields"], self.path)
            self.task: str = self.attributes["task"]
            self.split_names = ordered_splits(self.attributes["counts"])
            checksum = f"sha256:{self.attributes['content_sha256']}"
            for name in self.split_names:
                self._splits[name] = StoreSplit(
                    self.path,
                    checksum,
                    name,
                    self._file[name],
                    self._descriptor,
                    self.fields,
                    self.attributes["counts"][name],
                )
        except DataError:
            self.close()
            raise
        except (OSError, RuntimeError, KeyError, TypeError) as error:
            # HDF5 reports damage in whatever way the damaged part leads to.
            self.close()
            raise damaged(self.path, str(error)) from error
        self.facts = DataFacts(
            source=self.attributes["source"],
            variant=self.attributes["variant"],
            checksum=checksum,
            num_classes=self.attributes["num_classes"],
            input_shape=tuple(self.attributes["input_shape"]),
            split_by=self.attributes["split_by"],
            extra=self.attributes["extra"],
        )

    def split(self, name: str) -> StoreSplit:
        """Get one split.

        Raises:
            DataError: The store has no split of that name.
        """
        if name not in self._splits:
            raise DataError(
                f"{self.path}: no split {name!r}; the store has {list(self._splits)}. Ask for one "
                "of these, or prepare the data with that split."
            )
        return self._splits[name]

    def verify(self) -> None:
        """Read all arrays and compare their digest with the one in the file.

        Raises:
            DataError: They differ: the content was changed or damaged after writing.
        """
        digest = ContentDigest()
        for name in self.split_names:
            split = self._splits[name]
            digest.begin(name, "offsets", "<i8", split.offsets.shape)
            digest.update(split.offsets.astype("<i8"))
            digest.begin(name, "client_ids", "utf-8", (split.num_users,))
            digest.identifiers(split.client_ids())
            for field in self.fields:
                split.digest(field, digest)
        if digest.hexdigest() != self.attributes["content_sha256"]:
            raise damaged(
                self.path,
                f"its content has SHA-256 {digest.hexdigest()}, but the file announces "
                f"{self.attributes['content_sha256']}",
            )

    def close(self) -> None:
        """Close the file; reading is an error from then on."""
        self._descriptor.close()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.path, self.facts.checksum)


def _reopen(path: Path, checksum: str) -> Store:
    store = Store(path)
    if store.facts.checksum != checksum:
        store.close()
        raise DataError(
            f"{path}: the file has another content ({store.facts.checksum}) than the store that "
            f"was pickled ({checksum}). Do not replace a store while runs read it."
        )
    return store


def _reopen_split(path: Path, checksum: str, name: str) -> StoreSplit:
    return _reopen(path, checksum).split(name)
