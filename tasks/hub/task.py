"""The hub task: classify the examples of any data set, one client a user or artificial clients."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from pydantic import model_validator

from pfl_bench.data import InMemorySplit, Store, StoredTask, open_store
from pfl_bench.types import ConfigError, Examples
from tasks.common.classification import CrossEntropy, InMemoryTask, known_facts
from tasks.common.images.store import Images
from tasks.common.images.task import ImageTask, Scale, split_of_clients
from tasks.common.options import StoredOptions
from tasks.common.partition.options import FeatureNoise, PartitionOptions, Writers, assign

TASK_NAME = "hub"
# Of the store's facts, what a summary repeats.
FACTS_SHOWN = ("kind", "columns", "split", "vocabulary")


class Options(StoredOptions):
    """Options of the task, beside those of all tasks on a store.

    Attributes:
        partition: Artificial clients of train: {kind: iid, num_clients: 10}, or another kind
            (``tasks/common/partition``), held in memory; null, or kind writers, for the store's
            users. A store without users then has one client a split, for central training.
    """

    partition: PartitionOptions | None = None

    @model_validator(mode="after")
    def _limit_is_of_users(self) -> Options:
        made = self.partition is not None and not isinstance(self.partition, Writers)
        if made and self.max_examples_per_user is not None:
            raise ValueError("max_examples_per_user: of a store's users; leave it or partition out")
        return self


class HubTask(CrossEntropy, StoredTask):
    """Classes of images, vectors or texts; cross entropy. A batch's bytes become numbers."""

    def __init__(self, store: Store, options: Options) -> None:
        super().__init__(
            store,
            ("inputs", "targets"),
            _to_examples,
            options.max_examples_per_user,
            class_names=tuple(store.names("targets")),
            extra=known_facts(store, FACTS_SHOWN),
        )
        if self.facts.extra["kind"] == "images":
            self.transform = Scale()


def _to_examples(fields: Mapping[str, Any]) -> Examples:
    """Inputs of n examples as stored, words as int64; targets int64, shape (n,)."""
    inputs = fields["inputs"]
    if inputs.dtype == np.uint32:
        inputs = inputs.astype(np.int64)
    return Examples(torch.from_numpy(inputs), torch.from_numpy(fields["targets"].astype(np.int64)))


def build(options: Options) -> HubTask | InMemoryTask[InMemorySplit]:
    """Open a prepared store and make the row's clients, if it has a partition.

    Refused as ``open_store`` and ``assign`` say, and for a partition that the data cannot have.
    """
    task, partition = HubTask(open_store(options.data, TASK_NAME), options), options.partition
    if partition is None or isinstance(partition, Writers):
        if partition is not None and task.facts.artificial_users:
            raise ConfigError(
                "task.partition: kind 'writers', but the store does not know whose an example is; "
                "prepare it again with user=COLUMN, or choose another kind"
            )
        return task
    if isinstance(partition, FeatureNoise) and task.facts.extra["kind"] != "images":
        raise ConfigError(
            f"task.partition: kind 'feature_noise': of images alone, not of "
            f"{task.facts.extra['kind']}; choose another kind"
        )
    splits, digest = {}, hashlib.sha256()
    for name in task.split_names:
        stored = task.split(name)
        examples = stored.read_range(0, stored.num_examples)
        if name == "train":
            whole = Images(examples.inputs.numpy(), examples.targets.numpy())
            clients = assign(partition, whole.targets)
            digest.update(clients.order.tobytes() + clients.offsets.tobytes())
            splits[name] = split_of_clients(name, whole, clients, partition)
        else:
            own = stored.offsets, stored.client_ids()
            splits[name] = InMemorySplit(name, examples.inputs, examples.targets, *own)
    facts = replace(
        task.facts,
        variant=f"{task.facts.variant}-{partition.kind}",
        artificial_users=True,
        extra={**task.facts.extra, "clients": f"sha256:{digest.hexdigest()}"},
    )
    if task.facts.extra["kind"] == "images":
        return ImageTask(TASK_NAME, splits, facts, transform=Scale())
    return InMemoryTask(TASK_NAME, splits, facts)
