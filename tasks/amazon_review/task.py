"""The Amazon Review task: how many stars does a review give, one client a reviewer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from pfl_bench.data import Store, open_store
from pfl_bench.types import DataError, Examples
from tasks.common.fedscale.stored import LabelledTask, TaskOptions
from tasks.common.text.words import PAD_ID

TASK_NAME = "amazon_review"
# Of the store's facts, what a summary repeats.
FACTS_SHOWN = ("split", "vocabulary", "cut_reviews", "generated")


class Options(TaskOptions):
    """Options of the Amazon Review task: those of ``TaskOptions``."""


class AmazonReviewTask(LabelledTask):
    """Five classes, cross entropy.

    Args:
        store: An open Amazon Review store.
        options: As in ``Options``.

    Raises:
        DataError: The store lacks what models need to know of it.
    """

    def __init__(self, store: Store, options: Options) -> None:
        if "vocabulary" not in store.name_lists or "vocabulary" not in store.facts.extra:
            raise DataError(
                f"task amazon_review: {options.data} has no vocabulary; prepare the data again"
            )
        self._width = store.facts.input_shape[0]
        super().__init__(store, ("tokens", "targets"), self._to_examples, options)
        known = store.facts.extra
        extra: dict[str, Any] = {key: known[key] for key in FACTS_SHOWN if key in known}
        # What the numbers mean, for models that load words' vectors.
        extra["store"] = options.data
        self.facts = replace(self.facts, extra=extra)

    def _to_examples(self, fields: Mapping[str, Any]) -> Examples:
        """Pad each review's words to one width: int64, shape (n, L)."""
        rows = fields["tokens"]
        inputs = np.full((len(rows), self._width), PAD_ID, dtype=np.int64)
        for place, row in enumerate(rows):
            inputs[place, : len(row)] = row
        targets = torch.from_numpy(fields["targets"].astype(np.int64))
        return Examples(torch.from_numpy(inputs), targets)


def build(options: Options) -> AmazonReviewTask:
    """Open a prepared store.

    Args:
        options: Options of the task.

    Raises:
        DataError: There is no such file, or it was prepared for another task or is damaged.
    """
    return AmazonReviewTask(open_store(options.data, TASK_NAME), options)
