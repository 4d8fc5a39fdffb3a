"""The FEMNIST task: classify handwritten characters, one client a writer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from pfl_bench.data import Store, StoredTask, open_store
from pfl_bench.types import Examples
from tasks.common.classification import CrossEntropy
from tasks.common.options import StoredOptions

TASK_NAME = "femnist"
WHITE = 255.0


class Options(StoredOptions):
    """Options of the FEMNIST task: those of all tasks on a store."""


def to_examples(fields: Mapping[str, Any]) -> Examples:
    """Turn stored bytes into inputs of shape (n, 1, 28, 28), float32 in [0, 1], and int64 targets.

    "inputs" has the shape (n, 28, 28), 255 = white ground, "targets" (n,).
    """
    inputs = torch.from_numpy(fields["inputs"]).unsqueeze(1).to(torch.float32).div_(WHITE)
    return Examples(inputs, torch.from_numpy(fields["targets"]).to(torch.int64))


class FemnistTask(CrossEntropy, StoredTask):
    """Classify handwritten characters; cross entropy loss."""

    def __init__(self, store: Store, max_examples_per_user: int | None) -> None:
        # The store keeps images as (28, 28); models see a channel axis.
        shape = (1, *store.facts.input_shape)
        fields = ("inputs", "targets")
        super().__init__(store, fields, to_examples, max_examples_per_user, input_shape=shape)


def build(options: Options) -> FemnistTask:
    """Open a prepared store; refused as ``open_store`` says, or if the options do not fit it."""
    return FemnistTask(open_store(options.data, TASK_NAME), options.max_examples_per_user)
