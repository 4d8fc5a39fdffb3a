"""Models of the CelebA task: the network of LEAF's code, and that of LEAF's paper."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator
from torch import nn

from pfl_bench.types import DataFacts
from tasks.common.options import StrictOptions, check_inputs, refuse
from tasks.common.vision.normalization import two_convolutions

CHANNELS = 32
NUM_BLOCKS = 4


class Options(StrictOptions):
    """Options of the CelebA models.

    Attributes:
        name: "leaf_cnn" (LEAF's code) or "cnn" (LEAF's paper).
        normalization: Of "leaf_cnn": "group" or "none". LEAF's code has BatchNorm, in training
            and in evaluation by the statistics of the batch at hand: what an image is taken for
            then depends on the images beside it, so no evaluation could be stated without its
            batches, and gradients of single examples do not exist. It is not offered.
        groups: Groups of "group", a divisor of 32.
    """

    name: Literal["leaf_cnn", "cnn"]
    normalization: Literal["group", "none"] = "group"
    groups: int = Field(default=8, ge=1, le=CHANNELS)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.name == "cnn":
            changed = self.changed("groups", "normalization")
            refuse(changed, "'cnn' has no normalisation; leave it out")
        if self.normalization == "none":
            refuse(self.changed("groups"), "is for normalization: group; leave it out")
        if CHANNELS % self.groups:
            raise ValueError(f"groups: {self.groups} does not divide the {CHANNELS} channels")
        return self


def leaf_cnn(num_classes: int, size: int, normalization: str, groups: int) -> nn.Module:
    """Build the network of LEAF's code; 31,202 parameters at 84 pixels with GroupNorm.

    Four times: convolution, normalisation, pooling, ReLU; then one linear layer.

    From shape (n, 3, size, size) to logits of shape (n, num_classes); ``normalization`` is "group"
    or "none".

    Source: Caldas et al. 2018, LEAF, models/celeba/cnn.py, with GroupNorm for BatchNorm.
    """
    layers: list[nn.Module] = []
    for block in range(NUM_BLOCKS):
        layers.append(nn.Conv2d(CHANNELS if block else 3, CHANNELS, kernel_size=3, padding=1))
        if normalization == "group":
            layers.append(nn.GroupNorm(groups, CHANNELS))
        # An odd side is rounded up, as TensorFlow's padding "same" does.
        layers += [nn.MaxPool2d(2, ceil_mode=True), nn.ReLU()]
        size = (size + 1) // 2
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(CHANNELS * size * size, num_classes))


def cnn(num_classes: int, size: int) -> nn.Module:
    """Build the network of LEAF's paper, which is FEMNIST's; 57,862,594 parameters at 84 pixels.

    From shape (n, 3, size, size) to logits of shape (n, num_classes).

    Source: Caldas et al. 2018, LEAF, appendix B: two convolutional layers followed by pooling, and
        a dense layer of 2,048 units; the kernels are those of models/femnist/cnn.py.
    """
    return two_convolutions(3, size, num_classes)


def build(options: Options, facts: DataFacts) -> nn.Module:
    """Build a model from inputs of shape (3, size, size) to logits of shape (n, num_classes)."""
    shape = tuple(facts.input_shape)
    fits = len(shape) == 3 and shape[0] == 3 and shape[1] == shape[2]
    check_inputs(fits, "celeba", options.name, "inputs of shape (3, size, size)", facts)
    if options.name == "cnn":
        return cnn(facts.num_classes, shape[1])
    return leaf_cnn(facts.num_classes, shape[1], options.normalization, options.groups)
