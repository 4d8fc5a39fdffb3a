"""The Shakespeare task: predict a role's next letter from the 80 before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor
from torch.nn import functional

from pfl_bench.data import StoredTask, open_store
from pfl_bench.types import Examples

TASK_NAME = "shakespeare"


class Options(BaseModel):
    """Options of the Shakespeare task.

    Attributes:
        data: Path of the store that ``pfl-bench data prepare shakespeare`` wrote.
        max_examples_per_user: A role with more gives a random subset of this size, drawn anew at
            each read for training; None for no limit.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    data: str
    max_examples_per_user: int | None = Field(default=None, ge=1)


def to_examples(fields: Mapping[str, Any]) -> Examples:
    """Turn stored bytes into what models take.

    Args:
        fields: "inputs", uint8 of shape (n, 80), and "targets", uint8 of shape (n,).

    Returns:
        Inputs of shape (n, 80) and targets of shape (n,), both int64: numbers of characters.
    """
    return Examples(
        torch.from_numpy(fields["inputs"]).to(torch.int64),
        torch.from_numpy(fields["targets"]).to(torch.int64),
    )


class ShakespeareTask(StoredTask):
    """Predict the next of 80 characters; cross entropy loss. The column "play" names the play."""

    metrics: tuple[str, ...] = ("classification",)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy of logits of shape (n, 80) and targets of shape (n,)."""
        return functional.cross_entropy(outputs, targets)

    def example_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Cross entropy of each example, shape (n,)."""
        return functional.cross_entropy(outputs, targets, reduction="none")


def build(options: Options) -> ShakespeareTask:
    """Open a prepared store.

    Args:
        options: Options of the task.

    Raises:
        DataError: There is no such file, or it was prepared for another task or is damaged.
    """
    store = open_store(options.data, TASK_NAME)
    fields = ("inputs", "targets")
    return ShakespeareTask(store, fields, to_examples, options.max_examples_per_user)
