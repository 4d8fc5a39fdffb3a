"""The small networks of DP-SGD's standard tables on MNIST, Fashion-MNIST and CIFAR-10."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import nn

Activation = Callable[[], nn.Module]

# What divides the standard deviation of a standard normal that is cut off at two of its own.
_CUT_OFF = 0.87962566103423978


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
