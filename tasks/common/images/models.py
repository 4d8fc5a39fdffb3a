"""Models of the tasks on images: published networks, a small one, softmax regression."""

from __future__ import annotations

import math
from collections.abc import Callable
from math import prod
from typing import Literal, cast

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from pfl_bench.types import ConfigError, DataFacts, did_you_mean
from tasks.common.options import StrictOptions, check_inputs
from tasks.common.sources import need_package, reason
from tasks.common.vision.normalization import small_cnn, two_convolutions, use_group_norm
from tasks.common.vision.pictures import IMAGENET_MEAN, IMAGENET_STD
from tasks.common.vision.scattering import (
    COEFFICIENTS,
    SCATTER_MODELS,
    is_scattering,
    scatter_model,
)


def timm_model(architecture: str, facts: DataFacts) -> nn.Module:
    """Build a network by timm's name, with GroupNorm instead of BatchNorm; nothing is downloaded.

    ConfigError without timm, for a name that it does not have, and for images it cannot take.
    """
    timm = need_package("timm", "model.name: timm", "`pip install 'pfl-bench[timm]'`")
    if not timm.is_model(architecture):
        hint = did_you_mean(architecture, timm.list_models(), ".")
        raise ConfigError(
            f"model.architecture: timm has no network '{architecture}'{hint} "
            "`timm.list_models()` names all of them, such as resnet18"
        )
    channels, side, _ = facts.input_shape
    has_one_size = timm.get_pretrained_cfg(architecture).fixed_input_size
    settings = {"img_size": side} if has_one_size else {}
    try:
        module = timm.create_model(
            architecture, num_classes=facts.num_classes, in_chans=channels, **settings
        )
        use_group_norm(module)
        with torch.no_grad():
            module.eval()(torch.zeros(1, channels, side, side))
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        raise ConfigError(
            f"model.architecture: {architecture} does not take images of {channels} x {side} x "
            f"{side}: {reason(error)}; take another network"
        ) from None
    return cast("nn.Module", module.train())


_MNIST = (0.1307,), (0.3081,)
# What divides the standard deviation of a standard normal that is cut off at two of its own.
_CUT_OFF = 0.87962566103423978

Activation = Callable[[], nn.Module]


class FixedNormalization(nn.Module):
    """Measures each channel of images, in 0 to 1, in a standard deviation from a mean."""

    mean: Tensor
    stddev: Tensor

    def __init__(self, mean: tuple[float, ...], stddev: tuple[float, ...]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1))
        self.register_buffer("stddev", torch.tensor(stddev).view(1, -1, 1, 1))

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalise ``inputs``, shape (n, C, height, width)."""
        return (inputs - self.mean) / self.stddev


def strided_cnn(num_classes: int, padding: int, activation: Activation) -> nn.Module:
    """Build two strided convolutions for images of 28 x 28 pixels; 26,010 parameters at 10 classes.

    From shape (n, 1, 28, 28) to logits of shape (n, num_classes). ``padding`` is that of the first
    convolution: 3 (which is TensorFlow's "same") or 2; ``activation`` builds what follows each
    layer but the last, ``nn.Identity`` for nothing.

    Source: Opacus, examples/mnist.py (padding 3, ReLU); TensorFlow Privacy,
        tutorials/mnist_dpsgd_tutorial.py (the same padding; none in its first version, ReLU later);
        Tramer and Boneh 2021, table 10 (padding 2, tanh).
    """
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=8, stride=2, padding=padding),
        activation(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, kernel_size=4, stride=2),
        activation(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 32),
        activation(),
        nn.Linear(32, num_classes),
    )


def tanh_cnn(num_classes: int) -> nn.Module:
    """Build six convolutions for images of 32 x 32 pixels; 550,570 parameters at 10 classes.

    From shape (n, 3, 32, 32) to logits of shape (n, num_classes).

    Source: Tramer and Boneh 2021, table 11; Papernot et al. 2020 (tanh).
    """
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 32), (32, 64), (64, 128)):
        for channels in (inputs, outputs):
            layers += [nn.Conv2d(channels, outputs, kernel_size=3, padding=1), nn.Tanh()]
        layers.append(nn.MaxPool2d(2))
    dense = [nn.Linear(128 * 4 * 4, 128), nn.Tanh(), nn.Linear(128, num_classes)]
    return nn.Sequential(*layers, nn.Flatten(), *dense)


def draw_he_normal(module: nn.Module) -> None:
    """Draw the weights of convolutions and linear layers as Keras' "he_normal", in place.

    Normal of variance 2 / inputs of a unit, cut off at two standard deviations; biases are zero.

    Source: He et al. 2015; Keras, initializers/random_initializers.py (VarianceScaling).
    """
    for layer in module.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            spread = math.sqrt(2.0 / layer.weight[0].numel()) / _CUT_OFF
            nn.init.trunc_normal_(layer.weight, 0.0, spread, -2.0 * spread, 2.0 * spread)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


# fmt: off
OfPixels = Literal[
    "lenet", "mcmahan_cnn", "opacus_cnn", "small_cnn", "softmax", "tfp_cnn", "timm", "tramer_cnn",
]
# fmt: on


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

    name: Literal[OfPixels, "scatter_linear", "scatter_cnn"]
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
        if self.groups is not None and self.name not in SCATTER_MODELS:
            names = " and ".join(SCATTER_MODELS)
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
    """Build a model that gives logits of shape (n, num_classes).

    "opacus_cnn" has ReLU and images normalised by MNIST's published mean and deviation; "tfp_cnn"
    no activations, and He's initialisation; "tramer_cnn" has tanh, and takes 28 or 32 pixels a
    side, these normalised as ImageNet.
    """
    if options.architecture is not None:
        return timm_model(options.architecture, facts)
    name, shape, classes = options.name, tuple(facts.input_shape), facts.num_classes
    channels, side, _ = shape
    task = facts.variant.split("-")[0]
    if name in SCATTER_MODELS:
        takes = "scattering features (data prepare ... features=scattering)"
        check_inputs(is_scattering(shape), task, name, takes, facts)
        return scatter_model(name, (channels, side, side), classes, options.groups)
    if name == "tramer_cnn" and shape == (3, 32, 32):
        return nn.Sequential(FixedNormalization(IMAGENET_MEAN, IMAGENET_STD), tanh_cnn(classes))
    if name in ("opacus_cnn", "tfp_cnn", "tramer_cnn"):
        check_inputs(shape == (1, 28, 28), task, name, "images of shape (1, 28, 28)", facts)
    if name == "tramer_cnn":
        return strided_cnn(classes, 2, nn.Tanh)
    if name == "opacus_cnn":
        return nn.Sequential(FixedNormalization(*_MNIST), strided_cnn(classes, 3, nn.ReLU))
    if name == "tfp_cnn":
        model = strided_cnn(classes, 3, nn.Identity)
        draw_he_normal(model)
        return model
    if name == "lenet":
        return lenet(channels, side, classes)
    if name == "mcmahan_cnn":
        return two_convolutions(channels, side, classes, units=512)
    if name == "small_cnn":
        return small_cnn(classes, channels)
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), classes))
