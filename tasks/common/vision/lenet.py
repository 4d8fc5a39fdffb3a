"""The LeNet-like network of NIID-Bench."""

from __future__ import annotations

from torch import nn


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
