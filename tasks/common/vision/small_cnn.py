"""A small network for small images, and that of LEAF's image tasks."""

from __future__ import annotations

from torch import Tensor, nn

from tasks.common.vision.normalization import num_groups


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


SMALL_CNN = "small_cnn"


class GlobalMaxPool(nn.Module):
    """The maximum of each channel: ``AdaptiveMaxPool2d(1)``, whose gradient a GPU can repeat.

    Of equal values the first is the maximum in both, and alone gets the gradient.
    """

    def forward(self, inputs: Tensor) -> Tensor:
        """Shape (n, channels, height, width) to shape (n, channels, 1)."""
        return inputs.flatten(2).max(2, keepdim=True).values


def small_cnn(num_classes: int, channels: int = 3) -> nn.Module:
    """Build a network for images of 24 to 64 pixels a side; 24,913 parameters at 17 classes.

    It ends in the maximum over the image, as a label asks whether something is anywhere in it.

    From shape (n, channels, side, side) to logits of shape (n, num_classes).
    """
    layers: list[nn.Module] = []
    for inputs, outputs in ((channels, 16), (16, 32), (32, 64)):
        layers += [
            nn.Conv2d(inputs, outputs, kernel_size=3, padding=1),
            nn.GroupNorm(num_groups(outputs), outputs),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
    return nn.Sequential(*layers, GlobalMaxPool(), nn.Flatten(), nn.Linear(64, num_classes))
