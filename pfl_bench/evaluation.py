"""Evaluation on a whole split: pooled, as a distribution over clients, and by strata."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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

    def scalars(self) -> dict[str, float]:
        """How values spread over those of each column."""
        return {name: value for s in self._strata for name, value in s.scalars().items()}

    def tables(self) -> dict[str, dict[str, dict[str, Any]]]:
        """What the examples of each value of each column came to, by the names of both."""
        if self._task is None:
            return {}
        return {s.column: s.table(self._task.column_values(s.column)) for s in self._strata}


class _Pass:
    """What one pass over a split accumulates."""

    def __init__(
        self,
        forward: Forward,
        split: FederatedSplit,
        metrics: Sequence[Metric],
        strata: Strata | None,
    ) -> None:
        self._forward = forward
        self._split = split
        self._metrics = metrics
        self._strata = strata
        self._families = [GroupSums(split.num_users) for _ in metrics]
        self._num_examples = 0
        self._num_clients = 0
        self._last_client = -1

    @torch.no_grad()
    def take(self, clients: NDArray[np.int64], examples: Examples, columns: _Columns) -> None:
        """Evaluate a batch; ``clients``, shape (n,), ascend within and between batches."""
        device = self._forward.device
        outputs = self._forward.outputs(examples.inputs.to(device, non_blocking=True))
        targets = examples.targets.to(device, non_blocking=True)
        measured = []
        for metric, family in zip(self._metrics, self._families, strict=True):
            values = {
                name: column.double().cpu().numpy()
                for name, column in metric.update(outputs, targets).items()
            }
            weights = values.pop("weight", np.ones(len(clients)))
            family.add(clients, values, weights)
            measured.append((values, weights))
        if self._strata is not None:
            self._strata.add(columns, clients, measured)
        present = np.unique(clients)
        self._num_examples += len(clients)
        self._num_clients += len(present) - int(present[0] == self._last_client)
        self._last_client = int(present[-1])

    def result(self, is_personal: bool) -> dict[str, float]:
        """Everything that was measured, by name."""
        result: dict[str, float] = {}
        for metric in self._metrics:
            result |= metric.compute()
        for family in self._families:
            result |= over_clients(family)
        if self._strata is not None:
            result |= self._strata.scalars()
        result["num_examples"] = self._num_examples
        result["num_clients"] = self._num_clients
        if is_personal:
            result["num_clients_without_examples"] = self._split.num_users - self._num_clients
        return {f"{self._split.name}/{name}": float(value) for name, value in result.items()}


def evaluate(
    forward: Forward,
    split: FederatedSplit,
    metrics: Sequence[Metric],
    batch_size: int,
    data_workers: int = 0,
    strata: Strata | None = None,
    personal: PersonalModels | None = None,
) -> dict[str, float]:
    """Evaluate on all examples of a split, in one pass, in memory that grows with its clients.

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
    module = forward.module
    was_training = module.training
    taken = _Pass(forward, split, metrics, strata)
    try:
        module.eval()
        if personal is None:
            jobs = _ranges(split, batch_size, strata)
            for clients, examples, columns in read_ahead(jobs, data_workers):
                taken.take(clients, examples, columns)
        else:
            for clients, examples, columns in _by_user(split, batch_size, strata, personal):
                # Making a client's model may have been training.
                module.eval()
                taken.take(clients, examples, columns)
    finally:
        module.train(was_training)
    return taken.result(personal is not None)


_Batch = tuple[NDArray[np.int64], Examples, _Columns]


def _ranges(
    split: FederatedSplit, batch_size: int, strata: Strata | None
) -> Iterator[Callable[[], _Batch]]:
    for start in range(0, split.num_examples, batch_size):
        yield partial(_read, split, strata, start, min(start + batch_size, split.num_examples))


def _read(split: FederatedSplit, strata: Strata | None, start: int, stop: int) -> _Batch:
    owners = np.searchsorted(split.offsets, np.arange(start, stop), side="right") - 1
    columns = [] if strata is None else strata.read(split.name, start, stop)
    return owners.astype(np.int64), split.read_range(start, stop), columns


def _by_user(
    split: FederatedSplit, batch_size: int, strata: Strata | None, personal: PersonalModels
) -> Iterator[_Batch]:
    for user in range(split.num_users):
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
    return tuple(taken.result(is_personal))
