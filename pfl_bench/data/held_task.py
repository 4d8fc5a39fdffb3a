"""A task that exists in this process alone, and how a configuration finds it by its digests."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from pydantic import BaseModel, ConfigDict, PrivateAttr

from pfl_bench.data.in_memory import InMemorySplit, split_named
from pfl_bench.types import DataError, DataFacts

if TYPE_CHECKING:
    from torch import Tensor, nn

NAME = "in_memory"
"""The plug-in that configurations name."""

_HELD: WeakValueDictionary[str, HeldTask] = WeakValueDictionary()


@dataclass(frozen=True, eq=False)
class HeldTask:
    """Data, loss and model that were given as objects; ``pfl_bench.in_memory_task`` makes one.

    ``loss`` gives the mean of a batch, and ``code`` is the digest of the code of model and loss.
    """

    name: str
    splits: Mapping[str, InMemorySplit]
    facts: DataFacts
    metrics: tuple[str, ...]
    loss: Callable[[Tensor, Tensor], Tensor]
    make_model: Callable[[], nn.Module]
    model_name: str
    code: str

    def __post_init__(self) -> None:
        """Let configurations find it."""
        _HELD[self.facts.checksum + self.code] = self

    def __repr__(self) -> str:
        """Name, sizes of its splits and model, in a line."""
        sizes = [
            f"{name} {split.num_users} users, {split.num_examples} examples"
            for name, split in self.splits.items()
        ]
        return f"HeldTask({'; '.join([self.name, *sizes, f'model {self.model_name}'])})"

    @property
    def split_names(self) -> tuple[str, ...]:
        """Names of the splits."""
        return tuple(self.splits)

    def split(self, name: str) -> InMemorySplit:
        """Open one split; DataError if there is none of that name."""
        return split_named(name, self.splits, self.name)

    def section(self) -> dict[str, Any]:
        """The section ``task`` of a row that trains it."""
        return {"name": NAME, "title": self.name, "content": self.facts.checksum, "code": self.code}

    def overrides(self, row: Mapping[str, Any], name: str) -> dict[str, Any]:
        """Overrides by which a row trains the task, by dotted key with ``__`` for the dot.

        Published numbers go, and so do splits and columns to evaluate by that this task lacks, and
        the choice of a model by such a split: the last one is taken.
        """
        lists = {"splits": [], "final_splits": ["test"], **(row.get("evaluation") or {})}
        kept: dict[str, Any] = {
            f"evaluation__{key}": [split for split in lists[key] if split in self.splits]
            for key in ("splits", "final_splits")
        }
        if lists.get("strata"):
            kept["evaluation__strata"] = []
        if str(lists.get("select_best") or "train").partition("/")[0] not in self.splits:
            kept["evaluation__select_best"] = None
        slug = re.sub(r"[^A-Za-z0-9._-]+", "-", self.name).strip("-.") or "task"
        section = self.section()
        return {
            "name": f"{row.get('name', name)}-{slug}",
            "task": section,
            "model": {**section, "name": self.model_name},
            "expected": [],
            **kept,
        }


class HeldOptions(BaseModel):
    """Options of a task in memory, as a configuration has them.

    Attributes:
        title: What its user calls it.
        content: Digest of its examples and users.
        code: Digest of the code of its model and loss.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    title: str
    content: str
    code: str
    # Who has the configuration has the task.
    _task: HeldTask | None = PrivateAttr(default=None)

    def model_post_init(self, _: Any) -> None:
        """Find the task, if this process has it."""
        self._task = _HELD.get(self.content + self.code)

    def task(self) -> HeldTask:
        """The task; DataError if this process does not have it."""
        self._task = self._task or _HELD.get(self.content + self.code)
        if self._task is None:
            raise DataError(
                f"in-memory task '{self.title}': this process has no task of these examples "
                f"({self.content[:19]}) and this code ({self.code[:19]}); make it again by "
                "pfl_bench.in_memory_task from the same data and model, and give it as task=... in "
                "Python (run_row, audit); no command has it"
            )
        return self._task
