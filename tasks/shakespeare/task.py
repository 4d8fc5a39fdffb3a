"""The Shakespeare task: predict a role's next letter from the 80 before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from pfl_bench.data import StoredTask, open_store
from pfl_bench.types import Examples
from tasks.common.classification import CrossEntropy
from tasks.common.options import StoredOptions

TASK_NAME = "shakespeare"


class Options(StoredOptions):
    """Options of the Shakespeare task: those of all tasks on a store."""


def to_examples(fields: Mapping[str, Any]) -> Examples:
    """Turn stored bytes into characters of shape (n, 80) and targets of shape (n,), both int64."""
    return Examples(
        torch.from_numpy(fields["inputs"]).to(torch.int64),
        torch.from_numpy(fields["targets"]).to(torch.int64),
    )


class ShakespeareTask(CrossEntropy, StoredTask):
    """Predict the next of 80 characters; cross entropy loss. The column "play" names the play."""


def build(options: Options) -> ShakespeareTask:
    """Open a prepared store; refused as ``open_store`` says."""
    store = open_store(options.data, TASK_NAME)
    fields = ("inputs", "targets")
    return ShakespeareTask(store, fields, to_examples, options.max_examples_per_user)
