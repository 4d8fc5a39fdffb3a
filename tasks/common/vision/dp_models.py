"""The models of DP-SGD's standard tables by name, for images of 28 and of 32 pixels a side."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pfl_bench.types import DataFacts
from tasks.common.shapes import check_inputs
from tasks.common.vision import imagenet, scatter_models
from tasks.common.vision.dp_cnn import draw_he_normal, strided_cnn, tanh_cnn

NAMES = ("opacus_cnn", "tfp_cnn", "tramer_cnn", *scatter_models.NAMES)
_MNIST = (0.1307,), (0.3081,)


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
