"""Central parameters, releases and cohorts as a ledger's lines have them, gathered into arrays.

Guarantee: none of its own. Nothing is corrected; a value of the wrong kind is refused with its
round.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privacy.audit import values
from privacy.recording.central_record import COORDINATES, PROJECTIONS

_DIGESTS = ("central", "users", "trained", "release")
_WIDTH = 1 + PROJECTIONS + COORDINATES
_SKETCH = dict.fromkeys(("norm", "projections", "coordinates"))
# What a line has of it: see ``privacy.audit.values.unnamed``.
FORM = {
    "central": {"sha256": None, **_SKETCH},
    "release": _SKETCH,
    **dict.fromkeys(("users_sha256", "trained_sha256", "release_sha256")),
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
