"""DP-SGD computed again: plain, slow, one example at a time.

This is a referee. It shares with the trainer the task, the model and the streams of random numbers,
and none of its code. What is added up is added up in float64.

Definition. Of N examples, a step takes a batch B, and from parameters w makes

    g_i = gradient of the loss of example i alone, at w               for i in B
    s   = sum over i of g_i * min(1, C / |g_i|)                       (all parameters together)
    u   = (s + noise) / b            noise ~ N(0, (z * C)^2) in each element, b the expected batch
    v   = momentum * v + (u + weight_decay * w),   w = w - rate * v   (v is 0 before the first step)

An example whose gradient is not finite adds nothing. The denominator is b, whatever the batch.

Batches. "poisson": for each step of an epoch, N uniform numbers of the epoch's stream; an example
is in the batch if its number is below b / N. "shuffled": the epoch's stream orders the examples
once, and each step takes the next b of them, in ascending order.

Noise. One torch generator is seeded once a run and goes on from step to step: for each step, for
each parameter in the model's order, as many float32 normal numbers of deviation z * C as it has
elements.

Statistics of features, where a model has such: before the first step, the sum over all examples of
a vector clipped to its bound, with noise of deviation z_s times the bound, divided by N.

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

Batch = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run claims of its steps.

    Attributes:
        num_examples: N.
        batch_size: b.
        steps_per_epoch: Steps of an epoch.
        sampling: "poisson" or "shuffled".
        clip_norm: C.
        noise_multiplier: z.
        momentum: Of plain SGD; 0 for none.
        weight_decay: L2 penalty, added to the noised gradient.
    """

    num_examples: int
    batch_size: int
    steps_per_epoch: int
    sampling: str
    clip_norm: float
    noise_multiplier: float
    momentum: float
    weight_decay: float


def batches_of_epoch(settings: Settings, rng: np.random.Generator) -> Iterator[Batch]:
    """The batches of an epoch, drawn from its stream: shape (n,), int64, ascending, each."""
    count, size = settings.num_examples, settings.batch_size
    if settings.sampling == "poisson":
        for _ in range(settings.steps_per_epoch):
            yield np.flatnonzero(rng.random(count) < size / count).astype(np.int64)
    elif settings.sampling == "shuffled":
        order = rng.permutation(count)
        for step in range(settings.steps_per_epoch):
            yield np.sort(order[step * size : (step + 1) * size]).astype(np.int64)
    else:
        raise ValueError(f"no definition of batches that are {settings.sampling!r}")


class Noise:
    """The noise of one step after another.

    Args:
        settings: Bound and multiplier.
        shapes: Of the parameters, in the model's order.
        generator: Seeded as the run's was.
    """

    def __init__(
        self, settings: Settings, shapes: list[torch.Size], generator: torch.Generator
    ) -> None:
        self._stddev = settings.noise_multiplier * settings.clip_norm
        self._shapes, self._generator = shapes, generator

    def draw(self) -> Tensor:
        """The next step's, shape (P,), float64."""
        source = self._generator
        parts = [
            torch.normal(0.0, self._stddev, shape, generator=source, device=source.device)
            for shape in self._shapes
        ]
        return _flat(parts).cpu()


def clipped_sum(gradients: Iterable[Tensor], bound: float, length: int) -> Tensor:
    """Sum of gradients, each scaled down to the bound, in float64.

    Args:
        gradients: Of shape (P,), float64, each; one that is not finite adds nothing.
        bound: Largest L2 norm of one.
        length: P.
    """
    total = torch.zeros(length, dtype=torch.float64)
    for gradient in gradients:
        norm = float(gradient.norm())
        if math.isfinite(norm):
            total += gradient * min(1.0, bound / norm if norm else 1.0)
    return total


class Model:
    """A module with all its trainable parameters in one vector, and one example's gradient.

    Args:
        module: The model, which is changed in place.
        loss: Mean loss of outputs and targets.
    """

    def __init__(self, module: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        self._module, self._loss = module, loss
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        self.shapes = [p.shape for p in self._parameters]

    def parameters(self) -> Tensor:
        """A copy of them, shape (P,), float64."""
        return _flat([p.detach() for p in self._parameters])

    def set_parameters(self, vector: Tensor) -> None:
        """Set them, from shape (P,), float64."""
        start = 0
        for parameter in self._parameters:
            stop = start + parameter.numel()
            parameter.data.copy_(vector[start:stop].view(parameter.shape))
            start = stop

    def gradients(self, inputs: Tensor, targets: Tensor) -> Iterator[Tensor]:
        """The gradient of each example's loss alone, shape (P,), float64."""
        for i in range(len(inputs)):
            loss = self._loss(self._module(inputs[i : i + 1]), targets[i : i + 1])
            yield _flat(torch.autograd.grad(loss, self._parameters))


class DpSgd:
    """Takes steps.

    Args:
        settings: What is claimed.
        model: At the parameters that the first step starts from.
    """

    def __init__(self, settings: Settings, model: Model) -> None:
        self._settings, self._model = settings, model
        self.parameters = model.parameters()
        self._velocity = torch.zeros_like(self.parameters)

    def sum(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The clipped sum of a batch at today's parameters, shape (P,), float64."""
        gradients = self._model.gradients(inputs, targets) if len(inputs) else []
        return clipped_sum(gradients, self._settings.clip_norm, len(self.parameters))

    def step(self, total: Tensor, noise: Tensor, rate: float) -> None:
        """Step along a noised sum, its parts of shape (P,) each."""
        settings = self._settings
        gradient = (total + noise) / settings.batch_size
        gradient += settings.weight_decay * self.parameters
        self._velocity = settings.momentum * self._velocity + gradient
        self.parameters = self.parameters - rate * self._velocity
        self._model.set_parameters(self.parameters)


def noised_mean(
    vectors: NDArray[np.float64], bound: float, multiplier: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    """The release of one statistic.

    Args:
        vectors: Shape (N, K): one an example; one that is not finite adds nothing.
        bound: Largest L2 norm of one.
        multiplier: z_s.
        rng: The stream of the statistics: the mean's noise comes first, then the square's.

    Returns:
        Shape (K,).
    """
    total = np.zeros(vectors.shape[1])
    for vector in vectors:
        if np.isfinite(vector).all():
            total += vector * min(1.0, bound / max(math.hypot(*vector), bound))
    return (total + rng.normal(0.0, multiplier * bound, len(total))) / len(vectors)


def _flat(parts: Iterable[Tensor]) -> Tensor:
    return torch.cat([part.detach().double().reshape(-1) for part in parts])
