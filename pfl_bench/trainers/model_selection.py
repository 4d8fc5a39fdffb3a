"""Judgement of the models that a client has trained, to choose among them."""

from __future__ import annotations

from typing import Literal

import torch

from pfl_bench.client.forward import Forward
from pfl_bench.client.precision import new_loss_sum
from pfl_bench.evaluation.splits import measured_names
from pfl_bench.metrics import build_metrics
from pfl_bench.types import ConfigError, Examples, Task


class ClientModelSelector:
    """Scores the model that is in memory on a client's examples; the lower, the better.

    Args:
        forward: The model and how a batch goes through it.
        task: Its loss and its families of metrics.
        select_by: The lowest "loss" is best, or the highest "accuracy", then the lowest loss.
        batch_size: Examples a forward pass.

    Raises:
        ConfigError: The task's metrics have no accuracy, but it is asked for.
    """

    def __init__(
        self,
        forward: Forward,
        task: Task,
        select_by: Literal["loss", "accuracy"],
        batch_size: int,
    ) -> None:
        self._forward = forward
        self._task = task
        self._by_accuracy = select_by == "accuracy"
        self._batch_size = batch_size
        if self._by_accuracy:
            names = measured_names(forward, task.split("train"), build_metrics(self._task))
            if "train/accuracy" not in names:
                raise ConfigError(
                    "local.select_by: the metrics of this task have no accuracy; set it to loss"
                )

    @torch.no_grad()
    def score(self, examples: Examples) -> tuple[float, float]:
        """Score the model, put into evaluation mode, on examples as evaluation sees them.

        Args:
            examples: On the device of the model.

        Returns:
            What is compared first (the loss, or minus the accuracy), and the mean loss.
        """
        self._forward.module.eval()
        metrics = build_metrics(self._task) if self._by_accuracy else []
        total = new_loss_sum(self._forward.device)
        all_inputs = torch.split(examples.inputs, self._batch_size)
        all_targets = torch.split(examples.targets, self._batch_size)
        for inputs, targets in zip(all_inputs, all_targets, strict=True):
            outputs = self._forward.outputs(inputs)
            total += self._task.loss(outputs, targets).to(total.dtype) * len(inputs)
            for metric in metrics:
                metric.update(outputs, targets)
        loss = float(total) / len(examples)
        if not self._by_accuracy:
            return loss, loss
        values = {name: value for metric in metrics for name, value in metric.compute().items()}
        return -values["accuracy"], loss
