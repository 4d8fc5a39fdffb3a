"""The batches of a client's local training: the one place that orders, draws and counts them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pfl_bench.client.forward import Forward
from pfl_bench.types import Examples, LocalTraining

Batch = tuple[Tensor, Tensor, Tensor | None]


def num_used(count: int, local: LocalTraining) -> int:
    """Examples that a client with ``count`` of them trains on, once each."""
    if local.batch_fraction is None:
        return count
    return max(1, int(local.batch_fraction * count))


def examples_processed(
    num_examples: NDArray[np.int64], local: LocalTraining
) -> NDArray[np.float64]:
    """Examples that go through the local steps of clients that have so many each: shape (n,).

    It is what ``LocalResult.num_processed`` will be: an example counts again in each epoch.
    """
    counts = num_examples.astype(np.float64)
    if local.batch_fraction is not None:
        return np.maximum(1.0, np.floor(local.batch_fraction * counts))
    everything = counts * local.epochs
    if local.max_steps is None:
        return everything
    if local.batches_across_epochs:
        return np.minimum(everything, float(local.max_steps * local.batch_size))
    # The last batch of each epoch may be smaller, and is a step all the same.
    steps_per_epoch = np.maximum(1.0, np.ceil(counts / local.batch_size))
    whole_epochs, steps = np.divmod(float(local.max_steps), steps_per_epoch)
    limited = whole_epochs * counts + steps * local.batch_size
    result: NDArray[np.float64] = np.minimum(everything, limited)
    return result


def local_batches(
    examples: Examples,
    local: LocalTraining,
    forward: Forward,
    rng: np.random.Generator,
    device: torch.device,
) -> Iterator[Batch]:
    """Give a client's batches, step by step: inputs, targets and draws, on a device.

    Order and augmentation are drawn from ``rng``, the client's stream of local training.
    """
    count, batch_size, limit = len(examples), local.batch_size, local.max_steps
    if local.batch_fraction is not None:
        batch_size, limit = num_used(count, local), 1
    # As passes over the examples, or as one where batches run across epochs.
    all_orders, all_draws = _drawn(count, local, batch_size, limit, forward, rng)
    length = len(all_orders) if local.batches_across_epochs else count
    orders = torch.split(all_orders.to(device, non_blocking=True), length)
    draws_by_pass: Sequence[Tensor | None] = [None] * len(orders)
    if all_draws is not None:
        draws_by_pass = torch.split(all_draws.to(device, non_blocking=True), length)
    inputs = examples.inputs.to(device, non_blocking=True)
    targets = examples.targets.to(device, non_blocking=True)
    steps = 0
    for order, draws in zip(orders, draws_by_pass, strict=True):
        batch_inputs = torch.split(inputs.index_select(0, order), batch_size)
        batch_targets = torch.split(targets.index_select(0, order), batch_size)
        batch_draws: Sequence[Tensor | None] = [None] * len(batch_inputs)
        if draws is not None:
            batch_draws = torch.split(draws, batch_size)
        for batch in zip(batch_inputs, batch_targets, batch_draws, strict=True):
            yield batch
            steps += 1
            if steps == limit:
                return


def _drawn(
    count: int,
    local: LocalTraining,
    batch_size: int,
    limit: int | None,
    forward: Forward,
    rng: np.random.Generator,
) -> tuple[Tensor, Tensor | None]:
    """Order and draws of all epochs that are begun, end to end: copied to a GPU at once."""
    orders: list[Tensor] = []
    draws: list[Tensor] = []
    epochs = local.epochs
    if limit is not None and not local.batches_across_epochs:
        epochs = min(epochs, -(-limit // -(-count // batch_size)))
    for _ in range(epochs):
        orders.append(torch.from_numpy(rng.permutation(count)))
        drawn = forward.draw(count, rng)
        if drawn is not None:
            draws.append(drawn)
    return torch.cat(orders), torch.cat(draws) if draws else None
