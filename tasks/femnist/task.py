"""The FEMNIST task: classify handwritten characters, one client a writer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor
from torch.nn import functional

from pfl_bench.store import Store, StoreSplit
from pfl_bench.types import DataError, DataFacts, Examples

TASK_NAME = "femnist"
WHITE = 255.0
IMAGE_SHAPE = (28, 28)


class Options(BaseModel):
    """Options of the FEMNIST task.

    Attributes:
        data: Path of the store that ``pfl-bench data prepare femnist`` wrote.
        max_examples_per_user: A user with more gives a random subset of this size, drawn anew at
            each read for training; None for no limit.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    data: str
    max_examples_per_user: int | None = Field(default=None, ge=1)


def to_examples(images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> Examples:
    """Turn stored bytes into what models take.

    Args:
        images: Shape (n, 28, 28), 255 = white ground.
        labels: Shape (n,).

    Returns:
        Inputs of shape (n, 1, 28, 28), float32 in [0, 1], and int64 targets of shape (n,).
    """
    inputs = torch.from_numpy(images).unsqueeze(1).to(torch.float32).div_(WHITE)
    return Examples(inputs, torch.from_numpy(labels).to(torch.int64))


class FemnistSplit:
    """One split of a FEMNIST store.

    Args:
        stored: The store's split.
        max_examples_per_user: As in ``Options``.
    """

    def __init__(self, stored: StoreSplit, max_examples_per_user: int | None) -> None:
        self._stored = stored
        self._max_examples = max_examples_per_user
        self.name: str = stored.name
        self.offsets: NDArray[np.int64] = stored.offsets
        self.num_users: int = stored.num_users
        self.num_examples: int = stored.num_examples

    def client_ids(self) -> Sequence[str]:
        """The writers, in the order of ``offsets``."""
        return self._stored.client_ids()

    def read_user(self, user: int, rng: np.random.Generator) -> Examples:
        """Read a writer's examples, or a fresh random subset if the writer has too many.

        Args:
            user: Index of the writer.
            rng: Draws the subset; untouched when all examples are read.

        Raises:
            IndexError: There is no such user.
        """
        if not 0 <= user < self.num_users:
            raise IndexError(
                f"user {user} of split {self.name!r}: there are users 0 to {self.num_users - 1}"
            )
        start, stop = int(self.offsets[user]), int(self.offsets[user + 1])
        images = self._stored.read("inputs", start, stop)
        labels = self._stored.read("targets", start, stop)
        if self._max_examples is not None and stop - start > self._max_examples:
            chosen = np.sort(rng.choice(stop - start, self._max_examples, replace=False))
            images, labels = images[chosen], labels[chosen]
        return to_examples(images, labels)

    def read_range(self, start: int, stop: int) -> Examples:
        """Read the examples ``start:stop`` of all writers; never subsampled."""
        return to_examples(
            self._stored.read("inputs", start, stop), self._stored.read("targets", start, stop)
        )

    def read_examples(self, indices: NDArray[np.int64], rng: np.random.Generator) -> Examples:
        """Read chosen examples, in the order of ``indices``; ``rng`` stays untouched.

        Args:
            indices: Shape (n,), examples counted over all writers; may repeat, may be empty.
            rng: Not used, as images are not augmented.

        Raises:
            IndexError: An index is outside the split.
        """
        outside = indices[(indices < 0) | (indices >= self.num_examples)]
        if len(outside):
            raise IndexError(
                f"example {outside[0]} of split {self.name!r}: "
                f"there are examples 0 to {self.num_examples - 1}"
            )
        images = np.empty((len(indices), *IMAGE_SHAPE), dtype=np.uint8)
        labels = np.empty(len(indices), dtype=np.uint8)
        order = np.argsort(indices)
        # One read a run of neighbours: a whole range in order costs two reads.
        for run in np.split(order, np.flatnonzero(np.diff(indices[order]) != 1) + 1):
            if len(run):
                start = int(indices[run[0]])
                images[run] = self._stored.read("inputs", start, start + len(run))
                labels[run] = self._stored.read("targets", start, start + len(run))
        return to_examples(images, labels)


class FemnistTask:
    """Classify handwritten characters; cross entropy loss.

    Args:
        store: An open FEMNIST store.
        max_examples_per_user: As in ``Options``.
    """

    metrics: tuple[str, ...] = ("classification",)

    def __init__(self, store: Store, max_examples_per_user: int | None) -> None:
        self._store = store
        self._max_examples = max_examples_per_user
        # The store keeps images as (28, 28); models see a channel axis.
        self.facts: DataFacts = replace(store.facts, input_shape=(1, *store.facts.input_shape))
        self.split_names: tuple[str, ...] = store.split_names

    def split(self, name: str) -> FemnistSplit:
        """Open one split.

        Raises:
            DataError: The store has no split of that name.
        """
        return FemnistSplit(self._store.split(name), self._max_examples)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy of logits of shape (n, num_classes) and targets of shape (n,)."""
        return functional.cross_entropy(outputs, targets)


def build(options: Options) -> FemnistTask:
    """Open a prepared store.

    Args:
        options: Options of the task.

    Raises:
        DataError: There is no such file, or it was prepared for another task or is damaged.
    """
    path = Path(options.data)
    if not path.is_file():
        raise DataError(
            f"task femnist: there is no file {path}; make it by "
            f"`pfl-bench data prepare femnist --source DIR --out {path}` (which public files DIR "
            "may hold: tasks/femnist/README.md)"
        )
    store = Store(path)
    if store.task != TASK_NAME:
        raise DataError(
            f"task femnist: {path} was prepared for task {store.task!r}; give a store that "
            "`pfl-bench data prepare femnist` wrote, or choose that task"
        )
    return FemnistTask(store, options.max_examples_per_user)
