"""Models of the tasks on images: published networks, a small one, softmax regression."""

from __future__ import annotations

from math import prod
from typing import Literal

from pydantic import Field, model_validator
from torch import nn

from pfl_bench.types import DataFacts
from tasks.common.options import StrictOptions
from tasks.common.vision import dp_models, scatter_models
from tasks.common.vision.leaf_cnn import two_convolutions
from tasks.common.vision.scattering import COEFFICIENTS
from tasks.common.vision.small_cnn import small_cnn
from tasks.common.vision.timm_models import timm_model


class Options(StrictOptions):
    """Options of the models.

    Attributes:
        name: "lenet" (NIID-Bench), "mcmahan_cnn" (McMahan et al. 2017), "small_cnn" or "softmax";
            "opacus_cnn", "tfp_cnn", "tramer_cnn", "scatter_linear" or "scatter_cnn" of DP-SGD's
            standard tables; "timm".
        architecture: Of "timm" alone: timm's name of a network, such as "resnet18", which begins
            from scratch, with GroupNorm for BatchNorm.
        groups: Of the two on features alone: normalise by so many groups of an example's own
            channels; null to normalise by statistics that a private run releases.
    """

    name: Literal[
        "lenet",
        "mcmahan_cnn",
        "small_cnn",
        "softmax",
        "opacus_cnn",
        "tfp_cnn",
        "tramer_cnn",
        "scatter_linear",
        "scatter_cnn",
        "timm",
    ]
    architecture: str | None = None
    groups: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _timm_has_an_architecture(self) -> Options:
        if (self.name == "timm") != (self.architecture is not None):
            raise ValueError(
                "architecture: name: timm needs one, such as resnet18; no other has it"
            )
        return self

    @model_validator(mode="after")
    def _groups_are_of_features(self) -> Options:
        if self.groups is not None and self.name not in scatter_models.NAMES:
            names = " and ".join(scatter_models.NAMES)
            raise ValueError(f"groups: for {names} alone, not for {self.name}; remove it")
        if self.groups is not None and COEFFICIENTS % self.groups:
            raise ValueError(f"groups: {self.groups} does not divide {COEFFICIENTS} features")
        return self


def lenet(channels: int, side: int, num_classes: int) -> nn.Module:
    """Build two 5 x 5 convolutions, each with pooling, and three dense layers.

    44,426 parameters for MNIST, 62,006 for CIFAR-10.

    From shape (n, channels, side, side), sides of 16 or more, to logits of shape (n, num_classes).

    Source: Li et al. 2022 (NIID-Bench), section V; Flower's baseline niid_bench.
    """
    left = ((side - 4) // 2 - 4) // 2
    return nn.Sequential(
        nn.Conv2d(channels, 6, kernel_size=5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, kernel_size=5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * left**2, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, num_classes),
    )


def build(options: Options, facts: DataFacts) -> nn.Module:
    """Build a model that gives logits of shape (n, num_classes)."""
    if options.name in dp_models.NAMES:
        return dp_models.build_dp_model(options.name, options.groups, facts)
    if options.architecture is not None:
        return timm_model(options.architecture, facts)
    channels, side, _ = facts.input_shape
    if options.name == "lenet":
        return lenet(channels, side, facts.num_classes)
    if options.name == "mcmahan_cnn":
        return two_convolutions(channels, side, facts.num_classes, units=512)
    if options.name == "small_cnn":
        return small_cnn(facts.num_classes, channels)
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(facts.input_shape), facts.num_classes))
