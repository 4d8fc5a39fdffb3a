"""The FEMNIST task: classify handwritten characters, one client a writer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor
from torch.nn import functional

from pfl_bench.data import Store, StoredTask, open_store
from pfl_bench.types import Examples

TASK_NAME = "femnist"
WHITE = 255.0


class Options(BaseModel):
    """Options of the FEMNIST task.

    Attributes:
        data: Path of the store that ``pfl-bench data prepare femnist`` wrote.
        max_examples_per_user: A user with more gives a random subset of this size, drawn anew at
            each read for training; None for no limit.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    data: str
    max_examples_per_user: int | None = Field(default=None, ge=1)


def to_examples(fields: Mapping[str, Any]) -> Examples:
    """Turn stored bytes into what models take.

    Args:
        fields: "inputs", images of shape (n, 28, 28), 255 = white ground; "targets", shape (n,).

    Returns:
        Inputs of shape (n, 1, 28, 28), float32 in [0, 1], and int64 targets of shape (n,).
    """
    inputs = torch.from_numpy(fields["inputs"]).unsqueeze(1).to(torch.float32).div_(WHITE)
    return Examples(inputs, torch.from_numpy(fields["targets"]).to(torch.int64))


class FemnistTask(StoredTask):
    """Classify handwritten characters; cross entropy loss.

    Args:
        store: An open FEMNIST store.
        max_examples_per_user: As in ``Options``.
    """

    metrics: tuple[str, ...] = ("classification",)

    def __init__(self, store: Store, max_examples_per_user: int | None) -> None:
        # The store keeps images as (28, 28); models see a channel axis.
        shape = (1, *store.facts.input_shape)
        fields = ("inputs", "targets")
        super().__init__(store, fields, to_examples, max_examples_per_user, input_shape=shape)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy of logits of shape (n, num_classes) and targets of shape (n,)."""
        return functional.cross_entropy(outputs, targets)

    def example_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Cross entropy of each example, shape (n,)."""
        return functional.cross_entropy(outputs, targets, reduction="none")


def build(options: Options) -> FemnistTask:
    """Open a prepared store.

    Args:
        options: Options of the task.

    Raises:
        DataError: There is no such file, or it was prepared for another task or is damaged.
    """
    return FemnistTask(open_store(options.data, TASK_NAME), options.max_examples_per_user)
