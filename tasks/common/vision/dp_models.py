"""The models of DP-SGD's standard tables by name, for images of 28 and of 32 pixels a side."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from pfl_bench.types import DataFacts
from tasks.common.options import check_inputs
from tasks.common.vision import imagenet, scatter_models

NAMES = ("opacus_cnn", "tfp_cnn", "tramer_cnn", *scatter_models.NAMES)
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


def build_dp_model(name: str, groups: int | None, facts: DataFacts) -> nn.Module:
    """Build a model of ``NAMES``.

    Args:
        name: Which one: "opacus_cnn" (ReLU, normalised by MNIST's published mean and deviation),
            "tfp_cnn" (without activations, He's initialisation), "tramer_cnn" (tanh; of 28 or 32
            pixels a side, these normalised as ImageNet), "scatter_linear" or "scatter_cnn".
        groups: Of the last two: see ``scatter_model``.
        facts: Gives the shape of inputs and the number of classes.
    """
    shape, classes = tuple(facts.input_shape), facts.num_classes
    task = facts.variant.split("-")[0]
    if name in scatter_models.NAMES:
        takes = "scattering features (data prepare ... features=scattering)"
        check_inputs(scatter_models.is_scattering(shape), task, name, takes, facts)
        return scatter_models.scatter_model(name, (shape[0], shape[1], shape[2]), classes, groups)
    if name == "tramer_cnn" and shape == (3, 32, 32):
        return nn.Sequential(FixedNormalization(imagenet.MEAN, imagenet.STD), tanh_cnn(classes))
    check_inputs(shape == (1, 28, 28), task, name, "images of shape (1, 28, 28)", facts)
    if name == "tramer_cnn":
        return strided_cnn(classes, 2, nn.Tanh)
    if name == "opacus_cnn":
        return nn.Sequential(FixedNormalization(*_MNIST), strided_cnn(classes, 3, nn.ReLU))
    model = strided_cnn(classes, 3, nn.Identity)
    draw_he_normal(model)
    return model
