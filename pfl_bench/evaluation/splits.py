"""Evaluation on a whole split: pooled, as a distribution over clients, and by strata."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pfl_bench.client.forward import Forward
from pfl_bench.client.prefetch import prefetch
from pfl_bench.evaluation.per_client import GroupSums, over_clients
from pfl_bench.evaluation.strata import Columns, Strata, Stratum
from pfl_bench.types import (
    Examples,
    FederatedSplit,
    Metric,
    PersonalModels,
    PluginError,
    place_of,
    returned,
)

# Beside what families measure.
COUNTS = frozenset({"num_examples", "num_clients", "num_clients_without_examples"})
# Enough for the size of a loss.
_START_EXAMPLES = 16
# Numbers of the inputs that go through a model at once on a CPU: 55 pictures of 3 x 224 x 224.
# ResNet-18 takes 13 MB for each of them, and no more of them at once are any faster.
CPU_NUMBERS = 1 << 23


def examples_at_once(input_shape: Sequence[int], device: torch.device) -> int | None:
    """Examples of a shape that go through a model at once; None for as many as a batch has.

    A batch of large inputs fits an accelerator. In a computer's main memory it would take gigabytes
    and gain nothing.
    """
    if device.type != "cpu":
        return None
    return max(1, CPU_NUMBERS // max(1, math.prod(input_shape)))


@dataclass(slots=True)
class Measured:
    """Sums of a pass over (a part of) a split, as they cross processes.

    ``families`` has of each of the metrics the sums by client, ``strata`` of each column what its
    values came to; ``first_client`` and ``last_client`` are -1 without any.
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
        """Everything that was measured, by name.

        Under "<split>/": each metric over all examples that were evaluated; for each value that
        examples have on their own, such as accuracy, how it spreads over clients
        (``per_client.over_clients``) and over the values of each column (``Stratum.scalars``), an
        example weighing what its family says, such as its tokens; and "num_examples",
        "num_clients" (that were evaluated on at least one), and with personal models
        "num_clients_without_examples", which are left out of everything else. UserInputError if
        nothing was evaluated, so that there is no mean.
        """
        result: dict[str, float] = {}
        for metric in self.metrics:
            found = _computed(metric)
            if twice := sorted(found.keys() & (COUNTS | result.keys())):
                places = [place_of(m, "compute") for m in self.metrics if twice[0] in m.compute()]
                raise PluginError(
                    f"{' and '.join(places)}: two values are named '{twice[0]}'; rename one"
                )
            result |= found
        for family in self.families:
            result |= over_clients(family)
        for stratum in self.strata:
            result |= stratum.scalars()
        result["num_examples"] = self.num_examples
        result["num_clients"] = self.num_clients
        if is_personal:
            result["num_clients_without_examples"] = split.num_users - self.num_clients
        return {f"{split.name}/{name}": float(value) for name, value in result.items()}


def _computed(metric: Metric) -> dict[str, float]:
    """Values of a metric by name, which a plug-in may not have; then PluginError."""
    found = metric.compute()
    try:
        return {name: float(value) for name, value in found.items()}
    except (AttributeError, TypeError, ValueError):
        raise PluginError(
            f"{place_of(metric, 'compute')} returns {found!r:.60}, but must return numbers by "
            "name, such as {'accuracy': 0.5}"
        ) from None


class _MicroBatch(NamedTuple):
    """Examples that go through the model at once: a batch, or a (last) part of one.

    ``clients`` has shape (n,); ``columns`` are those of the strata.
    """

    clients: NDArray[np.int64]
    examples: Examples
    columns: Columns
    is_last: bool = True


class _Pass:
    """Takes micro-batches in; values are summed by batch, so micro-batches change no metric."""

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
        self.measured = Measured(metrics, families, [] if strata is None else strata.parts)
        self._held: list[_Held] = []

    @torch.no_grad()
    def take(self, micro: _MicroBatch) -> None:
        """Evaluate a micro-batch; clients ascend within and between them."""
        device, examples = self._forward.device, micro.examples
        outputs = self._forward.outputs(examples.inputs.to(device, non_blocking=True))
        targets = examples.targets.to(device, non_blocking=True)
        self._held.append((micro.clients, outputs, targets, micro.columns))
        if micro.is_last:
            held, self._held = self._held, []
            self._take_batch(*(held[0] if len(held) == 1 else _joined(held)))

    def _take_batch(
        self, clients: NDArray[np.int64], outputs: Tensor, targets: Tensor, columns: Columns
    ) -> None:
        measured = self.measured
        taken = []
        for metric, family in zip(measured.metrics, measured.families, strict=True):
            found = returned(metric, "update", metric.update(outputs, targets), dict)
            for column in found.values():
                returned(metric, "update", column, Tensor, (len(clients),))
            values = {name: column.cpu().double().numpy() for name, column in found.items()}
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


