"""Directions of canaries: vectors of norm 1, known to the auditor, compared with the release.

Guarantee: none is claimed. Directions are drawn from the auditor's own streams, so they are
independent of data, cohorts and noise, which the bounds rest on.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privacy.errors import PrivacyError

Streams = Callable[[int, int], np.random.Generator]

# A canary is sent this much shorter than the bound, which covers the rounding of its norm to
# float32: it must not be clipped, and its bit must say so.
_MARGIN = 1.0 - 2.0**-18
# Random directions of which there are more than P / 10 lie along each other too much.
_SPHERE_PART = 10


def _factor(index: int) -> float:
    """Norm of a canary's update, in parts of the bound.

    Just below it for even indices, just above it (to be clipped) for odd ones: their bits cancel,
    so that canaries do not drive an adaptive bound away.
    """
    return 1.0 / _MARGIN if index % 2 else _MARGIN


class Coordinates:
    """Distinct coordinates, drawn by the stream (0, 1); memory of a number each.

    There must be as many parameters.
    """

    def __init__(self, count: int, num_parameters: int, streams: Streams, device: torch.device):
        if count > num_parameters:
            raise PrivacyError(
                f"privacy.audit.count: {count} canaries need as many coordinates, but the model "
                f"has {num_parameters} parameters; lower count"
            )
        indices = streams(0, 1).choice(num_parameters, size=count, replace=False, shuffle=True)
        self._indices = torch.from_numpy(indices.astype(np.int64)).to(device)
        self._num_parameters = num_parameters
        self._device = device

    def update(self, index: int, norm: float) -> Tensor:
        """A vector with one element at a norm next to ``norm``: shape (P,), float32, new."""
        update = torch.zeros(self._num_parameters, dtype=torch.float32, device=self._device)
        update[self._indices[index]] = norm * _factor(index)
        return update

    def project(self, vector: Tensor) -> NDArray[np.float64]:
        """The elements of a vector of shape (P,) at the coordinates: shape (count,)."""
        return vector[self._indices.to(vector.device)].to("cpu", torch.float64).numpy()


class Sphere:
    """Uniformly random directions, drawn by the streams (0, 1), (0, 2) ..., one each.

    They are kept as a matrix: shape (count, P), float32, rows of norm 1. Too many for P or for the
    memory are refused.
    """

    def __init__(
        self, count: int, num_parameters: int, streams: Streams, device: torch.device, limit: int
    ) -> None:
        if count * _SPHERE_PART > num_parameters:
            raise PrivacyError(
                f"privacy.audit.count: {count} random directions in {num_parameters} parameters "
                f"would lie along each other; at most {num_parameters // _SPHERE_PART} fit "
                "(held-out ones counted); lower count, or set direction to coordinate"
            )
        needed = count * num_parameters * 4 / 2**20
        if needed > limit:
            raise PrivacyError(
                f"privacy.audit.count: {count} directions of {num_parameters} parameters take "
                f"{needed:.0f} MiB, more than memory_limit_mib = {limit}; lower count (here, "
                f"{int(limit * 2**20 / num_parameters / 4)} directions fit), raise "
                "memory_limit_mib, or set direction to coordinate"
            )
        matrix = torch.empty((count, num_parameters), dtype=torch.float32)
        for index in range(count):
            row = streams(0, 1 + index).standard_normal(num_parameters)
            matrix[index] = torch.from_numpy(row / np.linalg.norm(row))
        self._matrix = matrix.to(device)

    def update(self, index: int, norm: float) -> Tensor:
        """A row at a norm next to ``norm``: shape (P,), float32, new."""
        return self._matrix[index] * (norm * _factor(index))

    def project(self, vector: Tensor) -> NDArray[np.float64]:
        """The matrix times a vector of shape (P,): shape (count,)."""
        return torch.mv(self._matrix, vector.to(self._matrix)).to("cpu", torch.float64).numpy()


# So many vectors of norm 1.
Directions = Coordinates | Sphere
