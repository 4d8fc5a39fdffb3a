"""Metrics of a split by a plain loop, which evaluation during training has no part in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pfl_bench.client.forward import Forward
from pfl_bench.config.schema import RunConfig
from pfl_bench.evaluation.evaluator import families_of
from pfl_bench.evaluation.splits import examples_at_once
from pfl_bench.metrics import build_metrics
from pfl_bench.types import Task


@torch.no_grad()
def plain_metrics(
    forward: Forward, task: Task, config: RunConfig, splits: Sequence[str], part: int = 1
) -> dict[str, float]:
    """Metrics over all examples of some splits, of the model that is in memory.

    Named as an evaluation names them ("val/loss"), with the means over clients of what examples
    have on their own ("val/loss_by_client"), and the numbers of examples and of clients that have
    any. Shared with evaluation are the data, the forward pass and each metric's formula; which
    examples are measured is decided here. With ``part`` k they are the first k-th of each split.
    """
    families, batch_size = families_of(task, config), config.evaluation.batch_size
    step = min(batch_size, examples_at_once(task.facts.input_shape, forward.device) or batch_size)
    was_training, result = forward.module.training, dict[str, float]()
    forward.module.eval()
    try:
        for name in splits:
            split, metrics = task.split(name), build_metrics(task, families)
            kept: list[list[Mapping[str, Tensor]]] = [[] for _ in metrics]
            end = -(-split.num_examples // part)
            for start in range(0, end, step):
                examples = split.read_range(start, min(start + step, end))
                outputs = forward.outputs(examples.inputs.to(forward.device))
                for metric, values in zip(metrics, kept, strict=True):
                    values.append(metric.update(outputs, examples.targets.to(forward.device)))
            if part > 1:
                continue  # of a few examples alone, metrics need not be defined
            found = {key: value for metric in metrics for key, value in metric.compute().items()}
            for values in kept:
                found |= _by_client(values, np.diff(split.offsets))
            found["num_examples"] = split.num_examples
            found["num_clients"] = int(np.count_nonzero(np.diff(split.offsets)))
            result |= {f"{name}/{key}": float(value) for key, value in found.items()}
    finally:
        forward.module.train(was_training)
    return result


def _by_client(
    values: Sequence[Mapping[str, Tensor]], sizes: NDArray[np.int64]
) -> dict[str, float]:
    """Mean over clients of their own means of each value.

    ``values`` have shape (n,), batch by batch, with "weight" where examples do not weigh the same;
    ``sizes``, shape (U,), are the clients' numbers of examples.
    """
    columns = {
        name: torch.cat([one[name].cpu().double() for one in values]).numpy() for name in values[0]
    }
    owners, weights = np.repeat(np.arange(len(sizes)), sizes), columns.pop("weight", None)
    counts = np.bincount(owners, weights, len(sizes))
    counted = True if weights is None else weights > 0  # what weighs nothing may be anything
    found = {}
    for name, column in columns.items():
        weighed = np.where(counted, column, 0.0) * (1.0 if weights is None else weights)
        sums = np.bincount(owners, weighed, len(sizes))[counts > 0]
        found[f"{name}_by_client"] = float((sums / counts[counts > 0]).mean())
    return found
