"""The model of a task in memory: what the user's callable makes."""

from __future__ import annotations

from torch import nn

from pfl_bench.data.held_task import HeldOptions
from pfl_bench.types import DataFacts


class Options(HeldOptions):
    """Options of its model.

    Attributes:
        name: Name of the callable.
        title: As the section ``task`` has it.
        content: As the section ``task`` has it.
        code: As the section ``task`` has it.
    """

    name: str


def build(options: Options, facts: DataFacts) -> nn.Module:
    """Make the model, drawn from torch's global generator; refused without the task."""
    return options.task().make_model()
