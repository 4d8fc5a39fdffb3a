"""Models of vectors: softmax regression and one hidden layer."""

from __future__ import annotations

from math import prod
from typing import Literal

from pydantic import Field
from torch import nn

from pfl_bench.types import DataFacts
from tasks.common.options import StrictOptions


class Options(StrictOptions):
    """Options of the models.

    Attributes:
        name: "softmax" (inputs -> classes) or "mlp" (inputs -> hidden -> classes, ReLU).
        hidden: Units of the hidden layer of "mlp", 1 to 4,096; "softmax" has none and ignores it.
    """

    name: Literal["softmax", "mlp"]
    hidden: int = Field(default=64, ge=1, le=4096)


def build(options: Options, facts: DataFacts) -> nn.Module:
    """Build a model that gives logits of shape (n, num_classes)."""
    num_inputs = prod(facts.input_shape)
    if options.name == "softmax":
        return nn.Sequential(nn.Flatten(), nn.Linear(num_inputs, facts.num_classes))
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(num_inputs, options.hidden),
        nn.ReLU(),
        nn.Linear(options.hidden, facts.num_classes),
    )
