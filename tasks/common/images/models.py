"""Models of the tasks on images: two published networks, a small one, softmax regression."""

from __future__ import annotations

from math import prod
from typing import Literal

from torch import nn

from pfl_bench.types import DataFacts
from tasks.common.options import StrictOptions
from tasks.common.vision.leaf_cnn import two_convolutions
from tasks.common.vision.lenet import lenet
from tasks.common.vision.small_cnn import small_cnn


class Options(StrictOptions):
    """Options of the models.

    Attributes:
        name: "lenet" (NIID-Bench), "mcmahan_cnn" (McMahan et al. 2017), "small_cnn" or "softmax".
    """

    name: Literal["lenet", "mcmahan_cnn", "small_cnn", "softmax"]


def build(options: Options, facts: DataFacts) -> nn.Module:
    """Build a model that gives logits of shape (n, num_classes).

    Args:
        options: Which model.
        facts: Gives the number of classes and the shape of images.

    Returns:
        The model, freshly initialised from torch's global generator.
    """
    channels, side, _ = facts.input_shape
    if options.name == "lenet":
        return lenet(channels, side, facts.num_classes)
    if options.name == "mcmahan_cnn":
        return two_convolutions(channels, side, facts.num_classes, units=512)
    if options.name == "small_cnn":
        return small_cnn(facts.num_classes, channels)
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(facts.input_shape), facts.num_classes))
