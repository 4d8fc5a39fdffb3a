"""A task some of whose training users are corrupted, with a split that measures their success."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pfl_bench.config.sections import ATTACK_SPLIT, AttackOptions
from pfl_bench.rng import Purpose, stream
from pfl_bench.simulation.poison import Poison
from pfl_bench.types import (
    ConfigError,
    DataError,
    DataFacts,
    Examples,
    FederatedSplit,
    HasColumns,
    SplitAround,
    Task,
    TaskAround,
)

# Test examples that are read at once, however few of them are attacked.
_BLOCK = 256
_LABELS = "targets"
# Of the streams of attacks: the draw of users has round 0, what a corrupted user draws this one.
_OF_A_USER = 1


class CorruptedSplit(SplitAround):
    """The training split, whose corrupted users have poisoned examples while they attack.

    Other reading than for training is of the examples as they are: evaluation is honest.
    """

    def __init__(
        self, split: FederatedSplit, poison: Poison, corrupted: frozenset[int], seed: int
    ) -> None:
        super().__init__(split)
        self.poison = poison
        self._seed = seed
        self.corrupted = corrupted
        self.is_attacked = True

    def read_user(self, user: int, rng: np.random.Generator) -> Examples:
        """Read a user's examples for training, poisoned if the user is corrupted."""
        examples = self._split.read_user(user, rng)
        if not self.is_attacked or user not in self.corrupted or len(examples) == 0:
            return examples
        # Always the same stream: a client's wrong labels do not change from round to round.
        own = stream(self._seed, Purpose.ATTACK, _OF_A_USER, user)
        return self.poison.corrupt(examples, own)


class AttackSplit(SplitAround):
    """The examples of the test split that the attack is after, as it presents them.

    ``kept``, of shape (n,), ascending, says which of the test split's they are.
    """

    def __init__(self, split: FederatedSplit, poison: Poison, kept: NDArray[np.int64]) -> None:
        super().__init__(split)
        self._poison = poison
        self.kept = kept
        self.name = ATTACK_SPLIT
        self.offsets = np.searchsorted(kept, split.offsets).astype(np.int64)
        self.num_examples = len(kept)

    def read_user(self, user: int, rng: np.random.Generator) -> Examples:
        """Read one user's examples; ``rng`` stays untouched."""
        return self.read_range(int(self.offsets[user]), int(self.offsets[user + 1]))

    def read_range(self, start: int, stop: int) -> Examples:
        """Read the examples ``start:stop``."""
        return self.read_examples(np.arange(start, stop), np.random.default_rng(0))

    def read_examples(self, indices: NDArray[np.int64], rng: np.random.Generator) -> Examples:
        """Read chosen examples, as evaluation sees them; ``rng`` stays untouched."""
        if len(indices) == 0:
            return self._poison.attack(self._split.read_range(0, 0))
        parts = []
        places = self.kept[indices]
        borders = np.flatnonzero(np.diff(places // _BLOCK)) + 1
        for block in np.split(places, borders):
            first = int(block.min())
            near = self._split.read_range(first, int(block.max()) + 1)
            chosen = torch.from_numpy(block - first)
            parts.append(Examples(near.inputs[chosen], near.targets[chosen]))
        inputs = torch.cat([part.inputs for part in parts])
        return self._poison.attack(Examples(inputs, torch.cat([part.targets for part in parts])))


class CorruptedTask(TaskAround):
    """A task with corrupted training users; everything else is the task's own.

    It has one more split where success can be counted: "attack", of the test split. The task is
    told of its device. ``build`` makes the attack for the data's facts and an example of them. The
    corrupted users, indices of the training split, are drawn of the run's seed; the facts say how
    many they are.
    """

    def __init__(
        self,
        task: Task,
        options: AttackOptions,
        build: Callable[[DataFacts, Examples], Poison],
        seed: int,
    ) -> None:
        super().__init__(task)
        train = task.split("train")
        example = train.read_range(0, 1)
        _check_labels(task, example)
        self._task = task
        self._seed = seed
        self._attack: AttackSplit | None = None
        self._poison = build(task.facts, example)
        count = int(options.corrupted_fraction * train.num_users + 0.5)
        drawn = stream(seed, Purpose.ATTACK).permutation(train.num_users)[:count]
        self.corrupted: frozenset[int] = frozenset(drawn.tolist())
        extra = {**task.facts.extra, "corrupted_users": count}
        self.facts = replace(task.facts, extra=extra)
        if self._poison.has_target and "test" in task.split_names:
            self.split_names += (ATTACK_SPLIT,)
        if isinstance(task, HasColumns):
            self.read_column: Callable[[str, str, int, int], NDArray[np.int64]] = self._read_column

    def split(self, name: str) -> FederatedSplit:
        """Open one split; the attack's must have examples to attack."""
        if name == "train":
            return CorruptedSplit(self._task.split(name), self._poison, self.corrupted, self._seed)
        if name == ATTACK_SPLIT and ATTACK_SPLIT in self.split_names:
            return self._attack_split()
        return self._task.split(name)

    def _attack_split(self) -> AttackSplit:
        if self._attack is None:
            test = self._task.split("test")
            kept = np.flatnonzero(self._poison.is_attacked(_labels(self._task, test)).numpy())
            if len(kept) == 0:
                raise DataError(
                    "attack: no example of the split 'test' is of a class that the attack is "
                    "after; choose other classes, or take 'attack' out of evaluation.final_splits"
                )
            self._attack = AttackSplit(test, self._poison, kept.astype(np.int64))
        return self._attack

    def _read_column(self, split: str, name: str, start: int, stop: int) -> NDArray[np.int64]:
        """Read a column, of attacked examples that of the test examples that they were."""
        assert isinstance(self._task, HasColumns)
        if split != ATTACK_SPLIT:
            return self._task.read_column(split, name, start, stop)
        kept = self._attack_split().kept[start:stop]
        if len(kept) == 0:
            return self._task.read_column("test", name, 0, 0)
        first = int(kept[0])
        return self._task.read_column("test", name, first, int(kept[-1]) + 1)[kept - first]


def _check_labels(task: Task, example: Examples) -> None:
    """Check that the task has one class label an example, and no split of the attack's name."""
    targets = example.targets
    if targets.ndim != 1 or targets.is_floating_point() or task.facts.num_classes < 2:
        raise ConfigError(
            "attack: the task's targets are not one class label an example (they have the shape "
            f"{('n', *targets.shape[1:])} and type {targets.dtype}); attacks change class labels: "
            "choose a classification task, or remove the section 'attack'"
        )
    if ATTACK_SPLIT in task.split_names:
        raise ConfigError(
            f"attack: the data have a split '{ATTACK_SPLIT}' already, which is the name of the "
            "split that measures the attack; prepare them with another name"
        )


def _labels(task: Task, split: FederatedSplit) -> Tensor:
    """Labels of all examples of a split, shape (n,)."""
    count = split.num_examples
    first = split.read_range(0, min(_BLOCK, count)).targets
    if isinstance(task, HasColumns) and _LABELS in task.column_names:
        # Inputs may be pictures to decode. A task may also give other labels than it stores.
        column = torch.from_numpy(task.read_column(split.name, _LABELS, 0, count))
        if torch.equal(column[: len(first)], first):
            return column
    rest = range(_BLOCK, count, _BLOCK)
    parts = [split.read_range(start, min(start + _BLOCK, count)).targets for start in rest]
    return torch.cat([first, *parts])
