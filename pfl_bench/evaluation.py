"""Evaluation on a whole split: pooled, as a distribution over clients, and by strata."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pfl_bench.distributions import GroupSums, Stratum, Values, over_clients
from pfl_bench.forward import Forward
from pfl_bench.reading import read_ahead
from pfl_bench.types import (
    ConfigError,
    Examples,
    FederatedSplit,
    HasColumns,
    Metric,
    PersonalModels,
    Task,
)

# One integer an example of each stratum's column, for a range of a split's examples.
_Columns = list[NDArray[np.int64]]
# Enough for the size of a loss.
_START_EXAMPLES = 16


class Strata:
    """Empty accumulators of the columns by whose values results are told apart, of one evaluation.

    Args:
        task: The data.
        columns: Names of columns; empty for none.

    Raises:
        ConfigError: The data have no such column.
    """

    def __init__(self, task: Task, columns: Sequence[str]) -> None:
        self._task: HasColumns | None = task if isinstance(task, HasColumns) else None
        there = () if self._task is None else self._task.column_names
        for name in columns:
            if name not in there:
                raise ConfigError(
                    f"evaluation.strata: the data have no column '{name}' to tell results apart "
                    f"by; there are: {', '.join(there) or 'none'}"
                )
        self._strata = [Stratum(name) for name in columns]

    def read(self, split: str, start: int, stop: int) -> _Columns:
        """Read the columns of the examples ``start:stop`` of a split."""
        if self._task is None:
            return []
        return [self._task.read_column(split, s.column, start, stop) for s in self._strata]

    def add(
        self,
        columns: _Columns,
        clients: NDArray[np.int64],
        families: Sequence[tuple[Values, NDArray[np.float64]]],
    ) -> None:
        """Take a batch in; see ``Stratum.add``."""
        for stratum, column in zip(self._strata, columns, strict=True):
            stratum.add(column, clients, families)

    def parts(self) -> list[Stratum]:
        """The accumulators, one a column."""
        return self._strata

    def tables(self) -> dict[str, dict[str, dict[str, Any]]]:
        """What the examples of each value of each column came to, by the names of both."""
        if self._task is None:
            return {}
        return {s.column: s.table(self._task.column_values(s.column)) for s in self._strata}


@dataclass(slots=True)
class Measured:
    """What a pass over (a part of) a split has accumulated; what crosses processes.

    Attributes:
        metrics: The families.
        families: Of each, the sums by client.
        strata: Of each column, what its values came to.
        num_examples: Examples that were evaluated.
        num_clients: Clients that these are of.
        first_client: The first of them; -1 without any.
        last_client: The last of them.
    """

    metrics: Sequence[Metric]
    families: list[GroupSums]
    strata: list[Stratum]
    num_examples: int = 0
    num_clients: int = 0
    first_client: int = -1
    last_client: int = -1

    def merge(self, other: Measured) -> None:
        """Take in the part of the split that follows."""
        if not other.num_examples:
            return
        for metric, more in zip(self.metrics, other.metrics, strict=True):
            metric.merge(more)
        for family, sums in zip(self.families, other.families, strict=True):
            family.merge(sums)
        for stratum, values in zip(self.strata, other.strata, strict=True):
            stratum.merge(values)
        self.num_examples += other.num_examples
        # A client may lie across the border.
        self.num_clients += other.num_clients - int(other.first_client == self.last_client)
        self.last_client = other.last_client
        if self.first_client < 0:
            self.first_client = other.first_client

    def result(self, split: FederatedSplit, is_personal: bool) -> dict[str, float]:
        """Everything that was measured, by name."""
        result: dict[str, float] = {}
        for metric in self.metrics:
            result |= metric.compute()
        for family in self.families:
            result |= over_clients(family)
        for stratum in self.strata:
            result |= stratum.scalars()
        result["num_examples"] = self.num_examples
        result["num_clients"] = self.num_clients
        if is_personal:
            result["num_clients_without_examples"] = split.num_users - self.num_clients
        return {f"{split.name}/{name}": float(value) for name, value in result.items()}


class _Pass:
    """Takes batches in."""

    def __init__(
        self,
        forward: Forward,
        split: FederatedSplit,
        metrics: Sequence[Metric],
        strata: Strata | None,
    ) -> None:
        self._forward = forward
        self._strata = strata
        families = [GroupSums(split.num_users) for _ in metrics]
        self.measured = Measured(metrics, families, [] if strata is None else strata.parts())

    @torch.no_grad()
    def take(self, clients: NDArray[np.int64], examples: Examples, columns: _Columns) -> None:
        """Evaluate a batch; ``clients``, shape (n,), ascend within and between batches."""
        device, measured = self._forward.device, self.measured
        outputs = self._forward.outputs(examples.inputs.to(device, non_blocking=True))
        targets = examples.targets.to(device, non_blocking=True)
        taken = []
        for metric, family in zip(measured.metrics, measured.families, strict=True):
            values = {
                name: column.cpu().double().numpy()
                for name, column in metric.update(outputs, targets).items()
            }
            weights = values.pop("weight", np.ones(len(clients)))
            family.add(clients, values, weights)
            taken.append((values, weights))
        if self._strata is not None:
            self._strata.add(columns, clients, taken)
        present = np.unique(clients)
        if measured.first_client < 0:
            measured.first_client = int(present[0])
        measured.num_examples += len(clients)
        measured.num_clients += len(present) - int(present[0] == measured.last_client)
        measured.last_client = int(present[-1])


def measure(
    forward: Forward,
    split: FederatedSplit,
    metrics: Sequence[Metric],
    batch_size: int,
    data_workers: int = 0,
    strata: Strata | None = None,
    personal: PersonalModels | None = None,
    part: tuple[int, int] = (0, 1),
) -> Measured:
    """Evaluate on the examples of a split, in one pass, in memory that grows with its clients.

    Args:
        forward: The model and how a batch goes through it; the model is put in evaluation mode,
            and back into the mode it was in.
        split: Users and examples.
        metrics: Empty accumulators.
        batch_size: Examples a forward pass.
        data_workers: Threads that read ahead; 0 reads in line, as does evaluation with personal
            models.
        strata: The columns that tell examples apart, empty; afterwards it has their tables.
        personal: Gives each client the model that it is evaluated with, and says on which of its
            examples; None evaluates the model that is there on all examples.
        part: Of how many parts of the split, about equal in examples, this is which: (from 0,
            how many). With ``strata`` or ``personal`` no client is in two parts.
    """
    module = forward.module
    was_training = module.training
    taken = _Pass(forward, split, metrics, strata)
    users = _users_of(split, part)
    try:
        module.eval()
        if personal is None:
            if strata is None:
                first, last = (
                    split.num_examples * end // part[1] for end in (part[0], part[0] + 1)
                )
            else:
                first, last = int(split.offsets[users.start]), int(split.offsets[users.stop])
            jobs = _ranges(split, batch_size, strata, first, last)
            for clients, examples, columns in read_ahead(jobs, data_workers):
                taken.take(clients, examples, columns)
        else:
            for clients, examples, columns in _by_user(split, users, batch_size, strata, personal):
                # Making a client's model may have been training.
                module.eval()
                taken.take(clients, examples, columns)
    finally:
        module.train(was_training)
    return taken.measured


def evaluate(
    forward: Forward,
    split: FederatedSplit,
    metrics: Sequence[Metric],
    batch_size: int,
    data_workers: int = 0,
    strata: Strata | None = None,
    personal: PersonalModels | None = None,
) -> dict[str, float]:
    """Evaluate on all examples of a split; see ``measure`` for the arguments.

    Returns:
        Under "<split>/": each metric over all examples that were evaluated; for each value that
        examples have on their own, such as accuracy, how it spreads over clients
        (``distributions.over_clients``) and over the values of each column
        (``Stratum.scalars``), an example weighing what its family says, such as its tokens; and
        "num_examples", "num_clients" (that were evaluated on at least one), and with personal
        models "num_clients_without_examples", which are left out of everything else.

    Raises:
        UserInputError: Nothing was evaluated, so that there is no mean.
    """
    measured = measure(forward, split, metrics, batch_size, data_workers, strata, personal)
    return measured.result(split, personal is not None)


def _users_of(split: FederatedSplit, part: tuple[int, int]) -> range:
    """The users of a part, as many as make its share of the examples."""
    number, count = part
    ends = [split.num_examples * place // count for place in (number, number + 1)]
    first, last = np.searchsorted(split.offsets[:-1], ends).tolist()
    return range(first if number else 0, last if number + 1 < count else split.num_users)


_Batch = tuple[NDArray[np.int64], Examples, _Columns]


def _ranges(
    split: FederatedSplit, batch_size: int, strata: Strata | None, first: int, last: int
) -> Iterator[Callable[[], _Batch]]:
    for start in range(first, last, batch_size):
        yield partial(_read, split, strata, start, min(start + batch_size, last))


def _read(split: FederatedSplit, strata: Strata | None, start: int, stop: int) -> _Batch:
    owners = np.searchsorted(split.offsets, np.arange(start, stop), side="right") - 1
    columns = [] if strata is None else strata.read(split.name, start, stop)
    return owners.astype(np.int64), split.read_range(start, stop), columns


def _by_user(
    split: FederatedSplit,
    users: range,
    batch_size: int,
    strata: Strata | None,
    personal: PersonalModels,
) -> Iterator[_Batch]:
    for user in users:
        chosen = personal.personalise(split, user) + split.offsets[user]
        while len(chosen):
            # Examples that are near one another are read together; a large client in parts.
            count = int(np.searchsorted(chosen, chosen[0] + batch_size))
            start, stop = int(chosen[0]), int(chosen[count - 1]) + 1
            owners, examples, columns = _read(split, strata, start, stop)
            places = chosen[:count] - start
            yield (
                owners[places],
                Examples(examples.inputs[places], examples.targets[places]),
                [column[places] for column in columns],
            )
            chosen = chosen[count:]


@torch.no_grad()
def initial_loss(forward: Forward, split: FederatedSplit) -> float:
    """The task's loss of the model as it is, on the first examples of a split.

    Args:
        forward: The model and how a batch goes through it; its mode is left as it was.
        split: The training split.
    """
    module = forward.module
    was_training = module.training
    examples = split.read_range(0, min(_START_EXAMPLES, split.num_examples))
    inputs, targets = examples.inputs.to(forward.device), examples.targets.to(forward.device)
    module.eval()
    try:
        return float(forward.loss(inputs, targets, None))
    finally:
        module.train(was_training)


def measured_names(
    forward: Forward,
    split: FederatedSplit,
    metrics: Sequence[Metric],
    strata: Strata | None = None,
    is_personal: bool = False,
) -> tuple[str, ...]:
    """Names of what ``evaluate`` gives, found out on one example and the model that is there.

    Args:
        forward: The model and how a batch goes through it.
        split: Users and examples.
        metrics: Empty accumulators; not empty afterwards, and neither are ``strata``.
        strata: As for ``evaluate``.
        is_personal: Whether there will be personal models.
    """
    was_training = forward.module.training
    taken = _Pass(forward, split, metrics, strata)
    forward.module.eval()
    taken.take(*_read(split, strata, 0, 1))
    forward.module.train(was_training)
    return tuple(taken.measured.result(split, is_personal))
