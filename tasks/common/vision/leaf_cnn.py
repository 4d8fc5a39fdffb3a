"""The network of LEAF's image tasks."""

from __future__ import annotations

from torch import nn


def two_convolutions(channels: int, side: int, num_classes: int, units: int = 2048) -> nn.Module:
    """Build two convolutional layers followed by pooling, and a dense layer.

    From shape (n, channels, side, side) to logits of shape (n, num_classes). The dense layer has
    2,048 units in LEAF, 512 in McMahan et al. 2017.

    Source: Caldas et al. 2018, LEAF, appendix B and models/femnist/cnn.py.
    """
    return nn.Sequential(
        nn.Conv2d(channels, 32, kernel_size=5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, kernel_size=5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (side // 4) ** 2, units),
        nn.ReLU(),
        nn.Linear(units, num_classes),
    )
