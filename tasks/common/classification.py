"""Base of tasks with one label an example."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Generic

from torch import Tensor
from torch.nn import functional

from pfl_bench.data import InMemorySplit, Store
from pfl_bench.data.in_memory import Split, split_named
from pfl_bench.types import DataFacts, FederatedSplit


class CrossEntropy:
    """The loss of a classifier: cross entropy of its logits."""

    metrics: tuple[str, ...] = ("classification",)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy of logits of shape (n, K) and targets of shape (n,)."""
        return functional.cross_entropy(outputs, targets)

    def example_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Cross entropy of each example, shape (n,)."""
        return functional.cross_entropy(outputs, targets, reduction="none")


def token_losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """Losses of logits of shape (n, L, V), shape (n, L): 0 where a target is -100."""
    # PyTorch's cross entropy leaves -100 out unless told otherwise.
    losses = functional.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="none")
    return losses.view(targets.shape)


class InMemoryTask(CrossEntropy, Generic[Split]):
    """A classification task whose examples lie in memory.

    Args:
        name: Name of the task, for messages.
        splits: The splits by name.
        facts: What is known of the data.

    Raises:
        DataError: A label of an ``InMemorySplit``, or of the first user of another split, is no
            whole number, or outside 0 to ``facts.num_classes`` - 1.
    """

    def __init__(self, name: str, splits: Mapping[str, Split], facts: DataFacts) -> None:
        self.facts = facts
        self._name = name
        self._splits = dict(splits)
        for split in self._splits.values():
            said_by = f"num_classes of the task {name} is {facts.num_classes}"
            # Of a class of another kind not all may be in memory.
            known = split if isinstance(split, InMemorySplit) else _first_user(split)
            known.check_classes(facts.num_classes, said_by, are_labels=True)

    @property
    def split_names(self) -> tuple[str, ...]:
        """Names of the splits."""
        return tuple(self._splits)

    def split(self, name: str) -> Split:
        """Open one split.

        Raises:
            DataError: There is no split of that name.
        """
        return split_named(name, self._splits, self._name)


def _first_user(split: FederatedSplit) -> InMemorySplit:
    examples = split.read_range(0, int(split.offsets[1]))
    parts = examples.inputs, examples.targets, split.offsets[:2]
    return InMemorySplit(split.name, *parts, split.client_ids()[:1])


def known_facts(store: Store, names: Iterable[str]) -> dict[str, Any]:
    """Of a store's further facts, those of ``names`` that it has: what a summary repeats."""
    known = store.facts.extra
    return {name: known[name] for name in names if name in known}
