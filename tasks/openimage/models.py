"""Models of the OpenImage task: ShuffleNet-V2 and MobileNet-V2, with GroupNorm for BatchNorm.

Beside them the small network of the FLAIR task, for small pictures on small machines.
"""

from __future__ import annotations

from typing import Literal, cast

from torch import nn

from pfl_bench.types import DataFacts
from tasks.common.options import StrictOptions, check_inputs
from tasks.common.vision.normalization import SMALL_CNN, small_cnn, use_group_norm


class Options(StrictOptions):
    """Options of the OpenImage models.

    Attributes:
        name: "small_cnn", or a torchvision network. FedScale's configuration of ShuffleNet-V2 is
            "shufflenet_v2_x2_0".
    """

    name: Literal[
        "shufflenet_v2_x0_5",
        "shufflenet_v2_x1_0",
        "shufflenet_v2_x1_5",
        "shufflenet_v2_x2_0",
        "mobilenet_v2",
        "small_cnn",
    ]


def build(options: Options, facts: DataFacts) -> nn.Module:
    """Build a network from shape (n, 3, size, size) to logits of shape (n, num_classes).

    BatchNorm's running statistics would leave a client outside the update, neither clipped nor
    averaged as the algorithm says; GroupNorm keeps none.

    Source: Ma et al. 2018 (ShuffleNet V2); Sandler et al. 2018 (MobileNetV2).
    """
    from torchvision.models import get_model

    fits = len(facts.input_shape) == 3 and facts.input_shape[0] == 3
    check_inputs(fits, "openimage", options.name, "inputs of shape (3, size, size)", facts)
    classes = facts.num_classes
    if options.name == SMALL_CNN:
        return small_cnn(classes)
    module = cast("nn.Module", get_model(options.name, weights=None, num_classes=classes))
    use_group_norm(module)
    return module
