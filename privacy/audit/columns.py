"""Steps of DP-SGD in a ledger's lines, gathered into arrays.

Guarantee: none of its own. Nothing is corrected; a value of the wrong kind is refused with its
epoch. Memory grows by some 150 bytes a step.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privacy.audit import values
from privacy.errors import LedgerError
from privacy.recording.step_observation import BLOCKS, DIGEST_LENGTH, VECTORS

_WIDTH = 1 + BLOCKS
LISTS = ("batch_sizes", "batch_digests", *VECTORS)


class StepColumns:
    """Steps, in order, as far as the lines have them.

    ``sizes`` are the realised batches, ``counts`` the steps of each line that has them; ``missing``
    is the lines that have none.
    """

    def __init__(self) -> None:
        self.missing, self.counts = 0, list[int]()
        self.sizes, self._sketches, self._digests = array("q"), array("d"), bytearray()

    def take(self, entry: Mapping[str, Any], where: str) -> None:
        """Take in a line; a value of the wrong kind is a ``LedgerError``."""
        if "observed" not in entry:
            self.missing += 1
            return
        where = f"{where}: 'observed"
        record = values.member(entry, "observed", f"{where}'")
        rows: list[Any] = [record.get(name) for name in LISTS]
        steps = {len(row) if isinstance(row, list) else -1 for row in rows}
        if len(steps) != 1 or -1 in steps:
            raise LedgerError(f"{where}' must have lists of one length, an element a step")
        sizes, digests, *vectors = rows
        self.sizes.extend(values.counts(sizes, f"{where}.batch_sizes'"))
        for step, digest in enumerate(digests):
            self._digests += values.digest(digest, f"{where}.batch_digests'", DIGEST_LENGTH)
            for name, vector in zip(VECTORS, vectors, strict=True):
                self._sketches.extend(values.numbers(vector[step], _WIDTH, f"{where}.{name}'"))
        self.counts.append(len(sizes))

    def __len__(self) -> int:
        return len(self.sizes)

    def sketches(self, name: str) -> NDArray[np.float64]:
        """Shape (S, 1 + BLOCKS): norm and blocks of "sum", "noise" or "parameters"; or NaN."""
        whole = np.asarray(self._sketches).reshape(-1, len(VECTORS), _WIDTH)
        return whole[:, VECTORS.index(name)]

    def digest(self, index: int) -> str:
        """The batch's digest of a step, counted from 0, in hexadecimal."""
        width = DIGEST_LENGTH // 2
        return self._digests[width * index : width * (index + 1)].hex()
