"""Normalisation that federated learning can use: no layer keeps statistics of a client's images.

BatchNorm's running statistics are computed from examples and would leave a client outside the
update, neither clipped nor noised. A network from scratch gets GroupNorm instead; a pretrained one
keeps the statistics that it came with, and they never move. Two small networks are built so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from pfl_bench.types import ConfigError

MAX_GROUPS = 32


class FrozenStatisticsNorm(nn.Module):
    """Batch normalisation by constant statistics, with a trainable scale and bias.

    In training and in evaluation it gives what BatchNorm gives in evaluation.

    ``num_features``, C, are the channels, axis 1 of the inputs.

    Attributes:
        weight: Shape (C,): scale, a parameter.
        bias: Shape (C,): a parameter.
        running_mean: Shape (C,): a buffer that nothing writes.
        running_var: Shape (C,): a buffer that nothing writes.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, num_features: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.num_features = num_features
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalise ``inputs``, shape (n, C, ...)."""
        # Not in training, so that this function does not write to the statistics.
        mean, variance = self.running_mean, self.running_var
        return functional.batch_norm(inputs, mean, variance, self.weight, self.bias, eps=self.eps)

    def forward_slots(self, inputs: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        """Normalise the images of L clients, each with a scale and bias of its own.

        Inputs, and outputs, have shape (L * n, C, ...); "weight" and "bias" have shape (L, C).
        """
        mean, variance = self.running_mean, self.running_var
        normal = functional.batch_norm(inputs, mean, variance, training=False, eps=self.eps)
        per_slot = inputs.shape[0] // len(weights["weight"])
        shape = (inputs.shape[0], -1, *[1] * (inputs.ndim - 2))
        scale, shift = (
            weights[name].repeat_interleave(per_slot, 0).view(shape) for name in ("weight", "bias")
        )
        return normal * scale + shift

    def extra_repr(self) -> str:
        """Text that ``print`` shows of the layer."""
        return f"{self.num_features}, eps={self.eps}"


def num_groups(channels: int) -> int:
    """Groups of a GroupNorm layer: 32 where the channels allow it.

    Otherwise the largest divisor of ``channels`` below 32 that leaves at least two channels a
    group; a group of one channel would be blank wherever the image has shrunk to one pixel.

    Source: Wu and He 2018, "Group Normalization" (32 groups).
    """
    most = max(1, min(MAX_GROUPS, channels // 2))
    return next(groups for groups in range(most, 0, -1) if channels % groups == 0)


def batchnorm_names(module: nn.Module) -> list[str]:
    """Names of the layers that compute statistics over a batch or keep them."""
    return [name for name, layer in module.named_modules() if isinstance(layer, _NormBase)]


def use_group_norm(module: nn.Module) -> None:
    """Replace every BatchNorm (1d, 2d, 3d), in place, by a GroupNorm of the same size and epsilon.

    Scales begin at 1, biases at 0.
    """

    def convert(layer: _BatchNorm) -> nn.Module:
        channels = layer.num_features
        norm = nn.GroupNorm(num_groups(channels), channels, eps=layer.eps, affine=layer.affine)
        # timm has a layer that normalises, and then activates.
        also = [layer.get_submodule(name) for name in ("drop", "act") if hasattr(layer, name)]
        return nn.Sequential(norm, *also) if also else norm

    _replace(module, convert)


def for_one_channel(resnet: nn.Module) -> nn.Module:
    """Give a fresh ResNet of torchvision a first layer for one channel, and GroupNorm, in place.

    BatchNorm's running statistics would leave a client outside the update.
    """
    first = nn.Conv2d(1, 64, kernel_size=7, stride=2, padding=3, bias=False)
    nn.init.kaiming_normal_(first.weight, mode="fan_out", nonlinearity="relu")
    resnet.conv1 = first
    use_group_norm(resnet)
    return resnet


def freeze_statistics(module: nn.Module) -> None:
    """Replace every BatchNorm, in place, by one whose statistics stay as they are.

    Scales, biases and statistics are taken over.
    """

    def convert(layer: _BatchNorm) -> nn.Module:
        frozen = FrozenStatisticsNorm(layer.num_features, layer.eps)
        if layer.running_mean is None or layer.running_var is None or not layer.affine:
            raise ConfigError(
                f"model.normalization: 'frozen' needs layers with statistics, scale and bias; "
                f"{layer} lacks one of them; use model.normalization=group"
            )
        frozen.load_state_dict(layer.state_dict(), strict=False)  # it also counts batches
        return frozen

    _replace(module, convert)


def _replace(module: nn.Module, convert: Callable[[_BatchNorm], nn.Module]) -> None:
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, _BatchNorm):
                setattr(parent, name, convert(child))
    left = batchnorm_names(module)
    if left:
        raise ConfigError(
            f"model.name: the network keeps layers that normalise over examples or keep running "
            f"statistics ({', '.join(left[:3])}), which no update carries and no clip bounds; "
            "choose another network"
        )


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
