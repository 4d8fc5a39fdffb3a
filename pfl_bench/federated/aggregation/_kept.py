"""Base of aggregations that look at each update of a round: they are kept until the last.

None of them is private: each sees what every client sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from pfl_bench.federated.aggregation import Aggregation
from privacy.aggregate import Aggregate
from privacy.clipping import ClipOutcome
from privacy.mechanism import Release

# Elements that are copied at a time: 16 MB in float32.
_ELEMENTS = 1 << 22


class BufferedAggregation(Aggregation):
    """Makes one update of all of a round; memory is cohort times P (float32), plus 16 MB or so.

    Clients count alike. An update that is not finite is left out, and counted. A round with fewer
    updates than are needed, 1 or more, is left out, and counted: its update is zero, on which the
    central optimizer steps as on any other. How many come is up to chance and devices, and a run is
    not to end because of it. ``combine`` makes one vector of shape (P,), float32, of ``fewest`` or
    more.
    """

    keeps_updates = True
    scratch = ("name", "fewest")  # settings, as is how updates are combined

    def __init__(
        self, name: str, combine: Callable[[Sequence[Tensor]], Tensor], fewest: int = 1
    ) -> None:
        self.name = name
        self.fewest = fewest
        self.rounds_left_out = 0
        self._combine = combine

    def accumulate(
        self,
        aggregate: Aggregate,
        update: Tensor,
        weight: float,
        rng: np.random.Generator | None = None,
    ) -> ClipOutcome:
        """Keep a copy of one update, shape (P,), of any float dtype; the weight is 1."""
        outcome = super().accumulate(aggregate, update, weight)
        if outcome.finite:
            if aggregate.updates is None:
                aggregate.updates = []
            aggregate.updates.append(update.detach().to(torch.float32, copy=True))
        return outcome

    def release(self, aggregate: Aggregate, rng: np.random.Generator) -> Release:
        """Combine the round's updates, or leave the round out."""
        updates = aggregate.updates or []
        if len(updates) >= self.fewest:
            mean_update = self._combine(updates)
        else:
            self.rounds_left_out += 1
            mean_update = torch.zeros_like(aggregate.total, dtype=torch.float32)
        return Release(mean_update, clip_norm=None, update_noise_stddev=0.0)


def chunks(updates: Sequence[Tensor]) -> Iterator[tuple[slice, Tensor]]:
    """Go through n >= 1 updates, of shape (P,), some coordinates at a time: no second copy of all.

    Yields which coordinates, and a fresh tensor of shape (n, how many).
    """
    width = max(1, _ELEMENTS // len(updates))
    for start in range(0, updates[0].numel(), width):
        part = slice(start, start + width)
        yield part, torch.stack([update[part] for update in updates])


def trimmed(updates: Sequence[Tensor], cut: int) -> Tensor:
    """Mean of each coordinate's values without the ``cut`` smallest and ``cut`` largest.

    There are n > 2 * cut updates, float32 as the result, all of shape (P,).
    """
    result = torch.empty_like(updates[0])
    for part, values in chunks(updates):
        if values.device.type == "cpu":
            # A tenth of the time that torch's takes there.
            ordered = torch.from_numpy(np.sort(values.numpy(), axis=0))
        else:
            ordered = values.sort(dim=0).values
        result[part] = ordered[cut : len(updates) - cut].mean(dim=0)
    return result
