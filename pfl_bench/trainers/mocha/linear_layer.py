"""Models that are one linear layer: finding it, checking it, setting it."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from pfl_bench.client.flat_model import FlatModel
from pfl_bench.client.forward import Forward
from pfl_bench.types import ConfigError, Examples


class LinearLayer:
    """The one linear layer of a model: where its weights and bias lie.

    It has ``num_classes`` K and ``num_features`` d; ``width`` is d, plus 1 if there is a bias.
    ConfigError if the trainable parameters are not those of one linear layer.
    """

    def __init__(self, model: FlatModel) -> None:
        shapes = [tuple(p.shape) for p in model.slices]
        is_layer = bool(shapes) and len(shapes[0]) == 2 and shapes[1:] in ([], [shapes[0][:1]])
        if not is_layer:
            raise ConfigError(
                "multitask: Mocha here is for one linear layer of features, whose parameters are "
                "a weight matrix of shape (classes, features) and maybe a bias of shape "
                f"(classes,), but this model's have the shapes {shapes[:4]}; choose such a model, "
                "such as softmax regression (a bag of words looks rows of words up, and has no "
                "features)"
            )
        self.num_classes, self.num_features = shapes[0]
        self.width = self.num_features + len(shapes) - 1
        self._slices = model.slices

    def apply(self, features: torch.Tensor) -> torch.Tensor:
        """Scores of the layer alone for features of shape (n, d): shape (n, K)."""
        scores = features @ self._slices[0].T
        return scores + self._slices[1] if len(self._slices) > 1 else scores

    def load(self, model: NDArray[np.float64]) -> None:
        """Set the layer to a model, shape (width, K); its last row is the bias, if there is one."""
        self._slices[0].copy_(torch.from_numpy(model[: self.num_features].T))
        if len(self._slices) > 1:
            self._slices[1].copy_(torch.from_numpy(model[-1]))

    def check(self, forward: Forward, examples: Examples) -> None:
        """Try the model on one example or more: it must be the linear layer and nothing else.

        ConfigError if it is more, targets are not one class an example, or features are not dense.
        """
        targets = examples.targets
        if targets.ndim != 1 or targets.is_floating_point():
            raise ConfigError(
                "multitask: Mocha needs one class an example, but the targets of this task have "
                f"shape {tuple(targets.shape)} and type {targets.dtype}"
            )
        inputs = forward.prepare(examples.inputs.to(forward.device), None)
        if not inputs.is_floating_point() or inputs[0].numel() != self.num_features:
            raise ConfigError(
                "multitask: Mocha needs dense features, a number each, but an example of this task "
                f"has shape {tuple(inputs.shape[1:])} and type {inputs.dtype} for a layer of "
                f"{self.num_features} features; choose a task and model of dense features"
            )
        # Random examples beside the real ones: a ReLU, say, may leave some as they are.
        generator = torch.Generator().manual_seed(0)
        drawn = torch.randn((32, *inputs.shape[1:]), generator=generator, dtype=inputs.dtype)
        inputs = torch.cat([inputs, drawn.to(inputs.device)])
        forward.module.eval()
        with torch.no_grad():
            expected = self.apply(inputs.flatten(1))
            given = forward.module(inputs)
        if given.shape != expected.shape or not torch.allclose(
            given, expected, rtol=1e-3, atol=1e-4
        ):
            raise ConfigError(
                "multitask: Mocha is for linear models, one layer from features to classes, but "
                "this model does something else to the layer's inputs or outputs; choose a linear "
                "model of the task, such as softmax regression"
            )
