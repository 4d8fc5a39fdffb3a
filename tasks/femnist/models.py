"""Models of the FEMNIST task: LEAF's network, Reddi et al.'s, ResNet-18, softmax regression."""

from __future__ import annotations

from typing import Literal

from torch import nn

from pfl_bench.types import DataFacts
from tasks.common.options import StrictOptions, check_inputs
from tasks.common.vision.normalization import for_one_channel, two_convolutions
from tasks.femnist.forms import NUM_PIXELS, SIDE

IMAGE_SHAPE = (1, SIDE, SIDE)


class Options(StrictOptions):
    """Options of the FEMNIST models.

    Attributes:
        name: "leaf_cnn", "cnn", "resnet18" or "softmax".
    """

    name: Literal["leaf_cnn", "cnn", "resnet18", "softmax"]


def leaf_cnn(num_classes: int) -> nn.Module:
    """Build LEAF's network for shape (n, 1, 28, 28); 6,603,710 parameters at 62 classes.

    Source: Caldas et al. 2018, LEAF, models/femnist/cnn.py.
    """
    return two_convolutions(1, SIDE, num_classes)


def cnn(num_classes: int) -> nn.Module:
    """Build the network with dropout for EMNIST, shape (n, 1, 28, 28); 1,206,590 parameters at 62.

    Source: Reddi et al. 2021, "Adaptive Federated Optimization", table 4 (EMNIST CR).
    """
    return nn.Sequential(
        nn.Conv2d(1, 32, kernel_size=3),
        nn.ReLU(),
        nn.Conv2d(32, 64, kernel_size=3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(64 * 12 * 12, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, num_classes),
    )


def resnet18(num_classes: int) -> nn.Module:
    """Build torchvision's ResNet-18 for shape (n, 1, 28, 28); 11,202,046 parameters at 62.

    Its first layer and pooling are those for images of 224 pixels, as FedScale takes them, so the
    last block sees one pixel. It has GroupNorm; FedScale repeats the channel three times, and has
    BatchNorm, whose statistics no update carries here.

    Source: He et al. 2016, "Deep Residual Learning for Image Recognition"; Lai et al. 2022
        (FedScale), table 4.
    """
    from torchvision.models import resnet18 as for_colours

    return for_one_channel(for_colours(weights=None, num_classes=num_classes))


def build(options: Options, facts: DataFacts) -> nn.Module:
    """Build a model from images of shape (n, 1, 28, 28) to logits of shape (n, num_classes)."""
    fits = tuple(facts.input_shape) == IMAGE_SHAPE
    check_inputs(fits, "femnist", options.name, f"inputs of shape {IMAGE_SHAPE}", facts)
    if options.name == "softmax":
        return nn.Sequential(nn.Flatten(), nn.Linear(NUM_PIXELS, facts.num_classes))
    builders = {"leaf_cnn": leaf_cnn, "cnn": cnn, "resnet18": resnet18}
    return builders[options.name](facts.num_classes)
