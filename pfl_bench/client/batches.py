"""The batches of a client's local training: the one place that orders, draws and counts them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from pfl_bench.client.forward import Forward
from pfl_bench.types import Examples, LocalTraining

Batch = tuple[Tensor, Tensor, Tensor | None]


def num_used(count: int, local: LocalTraining) -> int:
    """Examples that a client with ``count`` of them trains on, once each."""
    if local.batch_fraction is None:
        return count
    return max(1, int(local.batch_fraction * count))


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
    inputs = examples.inputs.to(device, non_blocking=True)
    targets = examples.targets.to(device, non_blocking=True)
    batch_size, limit = local.batch_size, local.max_steps
    if local.batch_fraction is not None:
        batch_size, limit = num_used(len(examples), local), 1
    steps = 0
    for order, draws in _passes(len(examples), local, forward, rng, device):
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


def _passes(
    count: int,
    local: LocalTraining,
    forward: Forward,
    rng: np.random.Generator,
    device: torch.device,
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Order and draws of each epoch, or of all epochs together if batches run across them."""
    orders: list[Tensor] = []
    draws: list[Tensor] = []
    for epoch in range(1, local.epochs + 1):
        orders.append(torch.from_numpy(rng.permutation(count)))
        drawn = forward.draw(count, rng)
        if drawn is not None:
            draws.append(drawn)
        if epoch == local.epochs or not local.batches_across_epochs:
            yield (
                torch.cat(orders).to(device, non_blocking=True),
                torch.cat(draws).to(device, non_blocking=True) if draws else None,
            )
            orders, draws = [], []
