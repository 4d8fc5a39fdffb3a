"""Models of the Google Speech task: ResNets for one channel, with GroupNorm for BatchNorm.

Beside them the small network of the FLAIR task, for one channel, for small machines.
"""

from __future__ import annotations

from typing import Literal, cast

from torch import nn

from pfl_bench.types import DataFacts
from tasks.common.options import StrictOptions, check_inputs
from tasks.common.vision.normalization import for_one_channel, small_cnn


class Options(StrictOptions):
    """Options of the Google Speech models.

    Attributes:
        name: FedScale's is "resnet34"; the smaller ones are for small machines.
    """

    name: Literal["resnet18", "resnet34", "small_cnn"]


def build(options: Options, facts: DataFacts) -> nn.Module:
    """Build a network from spectrograms, shape (n, 1, m, t), to logits, (n, num_classes).

    A ResNet is torchvision's but for the first convolution, which takes one channel, and GroupNorm:
    BatchNorm's running statistics would leave a client outside the update. "resnet34" has
    21,296,355 parameters at 35 words.

    Source: He et al. 2016; FedScale's repository, utils/models/specialized/resnet_speech.py.
    """
    from torchvision.models import resnet18, resnet34

    fits = len(facts.input_shape) == 3 and facts.input_shape[0] == 1
    check_inputs(fits, "google_speech", options.name, "inputs of shape (1, mels, frames)", facts)
    if options.name == "small_cnn":
        small = cast("nn.Sequential", small_cnn(facts.num_classes))
        small[0] = nn.Conv2d(1, 16, kernel_size=3, padding=1)
        return small
    make = resnet34 if options.name == "resnet34" else resnet18
    return for_one_channel(make(weights=None, num_classes=facts.num_classes))
