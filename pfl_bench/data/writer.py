"""Writing a store: streaming, in bounded memory, whole or absent; and gathering for one."""

from __future__ import annotations

import glob
import json
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pfl_bench.data.assembly import assemble
from pfl_bench.data.checks import (
    check_client_id,
    check_names,
    check_train_differs_from_test,
    columns_of,
)
from pfl_bench.data.layout import (
    MOST_CLASSES,
    FieldSpec,
    check_field_names,
    check_list_name,
    check_split_name,
    ordered_splits,
)
from pfl_bench.data.spool import Spool
from pfl_bench.data.temporary import TemporaryFolder, TemporaryKind
from pfl_bench.files import parse_json
from pfl_bench.types import DataError, SplitBy
from privacy.ledger import synchronise_folder


class SpooledExamples(ABC):
    """Examples by split and client in hidden temporary files beside ``path``; a context manager.

    The files are gone when the block ends, however it ends.
    """

    _KIND: TemporaryKind

    def __init__(self, path: str | Path, fields: Mapping[str, FieldSpec]) -> None:
        check_field_names(fields)
        self.path = Path(path)
        _check_target(self.path)
        self.fields = dict(fields)
        self._spools: dict[str, Spool] = {}
        self._temporary: TemporaryFolder | None = None

    def __enter__(self) -> Self:
        try:
            self._temporary = TemporaryFolder(self.path, self._KIND)
        except OSError as error:
            raise self._cannot_write(error) from error
        return self

    def __exit__(self, *exception: object) -> None:
        for spool in self._spools.values():
            spool.close()
        if self._temporary is not None:
            self._temporary.remove()
            self._temporary = None

    @property
    def splits(self) -> tuple[str, ...]:
        """Splits that have clients, in the order in which they came."""
        return tuple(self._spools)

    def _append(
        self, split: str, client_id: str, arrays: Mapping[str, Any], num_classes: int | None
    ) -> None:
        if self._temporary is None:
            raise ValueError(f"{self.path}: append needs `with {type(self).__name__}(...)`.")
        where = f"{self.path}: split {split!r}, client {client_id!r}"
        spool = self._spools.get(split)
        if spool is None or client_id not in spool.clients:
            self._check_newcomer(split, client_id, where)
        count, columns = columns_of(arrays, self.fields, num_classes, where)
        try:
            if spool is None:
                spool = self._spools[split] = Spool(self._temporary.path, split, self.fields)
            # One string a client, however many splits and appends bring it.
            spool.append(sys.intern(client_id), count, columns)
        except OSError as error:
            raise self._cannot_write(error) from error

    def _check_newcomer(self, split: str, client_id: str, where: str) -> None:
        """Refuse a client that may not come into a split; ``where`` is what messages name."""
        check_split_name(split)
        check_client_id(client_id, where)

    @abstractmethod
    def _cannot_write(self, error: OSError) -> DataError:
        """Say what the system refused to write, and how to mend it."""


