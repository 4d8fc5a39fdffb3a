"""Central parameters, releases and cohorts as a ledger's lines have them, gathered into arrays.

Guarantee: none of its own. Nothing is corrected; a value of the wrong kind is refused with its
round.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privacy.errors import LedgerError

PROJECTIONS, COORDINATES = 2, 8
_DIGESTS = ("central", "users", "trained", "release")
_WIDTH = 1 + PROJECTIONS + COORDINATES


class Sketches:
    """Sketches of one vector a round.

    Args:
        rows: Shape (T, 11), float64: norm, projections and coordinates; NaN where there is none.
    """

    def __init__(self, rows: NDArray[np.float64]) -> None:
        self.rows = rows

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


def sketch_row(record: Mapping[str, Any] | None, where: str) -> list[float]:
    """A sketch as one row of ``Sketches``; NaN for what it lacks.

    Raises:
        LedgerError: It is no sketch.
    """
    if record is None:
        return [math.nan] * _WIDTH
    values: list[Any] = [record.get("norm")]
    for key, width in (("projections", PROJECTIONS), ("coordinates", COORDINATES)):
        part = record.get(key)
        if not isinstance(part, list) or len(part) > width:
            raise LedgerError(f"{where}.{key} is {part!r}, but must be a list of at most {width}")
        values += part + [None] * (width - len(part))
    return [_number(value, where) for value in values]


def _number(value: Any, where: str) -> float:
    if value is None:
        return math.nan
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    raise LedgerError(f"{where} holds {value!r}, but must hold finite numbers or null")


@dataclass(frozen=True, slots=True)
class CentralState:
    """Central parameters at one time, as a checkpoint holds them.

    Attributes:
        sha256: Digest, in hexadecimal.
        row: Shape (11,): their sketch, as a row of ``Sketches``.
    """

    sha256: str
    row: tuple[float, ...]


class CentralColumns:
    """What lines say of the central step, one after another.

    Attributes:
        missing: Lines without the central parameters or the cohort.
    """

    def __init__(self) -> None:
        self._rows = {"central": array("d"), "release": array("d")}
        self._digests = {key: bytearray() for key in _DIGESTS}
        self.missing = 0

    def take(self, entry: Mapping[str, Any], number: int) -> None:
        """Take in a line.

        Args:
            entry: The line.
            number: Its round, from 1.

        Raises:
            LedgerError: A value is of the wrong kind.
        """
        for key, rows in self._rows.items():
            record = entry.get(key)
            if not (record is None or isinstance(record, Mapping)):
                raise LedgerError(f"round {number}: '{key}' is {record!r}, but must be an object")
            rows.extend(sketch_row(record, f"round {number}: '{key}'"))
        central = entry.get("central")
        digests = {key: entry.get(f"{key}_sha256") for key in _DIGESTS}
        digests["central"] = central and central.get("sha256")
        self.missing += None in digests.values()
        for key, digest in digests.items():
            self._digests[key] += _bytes(digest, f"round {number}: the digest of {key}")

    def sketches(self, key: str) -> Sketches:
        """Sketches of "central" (before the round's step) or "release"."""
        return Sketches(np.asarray(self._rows[key]).reshape(-1, _WIDTH))

    def digest(self, key: str, number: int) -> str:
        """A digest in hexadecimal; zeros for none.

        Args:
            key: "central" (before the step), "users" (drawn), "trained" (whose updates came in) or
                "release".
            number: The round, from 1.
        """
        return self._digests[key][32 * (number - 1) : 32 * number].hex()


def _bytes(digest: Any, where: str) -> bytes:
    if digest is None:
        return bytes(32)
    try:
        found = bytes.fromhex(digest)
    except (TypeError, ValueError):
        found = b""
    if len(found) != 32:
        raise LedgerError(f"{where} is {digest!r}, but must be a SHA-256 in hexadecimal")
    return found
