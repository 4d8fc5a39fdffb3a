"""Forward pass of a batch: transformed, laid out, in the run's precision."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from pfl_bench.types import (
    BatchTransform,
    GivesExampleLosses,
    SkipsOutputs,
    Task,
    TransformsBatches,
)


class Forward:
    """The forward pass that engines, the central trainer and evaluation share.

    Precision is "float32", "tf32" (which ``pfl_bench.client.precision.use`` sets), or "bfloat16"
    for mixed precision. Batches of images are laid out with their channels last, or as their axes
    are.
    """

    def __init__(
        self,
        module: nn.Module,
        task: Task,
        device: torch.device,
        precision: str = "float32",
        channels_last: bool = False,
    ) -> None:
        self.module = module
        self.device = device
        # Of outputs and targets: a scalar; and the losses of shape (n,) whose mean it is.
        self.mean_loss: Callable[[Tensor, Tensor], Tensor] = task.loss
        self.example_losses: Callable[[Tensor, Tensor], Tensor] = self._losses_one_by_one
        if isinstance(task, GivesExampleLosses):
            self.example_losses = task.example_losses
        # Which outputs are left out depends on the data: a GPU would have to be waited for.
        self._skipping: SkipsOutputs | None = None
        if isinstance(task, SkipsOutputs) and device.type == "cpu":
            self._skipping = task
        self._transform: BatchTransform | None = None
        if isinstance(task, TransformsBatches):
            self._transform = task.transform
        self.precision = precision
        self.channels_last = channels_last

    def draw(self, count: int, rng: np.random.Generator) -> Tensor | None:
        """Draw the augmentation of ``count`` training examples, on the CPU; None if there is none.

        The stream is untouched if the task transforms nothing.
        """
        return None if self._transform is None else self._transform.draw(count, rng)

    def draw_to_measure(self, count: int, rng: np.random.Generator) -> Tensor | None:
        """Draw what a loss of training examples needs without augmentation; see ``draw``.

        Shape (count, k), or None: most tasks need nothing.
        """
        return self.draw(count, rng) if getattr(self._transform, "needs_draws", False) else None

    def prepare(self, inputs: Tensor, draws: Tensor | None) -> Tensor:
        """Inputs, shape (n, ...), as the model takes them, from a batch as it was read.

        Both are on the device, and so are ``draws``, rows of what ``draw`` gave; None for
        evaluation.
        """
        if self._transform is not None:
            inputs = self._transform(inputs, draws)
        if inputs.ndim == 4:
            layout = torch.channels_last if self.channels_last else torch.contiguous_format
            inputs = inputs.contiguous(memory_format=layout)
        return inputs

    def outputs(self, inputs: Tensor, draws: Tensor | None = None) -> Tensor:
        """The model's outputs on a batch as it was read, float32."""
        return self.apply(self.module, self.prepare(inputs, draws))

    def apply(self, module: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
        """Outputs of a module for prepared inputs in the run's precision, float32."""
        if self.precision != "bfloat16":
            return module(inputs)
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            outputs = module(inputs)
        return outputs.float()

    def loss(self, inputs: Tensor, targets: Tensor, draws: Tensor | None) -> Tensor:
        """Mean loss of a training batch as it was read; a differentiable scalar."""
        if self._skipping is None:
            return self.mean_loss(self.outputs(inputs, draws), targets)
        loss = partial(self._skipping.training_loss, self.module, targets=targets)
        return self.apply(loss, self.prepare(inputs, draws))

    def _losses_one_by_one(self, outputs: Tensor, targets: Tensor) -> Tensor:
        def loss(output: Tensor, target: Tensor) -> Tensor:
            return self.mean_loss(output.unsqueeze(0), target.unsqueeze(0))

        losses: Tensor = torch.func.vmap(loss)(outputs, targets)
        return losses


def is_mean_of_singles(
    loss: Callable[[Tensor, Tensor], Tensor], outputs: Tensor, targets: Tensor
) -> bool:
    """Whether the loss of a batch is the plain mean of the losses of its examples alone.

    Outputs and targets have shape (n, ...).
    """

    def mean(given: Tensor) -> Tensor:
        parts = [slice(place, place + 1) for place in range(len(given))]
        return torch.stack([loss(given[part], targets[part]) for part in parts]).mean()

    return have_same_gradients(lambda given: loss(given, targets), mean, outputs, 1e-3)


def have_same_gradients(
    ours: Callable[[Tensor], Tensor],
    theirs: Callable[[Tensor], Tensor],
    outputs: Tensor,
    tolerance: float,
) -> bool:
    """Whether two losses, scalars, have the same gradients by outputs, shape (n, ...).

    Losses themselves tell little: those of a model that has not learned are alike, and so are all
    their weighted means.
    """

    def gradient(loss: Callable[[Tensor], Tensor]) -> Tensor:
        leaf = outputs.detach().requires_grad_()
        with torch.enable_grad():
            return torch.autograd.grad(loss(leaf), leaf)[0]

    given, wanted = gradient(ours), gradient(theirs)
    scale = float(wanted.nan_to_num(0.0, 0.0, 0.0).abs().max())
    return torch.allclose(given, wanted, tolerance, tolerance * scale, equal_nan=True)