class StoreWriter(SpooledExamples):
    """Writes one store; a context manager.

    Data is spooled to hidden temporary files beside the target. When the block ends without an
    exception the store is put together there, synchronised to disk and renamed to ``path`` in
    one step; with an exception all of it is removed and a file that was at ``path`` stays as it
    was. Memory does not grow with the examples, only with users and appends (some hundred
    bytes each).

    Users are sorted by identifier, so the order in which users arrive does not matter; the
    examples of one user stay in the order in which they were appended.

    Args:
        path: The file to write, in an existing folder.
        task: Name of the task that the store is made for.
        variant: Machine name of the variant of the data.
        source: One line for a human that says where the data comes from.
        split_by: "user" if no user may be in two splits, "example" if each user's are divided.
        num_classes: Classes of the target, at least 1; a field "targets" of integer kind must
            lie in [0, num_classes).
        input_shape: Shape of one example's input, without the leading axis.
        fields: What each example has, by name; the order is the order in the digest.
        extra: Further facts, JSON-serialisable.
        names: Lists of names, as ``set_names`` takes them.

    Raises:
        ValueError: An argument is malformed.
        DataError: The folder of ``path`` is missing or is not one, or ``path`` is a folder.
    """

    _KIND = "partial"

    # By name: the facts that a store states of itself.
    def __init__(
        self,
        path: str | Path,
        *,
        task: str,
        variant: str,
        source: str,
        split_by: SplitBy,
        num_classes: int,
        input_shape: tuple[int, ...],
        fields: Mapping[str, FieldSpec],
        extra: Mapping[str, Any] | None = None,
        names: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        super().__init__(path, fields)
        for name, text in (("task", task), ("variant", variant), ("source", source)):
            if not isinstance(text, str) or not text:
                raise ValueError(f"StoreWriter: {name} is {text!r}; it must be a non-empty string.")
        if split_by not in ("user", "example"):
            raise ValueError(f"StoreWriter: split_by is {split_by!r}; use 'user' or 'example'.")
        if not 1 <= num_classes <= MOST_CLASSES:
            raise ValueError(
                f"StoreWriter: num_classes is {num_classes}; it must be from 1 to {MOST_CLASSES}."
            )
        self._facts = {"task": task, "variant": variant, "source": source, "split_by": split_by}
        self._split_by = split_by
        self._num_classes = int(num_classes)
        self._input_shape = tuple(int(size) for size in input_shape)
        self._extra: dict[str, Any] = {}
        self._names: dict[str, list[str]] = {}
        for key, value in (extra or {}).items():
            self.set_extra(key, value)
        for key, values in (names or {}).items():
            self.set_names(key, values)

    def __exit__(self, *exception: object) -> None:
        try:
            if exception[0] is None:
                self._finalise()
        except OSError as failure:
            raise self._cannot_write(failure) from failure
        finally:
            super().__exit__()

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """Numbers of "users" and "examples" that have been appended, by split."""
        return {
            name: {"users": len(spool.clients), "examples": spool.total_examples()}
            for name, spool in self._spools.items()
        }

    def set_extra(self, key: str, value: Any) -> None:
        """Record a further fact, anything that JSON can hold; NaN and infinity are not JSON."""
        try:
            self._extra[key] = parse_json(json.dumps(value, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{self.path}: extra fact {key!r} is not JSON ({error}); use None, bool, int, "
                "finite float, str, list or dict with string keys."
            ) from error

    def set_names(self, name: str, values: Sequence[str]) -> None:
        """Record what numbers stand for: the words of a vocabulary, the values of a column.

        The list of a column has the name of its field. Values are in the order of their numbers,
        from 0. A list of that name that was recorded before is replaced.
        """
        check_list_name(name)
        self._names[name] = check_names(values, f"{self.path}: names {name!r}")

    def append(self, split: str, client_id: str, **arrays: Any) -> None:
        """Add examples of one client to a split.

        Args:
            split: Name of the split, such as "train".
            client_id: The client; may come again, then the examples are added to those it has.
            arrays: One a field: array of shape (n, *shape) with n >= 1, or a list of n 1-d
                arrays if the field is ragged.

        Raises:
            ValueError: The split's name is malformed, or the writer is not open.
            DataError: No example; arrays that differ in length; a missing or unknown field; a
                wrong shape; a dtype whose values do not fit; a target outside [0, num_classes);
                with split_by="user", a client of another split; or a disk that is full.
        """
        self._append(split, client_id, arrays, self._num_classes)

    def _check_newcomer(self, split: str, client_id: str, where: str) -> None:
        super()._check_newcomer(split, client_id, where)
        if self._split_by == "example":
            return
        for other, spool in self._spools.items():
            if other != split and client_id in spool.clients:
                raise DataError(
                    f"{self.path}: client {client_id!r} is in split {other!r} and in split "
                    f"{split!r}, but split_by is 'user': every client belongs to one split. Keep "
                    "the client in one of them, or prepare the data with split_by 'example'."
                )

    def _cannot_write(self, error: OSError) -> DataError:
        others = f".{glob.escape(self.path.name)}.partial-*"
        own = self._temporary and self._temporary.path.name
        leftovers = [str(path) for path in self.path.parent.glob(others) if path.name != own]
        hint = f" Killed runs left {leftovers}: remove them if none is running." * bool(leftovers)
        spooled = sum(spool.total_bytes() for spool in self._spools.values())
        return DataError(
            f"{self.path}: cannot write the store in {self.path.parent}: {error}. Temporary files "
            f"and the result need about {2 * spooled / 1e6:.0f} MB for the data so "
            "far. Free space or choose a folder on another disk that you may write; nothing of "
            f"this attempt was left behind.{hint}"
        )

    def _finalise(self) -> None:
        assert self._temporary is not None  # opened by ``with``
        names = ordered_splits(self._spools)
        if "train" not in names:
            raise DataError(
                f"{self.path}: no client was put in split 'train' (splits with clients: "
                f"{list(names) or 'none'}). A store needs training clients: check that the source "
                "holds data and that the fractions of the split leave some for training."
            )
        for spool in self._spools.values():
            spool.freeze()
        if self._split_by == "example" and "test" in names:
            check_train_differs_from_test(
                self._spools["train"], self._spools["test"], self.fields, self.path
            )
        staged = self._temporary.path / "store.h5"
        attributes = {
            **self._facts,
            "num_classes": self._num_classes,
            "input_shape": json.dumps(self._input_shape),
            "extra": json.dumps(self._extra),
        }
        assemble(staged, self._spools, self.fields, self._names, attributes)
        os.replace(staged, self.path)
        synchronise_folder(self.path.parent)


def _check_target(path: Path) -> None:
    if path.is_dir():
        raise DataError(f"{path} is a folder; name the file to write, such as {path / 'data.h5'}.")
    if path.exists() and not path.is_file():
        raise DataError(f"{path} is a device or pipe, which is not replaced; name a file.")
    parent = path.parent
    if not parent.is_dir():
        what = "is not a folder" if parent.exists() else "does not exist"
        raise DataError(
            f"{path}: cannot write the store: its folder {parent} {what}. Create that folder "
            "first or choose another one."
        )
