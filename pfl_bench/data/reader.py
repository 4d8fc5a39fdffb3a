"""Reading a store, a client at a time.

A client is a slice of contiguous arrays; opening a split reads one array, ``offsets``, however
many clients there are. Slices are read by position straight from the file: no call into HDF5 a
client, no memory map whose pages would count as the process's, safe across threads and forks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from pfl_bench.data.columns import Column, Descriptor, RaggedColumn, open_column
from pfl_bench.data.layout import (
    CLIENT_IDS,
    NAMES,
    ContentDigest,
    FieldSpec,
    offsets_name,
    ordered_splits,
)
from pfl_bench.data.opening import (
    damaged,
    decode_client_ids,
    decode_names,
    open_file,
    read_attributes,
    read_fields,
    read_offsets,
)
from pfl_bench.profiling import phase
from pfl_bench.types import DataError, DataFacts


class _Texts:
    """Identifiers or names in the file, read when asked for."""

    def __init__(self, group: Any, name: str, count: int, descriptor: Descriptor, where: str):
        self._name, self._where = name, where
        self._text = open_column(group, name, FieldSpec("uint8"), None, descriptor, where)
        self._bounds = open_column(
            group, offsets_name(name), FieldSpec("int64"), count + 1, descriptor, where
        )

    def read(self, decode: Callable[[Any, Any, str], list[str]]) -> list[str]:
        bounds = self._bounds.read(0, self._bounds.num_rows)
        return decode(self._text.read(0, self._text.num_rows), bounds, self._where)

    def digest(self, digest: ContentDigest, group: str) -> None:
        self._bounds.digest(digest, group, offsets_name(self._name))
        self._text.digest(digest, group, self._name)


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
        self.offsets = read_offsets(group, descriptor, counts, self._where)
        self.num_users = len(self.offsets) - 1
        self.num_examples = int(self.offsets[-1])

        def column(dataset: str, spec: FieldSpec, rows: int | None) -> Column:
            return open_column(group, dataset, spec, rows, descriptor, where)

        self._ids = _Texts(group, CLIENT_IDS, self.num_users, descriptor, self._where)
        self._columns: dict[str, Column | RaggedColumn] = {}
        for field, spec in fields.items():
            where = f"{self._where}, field {field!r}"
            rows = None if spec.ragged else self.num_examples
            values = column(field, spec, rows)
            self._columns[field] = values
            if spec.ragged:
                ends = column(offsets_name(field), FieldSpec("int64"), self.num_examples + 1)
                self._columns[field] = RaggedColumn(values, ends, where)

    def client_ids(self) -> list[str]:
        """Read the users' identifiers, in the order of ``offsets``."""
        return self._ids.read(decode_client_ids)

    def read(self, field: str, start: int, stop: int) -> Any:
        """Read a field of the examples ``start:stop``, counted over all users of the split.

        Returns:
            A fresh writable array of shape (stop - start, *shape); for a ragged field a list of
            stop - start 1-d arrays.
        """
        column = self._columns.get(field)
        if column is None:
            raise ValueError(f"{self._where}: no field {field!r}; it has {list(self.fields)}.")
        if not 0 <= start <= stop <= self.num_examples:
            raise ValueError(
                f"{self._where}: examples {start}:{stop} are not within 0:{self.num_examples}."
            )
        with phase("reading"):
            return column.read(start, stop)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen_split, self._origin

    def digest(self, digest: ContentDigest) -> None:
        """Feed all arrays to a digest, in blocks."""
        digest.begin(self.name, "offsets", "<i8", self.offsets.shape)
        digest.update(self.offsets.astype("<i8"))
        self._ids.digest(digest, self.name)
        for field, column in self._columns.items():
            column.digest(digest, self.name, field)


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
        name_lists: Names of the lists of names that the store has, sorted.

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
        self._names: dict[str, _Texts] = {}
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
            for name, count in sorted(self.attributes.get(NAMES, {}).items()):
                where = f"{self.path}: names {name!r}"
                self._names[name] = _Texts(self._file[NAMES], name, count, self._descriptor, where)
        except DataError:
            self.close()
            raise
        except (OSError, RuntimeError, KeyError, TypeError) as error:
            # HDF5 reports damage in whatever way the damaged part leads to.
            self.close()
            raise damaged(self.path, str(error)) from error
        self.name_lists: tuple[str, ...] = tuple(self._names)
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
        """Get one split; DataError if the store has none of that name."""
        if name not in self._splits:
            raise DataError(
                f"{self.path}: no split {name!r}; the store has {list(self._splits)}. Ask for one "
                "of these, or prepare the data with that split."
            )
        return self._splits[name]

    def names(self, name: str) -> list[str]:
        """Read a list of names: what the numbers of a column or of tokens stand for."""
        if name not in self._names:
            raise DataError(
                f"{self.path}: no names {name!r}; the store has names for "
                f"{list(self._names) or 'nothing'}. Prepare the data again with this release."
            )
        return self._names[name].read(decode_names)

    def verify(self) -> None:
        """Read all arrays; DataError if their digest is not the one in the file."""
        digest = ContentDigest()
        for name in self.split_names:
            self._splits[name].digest(digest)
        for names in self._names.values():
            names.digest(digest, NAMES)
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

    def __exit__(self, *exception: object) -> None:
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
