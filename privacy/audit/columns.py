"""Sketches and digests in a ledger's lines, gathered into arrays: of rounds, and of DP-SGD's steps.

Guarantee: none of its own. Nothing is corrected; a value of the wrong kind is refused with its
round or epoch. Memory grows by some 150 bytes a step.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privacy.audit import values
from privacy.errors import LedgerError
from privacy.recording.central_record import COORDINATES, PROJECTIONS
from privacy.recording.step_observation import BLOCKS, DIGEST_LENGTH, VECTORS

_DIGESTS = ("central", "users", "trained", "release")
_WIDTH = 1 + PROJECTIONS + COORDINATES
_STEP_WIDTH = 1 + BLOCKS
_STEP_LISTS = ("batch_sizes", "batch_digests", *VECTORS)
_SKETCH = dict.fromkeys(("norm", "projections", "coordinates"))
# What a line has of them: see ``privacy.audit.values.unnamed``.
FORM = {
    "central": {"sha256": None, **_SKETCH},
    "release": _SKETCH,
    **dict.fromkeys(("users_sha256", "trained_sha256", "release_sha256")),
    "observed": dict.fromkeys(_STEP_LISTS),
}


@dataclass(frozen=True, slots=True)
class Sketches:
    """Sketches of one vector a round; NaN where there is none."""

    rows: NDArray[np.float64]  # shape (T, 11)

    @property
    def norm(self) -> NDArray[np.float64]:
        """Shape (T,): L2 norms."""
        return self.rows[:, 0]

    @property
    def projections(self) -> NDArray[np.float64]:
        """Shape (T, 2): products with two fixed vectors of signs."""
        return self.rows[:, 1 : 1 + PROJECTIONS]

    @property
    def coordinates(self) -> NDArray[np.float64]:
        """Shape (T, 8): coordinates at fixed places; NaN beyond a shorter vector's."""
        return self.rows[:, 1 + PROJECTIONS :]


def sketch_row(record: Mapping[str, Any], where: str) -> list[float]:
    """A sketch as one row of ``Sketches``, NaN for what it lacks; else ``LedgerError``."""
    row = [values.number(record.get("norm"), f"{where}.norm")]
    for key, width in (("projections", PROJECTIONS), ("coordinates", COORDINATES)):
        row += values.numbers(record.get(key) if record else [], width, f"{where}.{key}")
    return row


class CentralColumns:
    """Records of the central step, one line of the ledger after another."""

    def __init__(self) -> None:
        self._rows = {"central": array("d"), "release": array("d")}
        self._digests = {key: bytearray() for key in _DIGESTS}
        self.missing = 0

    def take(self, entry: Mapping[str, Any], where: str) -> None:
        """Take in a line of a round (``where``, in words); a value of the wrong kind is refused."""
        records = {key: values.member(entry, key, f"{where}: '{key}'") for key in self._rows}
        for key, rows in self._rows.items():
            rows.extend(sketch_row(records[key], f"{where}: '{key}'"))
        digests = {key: entry.get(f"{key}_sha256") for key in _DIGESTS}
        digests["central"] = records["central"].get("sha256")
        self.missing += None in digests.values()
        for key, found in digests.items():
            is_none = found is None and key != "release"
            where_it_is = f"{where}: '{key}_sha256'"
            self._digests[key] += bytes(32) if is_none else values.digest(found, where_it_is)

    def sketches(self, key: str) -> Sketches:
        """Sketches of "central" (before the round's step) or "release"."""
        return Sketches(np.asarray(self._rows[key]).reshape(-1, _WIDTH))

    def digest(self, key: str, number: int) -> str:
        """A digest of a round, from 1, in hexadecimal; zeros for none.

        Keys: "central" (before the step), "users" (drawn), "trained" (whose updates came in) and
        "release".
        """
        return self._digests[key][32 * (number - 1) : 32 * number].hex()

    def digests(self, key: str) -> NDArray[np.uint64]:
        """Shape (T, 4): the digests of all rounds, by the keys of ``digest``."""
        return np.frombuffer(bytes(self._digests[key]), np.uint64).reshape(-1, 4)


class StepColumns:
    """Steps, in order, as far as the lines have them; ``missing`` is the lines that have none."""

    def __init__(self) -> None:
        self.missing = 0
        self._epochs, self._numbers, self._sizes = array("q"), array("q"), array("q")
        self._sketches = array("d")
        self._digests = bytearray()
        self._lines = 0

    def take(self, entry: Mapping[str, Any], where: str) -> None:
        """Take in a line; a value of the wrong kind is a ``LedgerError``."""
        self._lines += 1
        if "observed" not in entry:
            self.missing += 1
            return
        where = f"{where}: 'observed"
        record = values.member(entry, "observed", f"{where}'")
        rows: list[Any] = [record.get(name) for name in _STEP_LISTS]
        steps = {len(row) if isinstance(row, list) else -1 for row in rows}
        if len(steps) != 1 or -1 in steps:
            raise LedgerError(f"{where}' must have lists of one length, an element a step")
        sizes, digests, *vectors = rows
        self._sizes.extend(values.counts(sizes, len(sizes), f"{where}.batch_sizes'"))
        for step, digest in enumerate(digests):
            self._digests += values.digest(digest, f"{where}.batch_digests'", DIGEST_LENGTH)
            for name, vector in zip(VECTORS, vectors, strict=True):
                self._sketches.extend(values.numbers(vector[step], _STEP_WIDTH, f"{where}.{name}'"))
        self._epochs.extend([self._lines] * len(sizes))
        self._numbers.extend(range(1, len(sizes) + 1))

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def epochs(self) -> NDArray[np.int64]:
        """Shape (S,): the epoch of each step, from 1."""
        return np.asarray(self._epochs, np.int64)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Shape (S,): the realised batches."""
        return np.asarray(self._sizes, np.int64)

    def sketches(self, name: str) -> NDArray[np.float64]:
        """Shape (S, 1 + BLOCKS): norm and blocks of "sum", "noise" or "parameters"; or NaN."""
        whole = np.asarray(self._sketches).reshape(-1, len(VECTORS), _STEP_WIDTH)
        return whole[:, VECTORS.index(name)]

    def digest(self, index: int) -> str:
        """The batch's digest of a step, counted from 0, in hexadecimal."""
        width = DIGEST_LENGTH // 2
        return self._digests[width * index : width * (index + 1)].hex()

    def number(self, index: int) -> int:
        """Of a step, counted from 0: which one it is of its epoch, from 1."""
        return self._numbers[index]

    def place(self, index: int) -> str:
        """A step, counted from 0, in words."""
        return f"epoch {self._epochs[index]}, step {self._numbers[index]}"
