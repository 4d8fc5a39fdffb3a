"""The Sent140 task: is a tweet's mood good or bad, one client a Twitter user."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor
from torch.nn import functional

from pfl_bench.data import Store, StoredTask, open_store
from pfl_bench.types import DataError, Examples
from tasks.common.text.words import PAD_ID

TASK_NAME = "sent140"
CLASSES = ("negative", "positive")
# Of the store's facts, what a summary repeats.
FACTS_SHOWN = ("split", "manual", "neutral", "vocabulary", "table1", "differs_from_published")


class Options(BaseModel):
    """Options of the Sent140 task.

    Attributes:
        data: Path of the store that ``pfl-bench data prepare sent140`` wrote.
        max_examples_per_user: A user with more gives a random subset of this size, drawn anew at
            each read for training; None for no limit.
        max_words: Words of a tweet that models get to see; None for all, which a bag of words
            needs. (The LSTM reads the first 25 of them by an option of its own.)
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    data: str
    max_examples_per_user: int | None = Field(default=None, ge=1)
    max_words: int | None = Field(default=None, ge=1, le=10_000)


class Sent140Task(StoredTask):
    """Two classes, cross entropy.

    Args:
        store: An open Sent140 store.
        options: As in ``Options``.

    Raises:
        DataError: The store lacks what models need to know of it.
    """

    metrics: tuple[str, ...] = ("classification",)

    def __init__(self, store: Store, options: Options) -> None:
        if "vocabulary" not in store.name_lists:
            raise DataError(
                f"task sent140: {options.data} has no vocabulary; prepare the data again"
            )
        self._width = options.max_words or store.facts.input_shape[0]
        known = store.facts.extra
        extra: dict[str, Any] = {key: known[key] for key in FACTS_SHOWN if key in known}
        # What the numbers mean, for models that load words' vectors.
        extra["store"] = options.data
        super().__init__(
            store,
            ("tokens", "targets"),
            self._to_examples,
            options.max_examples_per_user,
            input_shape=(self._width,),
            class_names=CLASSES,
            extra=extra,
        )

    def _to_examples(self, fields: Mapping[str, Any]) -> Examples:
        """Pad each tweet's words to one width: int64, shape (n, L)."""
        rows = fields["tokens"]
        inputs = np.full((len(rows), self._width), PAD_ID, dtype=np.int64)
        for place, row in enumerate(rows):
            words = row[: self._width]
            inputs[place, : len(words)] = words
        targets = torch.from_numpy(fields["targets"].astype(np.int64))
        return Examples(torch.from_numpy(inputs), targets)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy of logits of shape (n, 2) and targets of shape (n,)."""
        return functional.cross_entropy(outputs, targets)

    def example_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Cross entropy of each example, shape (n,)."""
        return functional.cross_entropy(outputs, targets, reduction="none")


def build(options: Options) -> Sent140Task:
    """Open a prepared store.

    Args:
        options: Options of the task.

    Raises:
        DataError: There is no such file, or it was prepared for another task or is damaged.
    """
    return Sent140Task(open_store(options.data, TASK_NAME), options)
