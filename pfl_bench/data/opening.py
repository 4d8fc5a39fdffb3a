"""Opening a store's file and checking, before anything is read, that it is one."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from pfl_bench.data.columns import Descriptor, open_column, own_member
from pfl_bench.data.layout import (
    FORMAT,
    LAYOUT_VERSION,
    MOST_CLASSES,
    MOST_INPUT_VALUES,
    NAMES,
    FieldSpec,
    check_field_names,
    check_list_name,
    check_split_name,
)
from pfl_bench.files import parse_json
from pfl_bench.types import DataError

_TEXTS = ("task", "variant", "source", "split_by", "content_sha256")
_MEND = "The file is damaged; copy or prepare it again."
_JSON = {"input_shape": list, "fields": dict, "counts": dict, "extra": dict}


def damaged(path: Path, what: str) -> DataError:
    """An error for a file that was a store once."""
    return DataError(f"{path}: the store is damaged: {what}. Copy it again or prepare it again.")


def open_file(path: Path) -> Any:
    """Open an HDF5 file for reading; DataError if it is missing, cut or not HDF5."""
    if not path.exists():
        raise DataError(
            f"{path}: no such file. Check the path, or make the store with "
            f"`pfl-bench data prepare TASK --source DIR --out {path}`."
        )
    if path.is_dir():
        raise DataError(f"{path} is a folder; name the store's file in it.")
    if not path.is_file():
        raise DataError(f"{path} is no regular file; name a store's file.")
    try:
        with open(path, "rb") as file:
            size = len(file.read(8))
        if size == 0 or not h5py.is_hdf5(path):
            raise DataError(
                f"{path}: not an HDF5 file ({'it is empty' if not size else 'foreign or cut'}). "
                "A store is written by `pfl-bench data prepare TASK --source DIR --out FILE.h5`."
            )
        return h5py.File(path, "r")
    except (OSError, RuntimeError) as error:
        if "truncated" in str(error):
            raise damaged(path, f"the file is cut ({error})") from error
        raise DataError(
            f"{path}: cannot be opened ({error}). Check that you may read it, and copy or prepare "
            "it again if it is damaged."
        ) from error


def read_attributes(file: Any, path: Path) -> dict[str, Any]:
    """Read and check the attributes of a store, JSON ones decoded."""
    if _text(file, "format") != FORMAT:
        raise DataError(
            f"{path}: an HDF5 file, but not a store of this toolkit: its attribute 'format' is "
            f"not {FORMAT!r}. Prepare the data with `pfl-bench data prepare`."
        )
    version = file.attrs.get("layout_version")
    if not isinstance(version, np.integer) or version != LAYOUT_VERSION:
        raise DataError(
            f"{path}: layout version {version}, but this release reads version {LAYOUT_VERSION}. "
            "Prepare the data again with this release, or use the release that wrote the file."
        )
    attributes: dict[str, Any] = {"format": FORMAT, "layout_version": LAYOUT_VERSION}
    for name in (*_TEXTS, *_JSON):
        text = _text(file, name)
        if text is None:
            raise damaged(path, f"attribute {name!r} is missing or is not text")
        attributes[name] = text
    for name, kind in _JSON.items():
        try:
            attributes[name] = parse_json(attributes[name])
        except ValueError as error:
            raise damaged(path, f"attribute {name!r} is not JSON ({error})") from error
        if not isinstance(attributes[name], kind):
            raise damaged(path, f"attribute {name!r} is not a JSON {kind.__name__}")
    num_classes = file.attrs.get("num_classes")
    if not isinstance(num_classes, np.integer) or not 1 <= num_classes <= MOST_CLASSES:
        raise damaged(
            path,
            f"attribute 'num_classes' is {num_classes!r}, not an integer from 1 to {MOST_CLASSES}",
        )
    attributes["num_classes"] = int(num_classes)
    if attributes["split_by"] not in ("user", "example"):
        raise damaged(path, f"attribute 'split_by' is {attributes['split_by']!r}")
    shape = attributes["input_shape"]
    if not all(type(size) is int and size > 0 for size in shape) or (
        math.prod(shape) > MOST_INPUT_VALUES
    ):
        raise damaged(path, f"attribute 'input_shape' is {shape}")
    _check_splits(file, attributes["counts"], path)
    attributes |= _announced_names(file, path)
    return attributes


def _text(file: Any, name: str) -> str | None:
    """A text attribute of fixed or variable length; None if it is anything else."""
    value = file.attrs.get(name)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return None
    return value if isinstance(value, str) else None


def _check_splits(file: Any, counts: Mapping[str, Any], path: Path) -> None:
    if "train" not in counts:
        raise damaged(path, f"it has no split 'train', only {sorted(counts)}")
    for name in counts:
        try:
            check_split_name(name)
        except ValueError as error:
            raise damaged(path, str(error)) from error
        if not isinstance(own_member(file, name), h5py.Group):
            raise damaged(path, f"it announces a split {name!r} but has none")


def _announced_names(file: Any, path: Path) -> dict[str, dict[str, int]]:
    """The attribute that says which lists of names there are; {} if neither it nor they are."""
    if NAMES not in file.attrs and file.get(NAMES, getlink=True) is None:
        return {}
    try:
        counts = parse_json(_text(file, NAMES) or "")
    except ValueError as error:
        raise damaged(path, f"attribute {NAMES!r} is missing or not JSON ({error})") from error
    if not isinstance(counts, dict) or not isinstance(own_member(file, NAMES), h5py.Group):
        raise damaged(path, f"it announces lists of names, but group {NAMES!r} is missing")
    for name, count in counts.items():
        try:
            check_list_name(name)
        except ValueError as error:
            raise damaged(path, str(error)) from error
        if not isinstance(count, int) or count < 0:
            raise damaged(path, f"it announces {count!r} names {name!r}")
    return {NAMES: counts}


def read_fields(announced: Mapping[str, Any], path: Path) -> dict[str, FieldSpec]:
    """Turn the attribute ``fields`` into field specifications.

    Raises:
        DataError: The attribute is malformed.
    """
    try:
        check_field_names(announced)
        return {
            name: FieldSpec(str(spec["dtype"]), tuple(spec["shape"]), bool(spec["ragged"]))
            for name, spec in announced.items()
        }
    except (ValueError, TypeError, KeyError) as error:
        raise damaged(path, f"attribute 'fields' is malformed ({error})") from error


def read_offsets(
    group: Any, descriptor: Descriptor, counts: Mapping[str, int], where: str
) -> NDArray[np.int64]:
    """Read and check where each user's examples begin; shape (U + 1,), int64.

    ``counts`` is the announced number of "users" and "examples".
    """
    column = open_column(group, "offsets", FieldSpec("int64"), None, descriptor, where)
    offsets = column.read(0, column.num_rows)
    if len(offsets) < 2:
        raise DataError(
            f"{where}: no users. Every split of a store has some; prepare the data again."
        )
    # Compared, not subtracted: differences of damaged numbers can wrap round.
    empty = offsets[1:] <= offsets[:-1]
    if offsets[0] != 0 or empty.any():
        user = int(np.argmax(empty))
        start, stop = offsets[user : user + 2].tolist()
        raise DataError(
            f"{where}: user {user} has {stop - start} examples (offsets start at {offsets[0]}); "
            "every user has at least one. The file is damaged, copy or prepare it again."
        )
    found = {"users": len(empty), "examples": int(offsets[-1])}
    if found != counts:
        raise DataError(
            f"{where}: the file holds {found}, but announces {counts}. It is damaged; copy or "
            "prepare it again."
        )
    return offsets


def decode_client_ids(text: NDArray[np.uint8], bounds: NDArray[np.int64], where: str) -> list[str]:
    """Turn a split's ascending identifiers, ``text[bounds[u]:bounds[u + 1]]``, into strings."""
    client_ids = _decode(text, bounds, where, "client id", "client_ids_offsets")
    if not all(map(operator.lt, client_ids, client_ids[1:])):
        earlier, later = next(pair for pair in pairwise(client_ids) if pair[0] >= pair[1])
        raise DataError(f"{where}: client id {later!r} follows {earlier!r}; they ascend. {_MEND}")
    return client_ids


def decode_names(text: NDArray[np.uint8], bounds: NDArray[np.int64], where: str) -> list[str]:
    """Turn a list of names, ``text[bounds[v]:bounds[v + 1]]``, into strings."""
    names = _decode(text, bounds, where, "name", "the offsets")
    if len(set(names)) != len(names):
        raise DataError(f"{where}: a name comes twice. {_MEND}")
    return names


def _decode(
    text: NDArray[np.uint8], bounds: NDArray[np.int64], where: str, what: str, dividers: str
) -> list[str]:
    empty = bounds[1:] <= bounds[:-1]
    if bounds[0] != 0 or bounds[-1] != len(text) or empty.any():
        raise DataError(f"{where}: {dividers} do not divide the {what}s. {_MEND}")
    data = text.tobytes()
    try:
        return [data[start:stop].decode() for start, stop in pairwise(bounds.tolist())]
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: {what} {error.object!r} is not UTF-8. {_MEND}") from error
