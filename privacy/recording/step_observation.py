"""Observation of the steps of DP-SGD from outside the code that clips and noises.

Guarantee: nothing here changes a step or draws from its streams. A step is seen after it was taken:
its batch as it was drawn; the sum of clipped gradients; the noise, which is what the gradient that
the optimizer got, times the expected batch size, has beyond that sum; and the parameters. Of each
vector a *sketch* is kept, in float64: its norm, and the product of each of four blocks of its
elements with fixed pseudo-random signs. An audit holds them against the law that is claimed, and
against the same steps computed again (``privacy.reference.dp_sgd``).

All of it describes a simulation from the inside. No deployment would keep or publish it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privacy.recording.shard_observation import finite

BLOCKS = 4
# The vectors that are sketched, in the order of a record.
VECTORS = ("sum", "noise", "parameters")
# Hexadecimal digits of a batch's digest: as many as tell an accident.
DIGEST_LENGTH = 16
# Names the fixed signs; part of the format of a ledger.
_KEY = 20_251
Tensors = Sequence[Tensor]


class StepSketcher:
    """Sketches groups of three vectors, always along the same signs, on a device.

    ``shapes`` are of the parameters, in the model's order.
    """

    def __init__(self, shapes: Sequence[torch.Size], device: torch.device) -> None:
        # MPS has no float64.
        device = torch.device("cpu") if device.type == "mps" else device
        counts = [math.prod(shape) for shape in shapes]
        width = -(-sum(counts) // BLOCKS)
        rng = np.random.Generator(np.random.Philox(_KEY))
        signs = rng.integers(0, 2, BLOCKS * width, dtype=np.int8) * np.int8(2) - np.int8(1)
        self._signs = torch.from_numpy(signs).to(device)
        self._vectors = torch.zeros(
            len(VECTORS), BLOCKS * width, dtype=torch.float64, device=device
        )
        self._views = [
            [part.view(shape) for part, shape in zip(row.split(counts), shapes, strict=True)]
            for row in self._vectors[:, : sum(counts)]
        ]

    def sketch(
        self, sums: Tensors, gradients: Tensors, parameters: Tensors, batch_size: float
    ) -> Tensor:
        """Norm and blocks of a step's sum, noise and parameters, shape (3, 1 + BLOCKS), float64.

        ``sums`` are the clipped gradients', ``gradients`` what the optimizer stepped along and
        ``parameters`` where the step ended: a tensor of each parameter's shape. The noised sum was
        to be divided by ``batch_size``.
        """
        for views, tensors in zip(self._views, (sums, gradients, parameters), strict=True):
            for view, tensor in zip(views, tensors, strict=True):
                view.copy_(tensor.detach())
        self._vectors[1].mul_(batch_size).sub_(self._vectors[0])
        return self._sketched()

    def sketch_flat(self, vector: Tensor) -> NDArray[np.float64]:
        """Sketch a vector of shape (P,), float64; shape (1 + BLOCKS,)."""
        self._vectors[0, : len(vector)].copy_(vector)
        return np.asarray(self._sketched()[0].cpu().numpy())

    def _sketched(self) -> Tensor:
        vectors = self._vectors
        norms = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
        blocks = (vectors * self._signs).view(len(VECTORS), BLOCKS, -1).sum(dim=2)
        return torch.cat((norms, blocks), dim=1)


class StepObserver:
    """Watches the steps of one epoch after another.

    ``parameters`` are the trainable ones, in the memory where they move; every noised sum is to be
    divided by ``batch_size``, the expected batch.
    """

    def __init__(self, parameters: Tensors, batch_size: float) -> None:
        self._parameters = list(parameters)
        self._batch_size = float(batch_size)
        shapes = [parameter.shape for parameter in self._parameters]
        self._sketcher = StepSketcher(shapes, self._parameters[0].device)
        self._sizes, self._digests, self._sketches = list[int](), list[str](), list[Tensor]()

    def batches(self, drawn: Iterable[NDArray[np.int64]]) -> Iterator[NDArray[np.int64]]:
        """Hand on an epoch's batches, of shape (n,) each, with a note of each."""
        self._sizes, self._digests, self._sketches = [], [], []
        for batch in drawn:
            self._sizes.append(len(batch))
            self._digests.append(batch_digest(batch))
            yield batch

    @torch.no_grad()
    def step(self, sums: Tensors, gradients: Tensors) -> None:
        """See a step: a tensor of each parameter's shape; see ``StepSketcher.sketch``."""
        self._sketches.append(
            self._sketcher.sketch(sums, gradients, self._parameters, self._batch_size)
        )

    def record(self) -> dict[str, Any]:
        """Record of the epoch for the ledger, JSON-serialisable.

        A list of its steps under "batch_sizes" and "batch_digests", and of sketches under each of
        ``VECTORS``; a number that is not finite is None.
        """
        sketches = torch.stack(self._sketches).cpu().transpose(0, 1).tolist()
        return {
            "batch_sizes": list(self._sizes),
            "batch_digests": list(self._digests),
            # Nine digits are more than the float32 hold that they were made of.
            **{
                name: [[finite(float(f"{value:.9g}")) for value in row] for row in rows]
                for name, rows in zip(VECTORS, sketches, strict=True)
            },
        }


def batch_digest(batch: NDArray[np.int64]) -> str:
    """The first digits of the SHA-256 of a batch's examples, shape (n,), in their order."""
    found = hashlib.sha256(np.ascontiguousarray(batch, dtype="<i8").data).hexdigest()
    return found[:DIGEST_LENGTH]
