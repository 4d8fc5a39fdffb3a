"""Format of a store file: names, versions, fields and the digest of the content.

``StoreWriter`` writes this layout and ``Store`` reads it; both take every name from here.

Layout of the HDF5 file, one group a split, users sorted by identifier within it::

    /<split>/offsets              int64 (U + 1): user u owns the examples offsets[u]:offsets[u + 1]
    /<split>/client_ids           uint8: the identifiers in UTF-8, one after another
    /<split>/client_ids_offsets   int64 (U + 1): user u's is client_ids[...[u]:...[u + 1]]
    /<split>/<field>              (N, *shape), or all examples' items one after another if ragged
    /<split>/<field>_offsets      int64 (N + 1), for ragged fields only
    /names/<list>                 uint8: the names of a list in UTF-8, one after another
    /names/<list>_offsets         int64 (V + 1): name v is <list>[...[v]:...[v + 1]]

Lists of names spell out what numbers mean: a vocabulary, the plays of a column "play". A store
without any has no group of that name. Identifiers and names are no HDF5 strings: those of
variable length lie in a heap without checksums, where one flipped bit makes HDF5 loop for ever.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

FORMAT = "pfl-bench-store"
LAYOUT_VERSION = 1
BLOCK_BYTES = 4 << 20
TARGETS = "targets"
CLIENT_IDS = "client_ids"
NAMES = "names"
# Models and counts are as large as these say before any data are seen. The largest vocabularies
# and label sets in use are below a third of the first; the second is a picture of 10,000 x 10,000.
MOST_CLASSES = 1_000_000
MOST_INPUT_VALUES = 100_000_000

_USUAL_SPLITS = ("train", "val", "test")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_RESERVED = ("offsets", CLIENT_IDS)


@dataclass(frozen=True)
class FieldSpec:
    """One field that every example has.

    Attributes:
        dtype: NumPy name of a bool, integer or float dtype, such as "uint8".
        shape: Shape of one example's value, without the leading axis.
        ragged: Whether each example owns a number of items of its own (a list of labels, the
            bytes of a JPEG); ``shape`` is then ().
    """

    dtype: str
    shape: tuple[int, ...] = ()
    ragged: bool = False

    def __post_init__(self) -> None:
        try:
            dtype = np.dtype(self.dtype)
        except TypeError as error:
            raise ValueError(f"FieldSpec: dtype {self.dtype!r} is not a NumPy dtype.") from error
        if dtype.kind not in "biuf" or dtype.itemsize > 8:
            raise ValueError(
                f"FieldSpec: dtype {self.dtype!r} cannot be stored; allowed are bool, integers and "
                "floats of at most 64 bits. Store text or images as ragged uint8."
            )
        if any(not isinstance(size, int) or size < 1 for size in self.shape):
            raise ValueError(f"FieldSpec: shape {self.shape!r} must hold positive integers only.")
        if self.ragged and self.shape:
            raise ValueError(
                f"FieldSpec: a ragged field has shape (), not {self.shape!r}; use a ragged field "
                "of flattened items, or a field that is not ragged."
            )

    @property
    def numpy_dtype(self) -> np.dtype[np.generic]:
        """The dtype in the file: little-endian on every machine."""
        return np.dtype(self.dtype).newbyteorder("<")

    @property
    def row_bytes(self) -> int:
        """Bytes of one example's value, or of one item if ragged."""
        return self.numpy_dtype.itemsize * math.prod(self.shape)


def check_split_name(name: str) -> None:
    """Refuse, by a ValueError, a split name that cannot be an HDF5 group of its own."""
    if name == NAMES:
        raise ValueError(
            f"split {name!r} has a name that the layout needs for lists of names; choose another."
        )
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            f"split {name!r} is not a name: a letter, then letters, digits, '_' or '-', "
            "such as 'train'."
        )


def check_field_names(names: Iterable[str]) -> None:
    """Refuse, by a ValueError, no fields, or names that clash, also with the layout's own."""
    names = list(names)
    if not names:
        raise ValueError("fields is empty: a store needs at least one field, such as 'inputs'.")
    for name in names:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(
                f"field {name!r} is not a name: a letter, then letters, digits, '_' or '-'."
            )
        if name in _RESERVED or name.endswith("_offsets"):
            raise ValueError(
                f"field {name!r} has a name that the layout needs; reserved are {_RESERVED} and "
                "every name that ends in '_offsets'."
            )


def check_list_name(name: str) -> None:
    """Refuse, by a ValueError, a name of a list of names that cannot be a dataset of its own."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name.endswith("_offsets"):
        raise ValueError(
            f"list of names {name!r}: a letter, then letters, digits, '_' or '-', and not "
            "'_offsets' at the end, such as 'vocabulary'."
        )


def offsets_name(field: str) -> str:
    """Name of the dataset that says where each example's items, or each identifier, begin."""
    return f"{field}_offsets"


def ordered_splits(names: Iterable[str]) -> tuple[str, ...]:
    """Put train, val, test first and others after them by name, whatever order they came in."""
    found = set(names)
    usual = [name for name in _USUAL_SPLITS if name in found]
    return (*usual, *sorted(found.difference(usual)))


class ContentDigest:
    """SHA-256 over a store's arrays: splits in order, in each offsets, client_ids and fields.

    Lists of names follow, sorted. An array's offsets come before it. Every array is preceded by a
    line with its path, dtype and shape, so that no two different stores give the same stream of
    bytes.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def begin(self, split: str, name: str, dtype: str, shape: tuple[int, ...]) -> None:
        """Announce the next array."""
        self._hash.update(f"{split}/{name} {dtype} {list(shape)}\n".encode())

    def update(self, values: NDArray[Any]) -> None:
        """Take in the next values of the announced array, C-contiguous."""
        self._hash.update(values.data)

    def hexdigest(self) -> str:
        """The digest of all that was taken in, in hexadecimal."""
        return self._hash.hexdigest()
