"""A task on a store of labelled images: the clients of a row, made when it is loaded."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pfl_bench.data import InMemorySplit, Store
from pfl_bench.types import BatchTransform, ConfigError
from tasks.common.classification import InMemoryTask
from tasks.common.images.store import WHITE, WRITER, Images
from tasks.common.options import StrictOptions
from tasks.common.partition.options import (
    Assignment,
    FeatureNoise,
    PartitionOptions,
    Writers,
    assign,
    by_writer,
    pooled,
)

PADDING = 4


class Scale:
    """Turns bytes into numbers in 0 to 1; nothing is drawn."""

    def draw(self, count: int, rng: np.random.Generator) -> Tensor:
        """Draw nothing: shape (count, 1), zeros; the stream is untouched."""
        return torch.zeros((count, 1), dtype=torch.int64)

    def __call__(self, inputs: Tensor, draws: Tensor | None) -> Tensor:
        """Scale a batch, shape (n, ...), to float32; floating-point numbers stay as they are."""
        return inputs.float().div_(WHITE) if inputs.dtype == torch.uint8 else inputs.float()


class CropFlip(Scale):
    """Training images are padded by mirroring, cropped at random, and flipped with probability 1/2.

    Each edge is padded by ``padding`` pixels.

    Source: Li et al. 2022 (NIID-Bench), whose code pads CIFAR-10 by 4, mirrored, and crops to 32.
    """

    def __init__(self, side: int, padding: int = PADDING) -> None:
        places = torch.arange(side) + torch.arange(-padding, padding + 1).unsqueeze(1)
        places = places.abs()
        # Row s is where the pixels come from if the crop begins s pixels into the padded image.
        self._places = torch.where(places < side, places, 2 * (side - 1) - places)
        self._side = side
        self._shifts = 2 * padding + 1

    def draw(self, count: int, rng: np.random.Generator) -> Tensor:
        """Draw crops and flips: shape (count, 3), int64: top, left, whether flipped left-right."""
        places = rng.integers(0, self._shifts, (count, 2))
        return torch.from_numpy(np.column_stack([places, rng.integers(0, 2, count)]))

    def __call__(self, inputs: Tensor, draws: Tensor | None) -> Tensor:
        """Crop, flip and scale a batch, shape (n, C, side, side), to float32.

        ``draws`` are those of ``draw``, on the same device; None, in evaluation, scales alone.
        """
        if draws is None:
            return super().__call__(inputs, None)
        self._places = self._places.to(inputs.device)
        rows, columns = self._places[draws[:, 0]], self._places[draws[:, 1]]
        columns = torch.where(draws[:, 2:] > 0, columns.flip(1), columns)
        taken = (rows.unsqueeze(2) * self._side + columns.unsqueeze(1)).flatten(1).unsqueeze(1)
        pixels = inputs.flatten(2)
        cut = pixels.gather(2, taken.expand(-1, pixels.shape[1], -1)).view(inputs.shape)
        return super().__call__(cut, None)


class ImageOptions(StrictOptions):
    """Options that tasks on images have in common.

    Attributes:
        data: Path of the store that ``pfl-bench data prepare`` wrote.
        partition: The clients of the training split: {kind: iid, num_clients: 10}, or another kind
            (``tasks/common/partition``); null leaves the split whole, for central training.
    """

    data: str
    partition: PartitionOptions | None = None


class ImageTask(InMemoryTask[InMemorySplit]):
    """Classify images, whose bytes ``transform`` turns into numbers; cross entropy loss."""

    def __init__(self, *arguments: Any, transform: BatchTransform) -> None:
        super().__init__(*arguments)
        self.transform = transform


def read_store(store: Store) -> dict[str, Images]:
    """Read all splits of a store into memory."""
    splits = {}
    for name in store.split_names:
        split = store.split(name)
        columns = {field: split.read(field, 0, split.num_examples) for field in store.fields}
        splits[name] = Images(columns["inputs"], columns["targets"], columns.get(WRITER))
    return splits


def build_task(
    store: Store,
    partition: PartitionOptions | None,
    splits: Mapping[str, Images] | None = None,
    transform: BatchTransform | None = None,
) -> ImageTask:
    """Make a row's clients.

    In the splits other than train each writer is a client if they are in train; otherwise all of a
    split is one client. ``splits`` are others than the store's, with its writers; ``transform`` is
    applied to batches, None to scale alone.
    """
    facts = store.facts
    is_noisy = isinstance(partition, FeatureNoise)
    if store.fields["inputs"].dtype != "uint8" and (transform is not None or is_noisy):
        what = "task.partition: kind 'feature_noise'" if is_noisy else "task.augment"
        raise ConfigError(
            f"{what}: of pixels alone, but the store has features of images ({facts.variant}); "
            "prepare it with features=pixels, or choose otherwise"
        )
    if isinstance(partition, Writers) and WRITER not in store.fields:
        raise ConfigError(
            f"task.partition: kind 'writers', but the store ({facts.variant}) does not know who "
            "wrote what; prepare it again from files that say so, or choose another kind"
        )
    digest, made = hashlib.sha256(), {}
    for name, images in (splits or read_store(store)).items():
        clients = clients_of(name, images, partition)
        digest.update(clients.order.tobytes() + clients.offsets.tobytes())
        made[name] = split_of_clients(name, images, clients, partition)
    variant = facts.variant if splits is None else f"{facts.variant}-by-writer"
    natural = isinstance(partition, Writers)
    if partition is not None and not (natural and splits is not None):
        variant += f"-{partition.kind}"
    clients_digest = f"sha256:{digest.hexdigest()}"
    shape = facts.input_shape if len(facts.input_shape) == 3 else (1, *facts.input_shape)
    facts = replace(
        facts,
        variant=variant,
        input_shape=shape,
        class_names=tuple(store.names("targets")),
        artificial_users=not natural,
        extra={**facts.extra, "artificial_users": not natural, "clients": clients_digest},
    )
    return ImageTask(store.task, made, facts, transform=transform or Scale())


def clients_of(name: str, images: Images, partition: PartitionOptions | None) -> Assignment:
    """Assign the images of a split as ``build_task`` says."""
    if isinstance(partition, Writers) and images.writers is not None:
        return by_writer(images.writers, np.unique(images.writers))
    if name != "train" or partition is None or isinstance(partition, Writers):
        return pooled(len(images.targets), name)
    return assign(partition, images.targets.astype(np.int64))


def split_of_clients(
    name: str, images: Images, clients: Assignment, partition: PartitionOptions | None
) -> InMemorySplit:
    """Examples in the order of their clients; images of shape (n, side, side) get channels."""
    inputs: NDArray[Any] = images.inputs[clients.order]
    if inputs.ndim == 3:
        inputs = inputs[:, None]
    if name == "train" and isinstance(partition, FeatureNoise):
        inputs = noisy(inputs, clients.offsets, partition)
    targets = torch.from_numpy(images.targets[clients.order].astype(np.int64))
    return InMemorySplit(
        name, torch.from_numpy(inputs), targets, clients.offsets, clients.client_ids
    )


def noisy(
    inputs: NDArray[np.uint8], offsets: NDArray[np.int64], partition: FeatureNoise
) -> NDArray[np.float32]:
    """Images, shape (n, ...), in 0 to 1 with noise; ``offsets`` of the clients, shape (U + 1,)."""
    noisy = inputs.astype(np.float32) / np.float32(WHITE)
    for client, (start, stop) in enumerate(pairwise(offsets)):
        rng = np.random.default_rng([partition.seed, client])
        noise = rng.standard_normal(noisy[start:stop].shape, dtype=np.float32)
        noisy[start:stop] += noise * np.float32(
            partition.level * (client + 1) / partition.num_clients
        )
    return noisy