# Nine parameters: two of them are the model and the data, the others each have a default.
def measure(
    forward: Forward,
    split: FederatedSplit,
    metrics: Sequence[Metric],
    batch_size: int,
    data_workers: int = 0,
    strata: Strata | None = None,
    personal: PersonalModels | None = None,
    part: tuple[int, int] = (0, 1),
    at_once: int | None = None,
) -> Measured:
    """Evaluate on the examples of a split, in one pass, in memory that grows with its clients.

    Args:
        forward: The model and how a batch goes through it; the model is put in evaluation mode,
            and back into the mode it was in.
        split: Users and examples.
        metrics: Empty accumulators.
        batch_size: Examples whose values are summed at once.
        data_workers: Threads that read ahead; 0 reads in line, as does evaluation with personal
            models.
        strata: The columns that tell examples apart, empty; afterwards it has their tables.
        personal: Gives each client the model that it is evaluated with, and says on which of its
            examples; None evaluates the model that is there on all examples.
        part: Of how many parts of the split, about equal in examples, this is which: (from 0,
            how many). With ``strata`` or ``personal`` no client is in two parts.
        at_once: Examples that are read and go through the model at once, at most; None for
            ``batch_size``. See ``examples_at_once``.
    """
    module = forward.module
    was_training = module.training
    taken = _Pass(forward, split, metrics, strata)
    users = _users_of(split, part)
    sizes = batch_size, min(at_once or batch_size, batch_size)
    try:
        module.eval()
        if personal is None:
            if strata is None:
                first, last = _share(split.num_examples, part)
            else:
                first, last = int(split.offsets[users.start]), int(split.offsets[users.stop])
            jobs = _ranges(split, sizes, strata, first, last)
            for micro in prefetch(jobs, data_workers):
                taken.take(micro)
        else:
            for micro in _by_user(split, users, sizes, strata, personal):
                # Making a client's model may have been training.
                module.eval()
                taken.take(micro)
    finally:
        module.train(was_training)
    return taken.measured


def _share(total: int, part: tuple[int, int]) -> list[int]:
    """Ends of a part's range among so many examples."""
    number, count = part
    return [total * place // count for place in (number, number + 1)]


def _users_of(split: FederatedSplit, part: tuple[int, int]) -> range:
    """The users of a part, as many as make its share of the examples."""
    number, count = part
    ends = _share(split.num_examples, part)
    first, last = np.searchsorted(split.offsets[:-1], ends).tolist()
    return range(first if number else 0, last if number + 1 < count else split.num_users)


# Examples of a batch and of a micro-batch.
_Sizes = tuple[int, int]


def _ranges(
    split: FederatedSplit, sizes: _Sizes, strata: Strata | None, first: int, last: int
) -> Iterator[Callable[[], _MicroBatch]]:
    batch_size, at_once = sizes
    for start in range(first, last, batch_size):
        end = min(start + batch_size, last)
        for place in range(start, end, at_once):
            stop = min(place + at_once, end)
            yield partial(_read, split, strata, place, stop, stop == end)


def _read(
    split: FederatedSplit, strata: Strata | None, start: int, stop: int, is_last: bool = True
) -> _MicroBatch:
    owners = np.searchsorted(split.offsets, np.arange(start, stop), side="right") - 1
    columns = [] if strata is None else strata.read(split.name, start, stop)
    return _MicroBatch(owners.astype(np.int64), split.read_range(start, stop), columns, is_last)


def _by_user(
    split: FederatedSplit,
    users: range,
    sizes: _Sizes,
    strata: Strata | None,
    personal: PersonalModels,
) -> Iterator[_MicroBatch]:
    batch_size, at_once = sizes
    for user in users:
        chosen = personal.personalise(split, user) + split.offsets[user]
        while len(chosen):
            # Examples that are near one another are read together; a large client in parts.
            count = int(np.searchsorted(chosen, chosen[0] + batch_size))
            for place in range(0, count, at_once):
                part = chosen[place : min(place + at_once, count)]
                read = _read(split, strata, int(part[0]), int(part[-1]) + 1)
                places = part - part[0]
                inputs, targets = read.examples.inputs[places], read.examples.targets[places]
                columns = [column[places] for column in read.columns]
                own, is_last = Examples(inputs, targets), place + at_once >= count
                yield _MicroBatch(read.clients[places], own, columns, is_last)
            chosen = chosen[count:]


@torch.no_grad()
def initial_loss(forward: Forward, split: FederatedSplit) -> float:
    """The task's loss of the model as it is, in its mode, on the first examples of a split."""
    module = forward.module
    was_training = module.training
    examples = split.read_range(0, min(_START_EXAMPLES, split.num_examples))
    inputs, targets = examples.inputs.to(forward.device), examples.targets.to(forward.device)
    module.eval()
    try:
        return float(forward.loss(inputs, targets, None))
    finally:
        module.train(was_training)


_Held = tuple[NDArray[np.int64], Tensor, Tensor, Columns]


def _joined(held: Sequence[_Held]) -> _Held:
    """The batch that some micro-batches make."""
    clients, outputs, targets, columns = zip(*held, strict=True)
    return (
        np.concatenate(clients),
        torch.cat(outputs),
        torch.cat(targets),
        [np.concatenate(parts) for parts in zip(*columns, strict=True)],
    )


def measured_names(
    forward: Forward,
    split: FederatedSplit,
    metrics: Sequence[Metric],
    strata: Strata | None = None,
    is_personal: bool = False,
) -> tuple[str, ...]:
    """Names of what is measured of a split, found out on one example and the model as it is.

    Metrics and strata, empty accumulators, are not empty afterwards.
    """
    was_training = forward.module.training
    taken = _Pass(forward, split, metrics, strata)
    forward.module.eval()
    taken.take(_read(split, strata, 0, 1))
    forward.module.train(was_training)
    return tuple(taken.measured.result(split, is_personal))
