"""Tasks: what one is, and what it may have beside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from pfl_bench.types.data import DataFacts, FederatedSplit

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor, nn


# What tasks may have beside their splits, by the protocols below.
_OPTIONAL = (
    "transform", "use_device", "reads_alike", "column_names", "column_values", "read_column",
    "example_losses", "training_loss",
)  # fmt: skip


class Task(Protocol):
    """A learning problem on federated data; built by ``tasks/<name>/task.py``.

    A task may also be one that ``TransformsBatches``, ``ReadsOnDevice`` or ``HasColumns``.
    """

    @property
    def facts(self) -> DataFacts:
        """Facts of the data."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metric families that evaluation computes."""

    @property
    def split_names(self) -> tuple[str, ...]:
        """Splits that the data has, "train" among them."""

    def split(self, name: str) -> FederatedSplit:
        """Open one split.

        Raises:
            DataError: The data has no split of that name.
        """

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Loss of a batch: the plain mean of its examples' losses, a differentiable scalar."""


class TaskAround:
    """Base of a task around another: it has the other's members but those that it defines anew."""

    def __init__(self, task: Task) -> None:
        self.facts, self.metrics, self.split_names = task.facts, task.metrics, task.split_names
        self.loss = task.loss
        # In the instance, where a check of a Protocol finds them, and only if the task has them.
        for name in _OPTIONAL:
            if hasattr(task, name):
                setattr(self, name, getattr(task, name))


class BatchTransform(Protocol):
    """Turns what a split reads into what the model takes: a batch at a time, on the device.

    Draws are made apart from their use, from a client's own stream, so that a result does not
    depend on which engine makes the batches, or in which thread. One without whose draws training
    examples have no loss, such as one that hides what is to be told, has ``needs_draws`` True.
    """

    def draw(self, count: int, rng: np.random.Generator) -> Tensor:
        """Draw the augmentation of ``count`` examples: shape (count, k), int64, on the CPU."""

    def __call__(self, inputs: Tensor, draws: Tensor | None) -> Tensor:
        """Transform a batch.

        Args:
            inputs: Shape (n, ...), as the split gave them, on the device of the model.
            draws: Shape (n, k), of ``draw``, on that device; None as evaluation sees the examples.

        Returns:
            Shape (n, ...), float32.
        """


@runtime_checkable
class TransformsBatches(Protocol):
    """Protocol of tasks whose inputs are transformed batch by batch."""

    @property
    def transform(self) -> BatchTransform:
        """Applied to each batch of inputs before the model."""


@runtime_checkable
class ReadsOnDevice(Protocol):
    """Protocol of tasks whose reading depends on the device of the model."""

    def use_device(self, device: torch.device) -> None:
        """Take note of the device; called once, before the first read."""


@runtime_checkable
class ReadsAlike(Protocol):
    """Protocol of tasks that say whether they give the same examples on every device."""

    @property
    def reads_alike(self) -> bool:
        """False where what is read depends on the device of the model, as decoded pictures may."""


@runtime_checkable
class HasColumns(Protocol):
    """Protocol of tasks whose examples can be told apart by a column, such as subreddit."""

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of the columns: one integer an example each."""

    def read_column(self, split: str, name: str, start: int, stop: int) -> NDArray[np.int64]:
        """Read a column of the examples ``start:stop`` of a split; shape (stop - start,).

        Raises:
            ConfigError: There is no such column.
        """

    def column_values(self, name: str) -> Sequence[str] | None:
        """Names of a column's values; None if they are numbers alone."""


@runtime_checkable
class GivesExampleLosses(Protocol):
    """Protocol of tasks whose loss can be had an example each without a detour."""

    def example_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Loss of each example of a batch: those whose plain mean is ``loss``.

        Args:
            outputs: Shape (n, ...).
            targets: Shape (n, ...).

        Returns:
            Shape (n,), differentiable.
        """


@runtime_checkable
class SkipsOutputs(Protocol):
    """Protocol of tasks whose loss leaves out costly outputs, such as those of padding."""

    def training_loss(self, module: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """``loss`` of what the module makes of the inputs, without the outputs that it ignores.

        In bfloat16 all of it runs under ``torch.autocast``: the loss is to be one that PyTorch
        computes in float32 there.

        Args:
            module: The task's model.
            inputs: Shape (n, ...).
            targets: Shape (n, ...).

        Returns:
            The same differentiable scalar, to rounding.
        """
