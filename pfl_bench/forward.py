"""How a batch goes through the model: transformed, laid out, in the run's precision."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from pfl_bench.types import BatchTransform, Task, TransformsBatches


class Forward:
    """The forward pass that engines, the central trainer and evaluation share.

    Args:
        module: The model.
        task: Its loss, and its transform of batches if it has one.
        device: Where the model lives.
        precision: "float32", or "bfloat16" for mixed precision.
        channels_last: Whether batches of images are laid out with their channels last, or as
            their axes are.

    Attributes:
        module: The model.
        device: Where it lives.
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
        self._task_loss: Callable[[Tensor, Tensor], Tensor] = task.loss
        self._transform: BatchTransform | None = None
        if isinstance(task, TransformsBatches):
            self._transform = task.transform
        self._mixed = precision == "bfloat16"
        self._channels_last = channels_last

    def draw(self, count: int, rng: np.random.Generator) -> Tensor | None:
        """Draw the augmentation of ``count`` training examples, on the CPU; None if there is none.

        The stream is untouched if the task transforms nothing.
        """
        return None if self._transform is None else self._transform.draw(count, rng)

    def prepare(self, inputs: Tensor, draws: Tensor | None) -> Tensor:
        """What the model takes, from a batch as it was read.

        Args:
            inputs: Shape (n, ...), on the device.
            draws: Rows of what ``draw`` gave, on the device; None for evaluation.
        """
        if self._transform is not None:
            inputs = self._transform(inputs, draws)
        if inputs.ndim == 4:
            layout = torch.channels_last if self._channels_last else torch.contiguous_format
            inputs = inputs.contiguous(memory_format=layout)
        return inputs

    def outputs(self, inputs: Tensor, draws: Tensor | None = None) -> Tensor:
        """The model's outputs on a batch as it was read, float32."""
        inputs = self.prepare(inputs, draws)
        if not self._mixed:
            outputs: Tensor = self.module(inputs)
            return outputs
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            outputs = self.module(inputs)
        return outputs.float()

    def loss(self, inputs: Tensor, targets: Tensor, draws: Tensor | None) -> Tensor:
        """Mean loss of a training batch as it was read; a differentiable scalar."""
        return self._task_loss(self.outputs(inputs, draws), targets)
