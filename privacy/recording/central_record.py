"""Records of the central parameters and of who took part, seen from outside.

Guarantee: nothing here changes a round or draws from its streams. Everything is computed from the
central parameters, the release and the cohort, never from what the central step says of itself. So
an audit can take the recorded release through the configured optimizer and compare the result with
the parameters that the next line records: a step along anything else than the release shows.

A *sketch* of a vector is its norm, two projections on fixed pseudo-random signs, and eight fixed
coordinates. Projections see every coordinate, and follow an optimizer that is linear (SGD, momentum
and weight decay included). Coordinates follow every optimizer that acts coordinate by coordinate.

All of it describes a simulation from the inside. No deployment would keep or publish it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privacy.recording.shard_observation import finite

PROJECTIONS = 2
COORDINATES = 8
# Names the fixed signs and places; part of the format of a ledger.
_KEY = 20_250
_COLUMNS = 256
_ROWS = 512


class Sketcher:
    """Sketches vectors of one length, at least 1, always along the same signs and places.

    The signs are the product of a sign a row and a sign a column of the vector, written as a
    matrix of 256 columns: pairwise independent, in the memory of its rows. ``places``, shape
    (min(8, P),), are where the coordinates stand, ascending.
    """

    def __init__(self, length: int) -> None:
        rng = np.random.Generator(np.random.Philox(_KEY))
        chosen = rng.choice(length, size=min(COORDINATES, length), replace=False)
        self.places = torch.from_numpy(np.sort(chosen).astype(np.int64))
        self._columns = torch.from_numpy(rng.choice([-1.0, 1.0], (PROJECTIONS, _COLUMNS)))
        rows = -(-length // _COLUMNS)
        self._rows = torch.from_numpy(rng.integers(0, 2, (PROJECTIONS, rows), dtype=np.int8))

    def sketch(self, vector: Tensor) -> dict[str, Any]:
        """L2 "norm", "projections" and "coordinates" of a vector, shape (P,), float32, on the CPU.

        JSON-serialisable; a number that is not finite is None.
        """
        squares, sums = 0.0, torch.zeros(PROJECTIONS, dtype=torch.float64)
        for start in range(0, vector.numel(), _ROWS * _COLUMNS):
            part = vector[start : start + _ROWS * _COLUMNS].double()
            squares += float(torch.dot(part, part))
            if short := -part.numel() % _COLUMNS:
                part = torch.nn.functional.pad(part, (0, short))
            block, first = part.view(-1, _COLUMNS), start // _COLUMNS
            signs = self._rows[:, first : first + len(block)].double().mul_(2.0).sub_(1.0)
            sums += (signs @ block).mul_(self._columns).sum(dim=1)
        return {
            "norm": finite(math.sqrt(squares)),
            "projections": [finite(value) for value in sums.tolist()],
            # Nine digits are every bit of a float32.
            "coordinates": [finite(float(f"{x:.9g}")) for x in vector[self.places].tolist()],
        }


class CentralRecord:
    """Records a run's rounds: where the model stood, what was released, who took part.

    ``central``, shape (P,), are the central parameters, in the memory where they move.
    """

    def __init__(self, central: Tensor) -> None:
        self._central = central
        self._sketcher = Sketcher(central.numel())

    def round(
        self, release: Tensor, users: NDArray[np.int64], trained: Sequence[int]
    ) -> dict[str, Any]:
        """Record of a round before its central step.

        "central" has digest and sketch of the parameters before the step, "release" the sketch of
        the release, shape (P,). "users_sha256" is of who took part, shape (n,), ascending;
        "trained_sha256", which is equal where all goes well, of those whose updates were taken in,
        in any order.
        """
        return {
            "central": central_state(self._central, self._sketcher),
            "release": self._sketcher.sketch(release.detach().cpu()),
            "users_sha256": users_digest(users),
            "trained_sha256": users_digest(np.sort(np.array(trained, dtype=np.int64))),
        }


def central_state(central: Tensor, sketcher: Sketcher | None = None) -> dict[str, Any]:
    """Digest and sketch of central parameters, shape (P,), float32."""
    vector = central.detach().cpu().contiguous()
    sketch = (sketcher or Sketcher(vector.numel())).sketch(vector)
    return {"sha256": hashlib.sha256(vector.numpy().data).hexdigest(), **sketch}


def users_digest(users: NDArray[np.int64]) -> str:
    """SHA-256 of who took part, in hexadecimal: of indices of users, shape (n,), ascending."""
    return hashlib.sha256(np.ascontiguousarray(users, dtype="<i8").data).hexdigest()
