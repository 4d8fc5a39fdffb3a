"""Evaluation on a whole split: pooled, and as a distribution over clients."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from pfl_bench.forward import Forward
from pfl_bench.reading import read_ahead
from pfl_bench.types import FederatedSplit, Metric

PERCENTILES = (10, 50, 90)


@torch.no_grad()
def evaluate(
    forward: Forward,
    split: FederatedSplit,
    metrics: Sequence[Metric],
    batch_size: int,
    data_workers: int = 0,
) -> dict[str, float]:
    """Evaluate a model on all examples of a split, in one pass.

    Args:
        forward: The model and how a batch goes through it; the model is put in evaluation mode,
            and back into the mode it was in.
        split: Users and examples.
        metrics: Empty accumulators.
        batch_size: Examples a forward pass.
        data_workers: Threads that read ahead; 0 reads in line.

    Returns:
        Under "<split>/": each metric over all examples (every example weighs the same); for each
        value that examples have on their own, such as accuracy, also "<value>_by_client" (mean of
        the clients' means: every client weighs the same) and "client_<value>_p10", "_p50", "_p90"
        (percentiles over clients, linear between ranks); and "num_examples", "num_clients".
    """
    module, device = forward.module, forward.device
    was_training = module.training
    module.eval()
    columns: dict[str, list[NDArray[np.float64]]] = {}
    jobs = (
        partial(split.read_range, start, min(start + batch_size, split.num_examples))
        for start in range(0, split.num_examples, batch_size)
    )
    for examples in read_ahead(jobs, data_workers):
        outputs = forward.outputs(examples.inputs.to(device, non_blocking=True))
        targets = examples.targets.to(device, non_blocking=True)
        for metric in metrics:
            for name, values in metric.update(outputs, targets).items():
                columns.setdefault(name, []).append(values.double().cpu().numpy())
    module.train(was_training)
    result: dict[str, float] = {}
    for metric in metrics:
        result.update(metric.compute())
    for name, parts in columns.items():
        result.update(_over_clients(name, np.concatenate(parts), split.offsets))
    result["num_examples"] = split.num_examples
    result["num_clients"] = split.num_users
    return {f"{split.name}/{name}": float(value) for name, value in result.items()}


@torch.no_grad()
def measured_names(
    forward: Forward, split: FederatedSplit, metrics: Sequence[Metric]
) -> tuple[str, ...]:
    """Names of what ``evaluate`` gives, found out on one example.

    Args:
        forward: The model and how a batch goes through it.
        split: Users and examples.
        metrics: Empty accumulators; not empty afterwards.
    """
    was_training = forward.module.training
    forward.module.eval()
    examples = split.read_range(0, 1)
    outputs = forward.outputs(examples.inputs.to(forward.device))
    names = ["num_examples", "num_clients"]
    for metric in metrics:
        by_example = metric.update(outputs, examples.targets.to(forward.device))
        names += metric.compute()
        for name in by_example:
            names += _over_clients(name, np.zeros(1), np.array([0, 1]))
    forward.module.train(was_training)
    return tuple(f"{split.name}/{name}" for name in names)


def _over_clients(
    name: str, values: NDArray[np.float64], offsets: NDArray[np.int64]
) -> dict[str, float]:
    means = np.add.reduceat(values, offsets[:-1]) / np.diff(offsets)
    result = {f"{name}_by_client": float(means.mean())}
    finite = means[np.isfinite(means)]
    for percentile in PERCENTILES:
        value = np.percentile(finite, percentile) if len(finite) == len(means) else np.nan
        result[f"client_{name}_p{percentile}"] = float(value)
    return result
