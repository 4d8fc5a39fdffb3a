"""DP-SGD computed again: plain, slow, one example at a time; clipped gradients add up in float64.

Definition. Of N examples, a step takes a batch B, and from parameters w makes

    g_i = gradient of the loss of example i alone, at w               for i in B
    s   = sum over i of g_i * min(1, C / |g_i|)                       (all parameters together)
    u   = (s + noise) / b            noise ~ N(0, (z * C)^2) in each element, b the expected batch
    w   = the central optimizer's step along u (``privacy.reference.central``)

An example whose gradient is not finite adds nothing. The denominator is b, whatever the batch.
s is summed in float64; u, w and the optimizer's moments are rounded to float32, as a run holds
them: else each step would move w by a rounding, and a ReLU or a maximum of pooling would soon turn
over.

Batches. "poisson": for each step of an epoch, N uniform numbers of the epoch's stream; an example
is in the batch if its number is below b / N. "shuffled": the epoch's stream orders the examples
once, and each step takes the next b of them, in ascending order.

Noise. One torch generator is seeded once a run and goes on from step to step: for each step, for
each parameter in the model's order, as many float32 normal numbers of deviation z * C as it has
elements.

Statistics of features, where a model has such: before the first step, the sum over all examples of
a vector clipped to its bound, with noise of deviation z_s times the bound, divided by N. The stream
of the statistics gives the mean's noise first, then the square's.

Source: Abadi et al. 2016, "Deep learning with differential privacy", algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from privacy.reference.central import Optimizer


@dataclass(frozen=True, slots=True)
class Settings:
    """The run's claim of its steps: N, b, batches, C and z."""

    num_examples: int
    batch_size: int
    steps_per_epoch: int
    sampling: str  # "poisson" or "shuffled"
    clip_norm: float
    noise_multiplier: float


def batches_of_epoch(settings: Settings, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """The batches of an epoch, drawn from its stream: shape (n,), int64, ascending, each."""
    count, size = settings.num_examples, settings.batch_size
    order = rng.permutation(count) if settings.sampling == "shuffled" else None
    for step in range(settings.steps_per_epoch):
        if order is None:
            yield np.flatnonzero(rng.random(count) < size / count).astype(np.int64)
        else:
            yield np.sort(order[step * size : (step + 1) * size]).astype(np.int64)


def noise_of_step(settings: Settings, shapes: list[torch.Size], source: torch.Generator) -> Tensor:
    """The next step's noise, shape (P,), float64, for parameters of these shapes."""
    stddev = settings.noise_multiplier * settings.clip_norm
    return _flat(
        torch.normal(0.0, stddev, shape, generator=source, device=source.device) for shape in shapes
    ).cpu()


class DpSgd:
    """Takes steps from the parameters that a module has; it is changed in place."""

    def __init__(
        self, settings: Settings, module: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]
    ) -> None:
        self._settings, self._module, self._loss = settings, module, loss
        self._weights = [p for p in module.parameters() if p.requires_grad]
        self.shapes = [weight.shape for weight in self._weights]
        self.start()

    def start(self) -> None:
        """Begin from the module's parameters."""
        self.parameters = _flat(self._weights)

    def sum(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The sum of clipped gradients, one an example, at today's parameters, shape (P,), float64.

        One that is not finite adds nothing.
        """
        total = torch.zeros_like(self.parameters)
        parts = torch.split(total, [weight.numel() for weight in self._weights])
        for i in range(len(inputs)):
            loss = self._loss(self._module(inputs[i : i + 1]), targets[i : i + 1])
            gradients = torch.autograd.grad(loss, self._weights)
            norms = [torch.linalg.vector_norm(g, dtype=torch.float64) for g in gradients]
            norm = float(torch.stack(norms).norm())
            if math.isfinite(norm):
                factor = min(1.0, self._settings.clip_norm / norm if norm else 1.0)
                for part, gradient in zip(parts, gradients, strict=True):
                    part.add_(gradient.ravel(), alpha=factor)
        return total

    def remembers(self, inputs: Tensor, targets: Tensor) -> float:
        """Distance of two clipped gradients of a batch's first example: after its last, and again.

        Call it after ``sum``, with the same batch, shape (n, ...). 0 where model and loss keep
        nothing of the examples before.
        """
        known = self.sum(inputs[:1], targets[:1])
        return float((self.sum(inputs[:1], targets[:1]) - known).norm())

    def step(self, total: Tensor, noise: Tensor, optimizer: Optimizer, rate: float) -> Tensor:
        """Step along a noised sum, its parts of shape (P,) each; gives the gradient, shape (P,)."""
        gradient = (total.float() + noise.float()) / self._settings.batch_size
        after = optimizer.step(self.parameters, gradient, rate)
        optimizer.first = optimizer.first.float().double()
        optimizer.second = optimizer.second.float().double()
        self.place(after.float().double())
        return gradient

    def place(self, parameters: Tensor) -> None:
        """Go on from parameters of shape (P,), float64."""
        self.parameters = parameters
        parts = torch.split(parameters, [weight.numel() for weight in self._weights])
        for weight, part in zip(self._weights, parts, strict=True):
            weight.data.copy_(part.view(weight.shape))


def noised_mean(
    vectors: NDArray[np.float64], bound: float, multiplier: float, rng: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The release of one statistic, shape (K,), of vectors of shape (N, K), one an example.

    And its noise, in multiples of the standard deviation.
    """
    total = np.zeros(vectors.shape[1])
    for vector in vectors:
        if np.isfinite(vector).all():
            total += vector * min(1.0, bound / max(math.hypot(*vector), bound))
    noise = rng.standard_normal(len(total))
    return (total + multiplier * bound * noise) / len(vectors), noise


def _flat(parts: Iterable[Tensor]) -> Tensor:
    return torch.cat([part.detach().double().reshape(-1) for part in parts])
