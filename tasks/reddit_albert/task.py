"""The task of Reddit with ALBERT: fill in masked tokens of comments, one client an author."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from pfl_bench.data import Store, open_store
from pfl_bench.types import DataError, Examples
from tasks.common.fedscale.stored import PartitionedTask, TaskOptions
from tasks.reddit_albert.masking import FIRST_WORD, NOT_COUNTED, HideTokens, MaskedSplit

TASK_NAME = "reddit_albert"
FIELDS = ("tokens",)


class Options(TaskOptions):
    """Options of the task, beside those of ``TaskOptions``.

    Attributes:
        mask_probability: Of each ordinary token to be hidden.
    """

    mask_probability: float = Field(default=0.15, gt=0, le=1)


def to_examples(arrays: Mapping[str, Any]) -> Examples:
    """Turn stored blocks into tokens: int64, shape (n, L), which are inputs and targets alike."""
    tokens = torch.from_numpy(arrays["tokens"].astype(np.int64))
    return Examples(tokens, tokens)


class RedditAlbertTask(PartitionedTask):
    """Masked language modelling on blocks of tokens.

    Metrics are those of the family "next_token", of the hidden tokens alone: "perplexity" and
    "loss" are the published ones.
    """

    metrics: tuple[str, ...] = ("next_token",)

    def __init__(self, store: Store, options: Options) -> None:
        if store.facts.num_classes <= FIRST_WORD:
            raise DataError(
                f"task reddit_albert: {options.data} has no ordinary token in its vocabulary; "
                "prepare the data again"
            )
        super().__init__(store, FIELDS, to_examples, options)
        self._probability = options.mask_probability
        length, size = store.facts.input_shape[0], store.facts.num_classes
        self.transform = HideTokens(options.mask_probability, length, size)

    # Not a stored split, but one that hides what evaluation reads.
    def split(self, name: str) -> MaskedSplit:  # type: ignore[override]
        """Open one split, whose tokens are hidden when evaluation reads them."""
        return MaskedSplit(super().split(name), self.transform)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean over blocks of what ``example_losses`` gives; a differentiable scalar.

        FedScale's is the mean over the hidden tokens of all blocks of a batch, by which a block
        with more of them weighs more; here each block stands for itself, as example-level DP needs.
        ``outputs`` are logits of shape (n, L, V); ``targets`` int64 of shape (n, L): all tokens
        (training), or -100 where one was not hidden.
        """
        return self.example_losses(outputs, targets).mean()

    def example_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Loss of each block, shape (n,): that of its hidden tokens, by their number.

        Where the targets are all tokens, by the number that is expected: the ones that are not
        hidden have no loss, and which these are the targets do not say.
        """
        losses = functional.cross_entropy(
            outputs.flatten(0, 1), targets.flatten(), ignore_index=NOT_COUNTED, reduction="none"
        )
        counted = (targets != NOT_COUNTED).sum(dim=1).clamp_min(1)
        expected = self._probability * (targets >= FIRST_WORD).sum(dim=1).clamp_min(1)
        told = (targets == NOT_COUNTED).any(dim=1)
        return losses.view(targets.shape).sum(dim=1) / torch.where(told, counted, expected)


def build(options: Options) -> RedditAlbertTask:
    """Open a prepared store; refused as ``open_store`` says, or if the options do not fit it."""
    return RedditAlbertTask(open_store(options.data, TASK_NAME), options)
