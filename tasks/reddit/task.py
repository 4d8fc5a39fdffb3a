"""The Reddit task: predict the next token of a comment, one client an author."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from pfl_bench.data import Store, StoredTask, open_store
from pfl_bench.types import Examples
from tasks.common.options import StrictOptions
from tasks.reddit.models import NextTokens

TASK_NAME = "reddit"
# What PyTorch's cross entropy leaves out unless told otherwise.
NOT_COUNTED = -100
FIELDS = ("tokens", "targets", "counted")


class Options(StrictOptions):
    """Options of the Reddit task.

    Attributes:
        data: Path of the store that ``pfl-bench data prepare reddit`` wrote.
        max_examples_per_user: A user with more sequences gives a random subset of this size, drawn
            anew at each read for training; None for no limit.
        reduction: Loss of a sequence: the "sum" over its counted tokens, as LEAF's rates of 8 are
            used here, or "mean": that sum by the length of the sequence, as LEAF's code is now.
    """

    data: str
    max_examples_per_user: int | None = Field(default=None, ge=1)
    reduction: Literal["sum", "mean"] = "sum"


def to_examples(arrays: Mapping[str, Any]) -> Examples:
    """Turn stored arrays into what models take.

    Args:
        arrays: "tokens" and "targets" of shape (n, L), uint16, and "counted" of shape (n,),
            uint16: bit i is set if target i counts.

    Returns:
        Inputs of shape (n, L), int64, and targets of shape (n, L), int64, -100 where one does not
        count.
    """
    targets = arrays["targets"].astype(np.int64)
    places = np.arange(targets.shape[1], dtype=np.uint16)
    targets[(arrays["counted"][:, None] >> places) & 1 == 0] = NOT_COUNTED
    return Examples(torch.from_numpy(arrays["tokens"].astype(np.int64)), torch.from_numpy(targets))


class RedditTask(StoredTask):
    """Next-token prediction on sequences of a few tokens.

    Args:
        store: An open Reddit store.
        max_examples_per_user: As in ``Options``.
        reduction: As in ``Options``.
    """

    metrics: tuple[str, ...] = ("next_token",)

    def __init__(
        self,
        store: Store,
        max_examples_per_user: int | None = None,
        reduction: Literal["sum", "mean"] = "sum",
    ) -> None:
        super().__init__(store, FIELDS, to_examples, max_examples_per_user)
        self._reduction = reduction

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean over sequences of the sum (or, by option, the mean) of their tokens' losses.

        Args:
            outputs: Shape (n, L, V), logits.
            targets: Shape (n, L), int64, -100 where a token does not count.

        Returns:
            A differentiable scalar; 0 of sequences without a counted token.

        Source:
            LEAF's models/reddit/stacked_lstm.py has both: the sum over time steps (commented out)
            and the mean over them, each of the mean over a batch.
        """
        total = functional.cross_entropy(
            outputs.flatten(0, 1), targets.flatten(), ignore_index=NOT_COUNTED, reduction="sum"
        )
        return self._per_sequence(total, targets)

    def training_loss(self, module: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """``loss`` of the model's outputs, of which only those that count are computed.

        Most of the arithmetic is the output layer's, and the last sequence of a comment is seldom
        full: 8 % of the tokens that ``scripts/bench.py reddit`` generates are padding. Shapes are
        those of ``loss``.
        """
        if not isinstance(module, NextTokens):
            return self.loss(module(inputs), targets)
        counted = targets != NOT_COUNTED
        total = module.cross_entropy_where(inputs, counted, targets[counted])
        return self._per_sequence(total, targets)

    def _per_sequence(self, total: Tensor, targets: Tensor) -> Tensor:
        return total / (targets.numel() if self._reduction == "mean" else len(targets))

    def example_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Loss of each sequence, shape (n,): the sum, or by option the mean, over its tokens."""
        losses = functional.cross_entropy(
            outputs.flatten(0, 1), targets.flatten(), ignore_index=NOT_COUNTED, reduction="none"
        )
        total = losses.view(targets.shape).sum(dim=1)
        return total / targets.shape[1] if self._reduction == "mean" else total


def build(options: Options) -> RedditTask:
    """Open a prepared store.

    Args:
        options: Options of the task.

    Raises:
        DataError: There is no such file, or it was prepared for another task or is damaged.
    """
    store = open_store(options.data, TASK_NAME)
    return RedditTask(store, options.max_examples_per_user, options.reduction)
