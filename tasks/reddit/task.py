"""The Reddit task: predict the next token of a comment, one client an author."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pfl_bench.data import Store, StoredTask, open_store
from pfl_bench.metrics.next_token import NOT_COUNTED
from pfl_bench.types import Examples
from tasks.common.classification import token_losses
from tasks.common.options import StoredOptions
from tasks.reddit.models import NextTokens

TASK_NAME = "reddit"
FIELDS = ("tokens", "targets", "counted")


class Options(StoredOptions):
    """Options of the Reddit task, beside those of all tasks on a store.

    Attributes:
        reduction: Loss of a sequence: the "sum" over its counted tokens, as LEAF's rates of 8 are
            used here, or "mean": that sum by the length of the sequence, as LEAF's code is now.
    """

    reduction: Literal["sum", "mean"] = "sum"


def to_examples(arrays: Mapping[str, Any]) -> Examples:
    """Turn stored arrays into inputs and targets, int64, of shape (n, L); -100 does not count.

    "tokens" and "targets" have the shape (n, L) and "counted" (n,), all uint16; bit i of "counted"
    is set if target i counts.
    """
    targets = arrays["targets"].astype(np.int64)
    places = np.arange(targets.shape[1], dtype=np.uint16)
    targets[(arrays["counted"][:, None] >> places) & 1 == 0] = NOT_COUNTED
    return Examples(torch.from_numpy(arrays["tokens"].astype(np.int64)), torch.from_numpy(targets))


class RedditTask(StoredTask):
    """Next-token prediction on sequences of a few tokens; arguments as in ``Options``."""

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

        ``outputs`` are logits of shape (n, L, V), ``targets`` int64 of shape (n, L), -100 where a
        token does not count; without a counted token it is 0.

        Source: LEAF's models/reddit/stacked_lstm.py has both: the sum over time steps (commented
            out) and the mean over them, each of the mean over a batch.
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
        total = token_losses(outputs, targets).sum(dim=1)
        return total / targets.shape[1] if self._reduction == "mean" else total


def build(options: Options) -> RedditTask:
    """Open a prepared store; refused as ``open_store`` says."""
    store = open_store(options.data, TASK_NAME)
    return RedditTask(store, options.max_examples_per_user, options.reduction)
