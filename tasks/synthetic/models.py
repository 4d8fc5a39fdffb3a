"""Models of the synthetic task: LEAF's perceptron, and the linear model without its sigmoid."""

from __future__ import annotations

from math import prod
from typing import Literal

from torch import nn

from pfl_bench.types import DataFacts
from tasks.common.options import StrictOptions


class Options(StrictOptions):
    """Options of the synthetic models.

    Attributes:
        name: "perceptron" (a linear layer with sigmoid activations, LEAF's; the sigmoids are the
            logits of the task's cross entropy, so the loss never comes near 0) or "softmax" (the
            linear layer alone; convex).
    """

    name: Literal["perceptron", "softmax"]


def build(options: Options, facts: DataFacts) -> nn.Module:
    """Build a model from features to scores of shape (n, num_classes).

    The weights start as those of LEAF's TensorFlow layer: Glorot's uniform, biases 0.

    Source: Caldas et al. 2018 (LEAF), appendix B ("a perceptron with sigmoid activations").
    """
    linear = nn.Linear(prod(facts.input_shape), facts.num_classes)
    nn.init.xavier_uniform_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear if options.name == "softmax" else nn.Sequential(linear, nn.Sigmoid())
