"""Measurement of each client's move of a round's sum, from outside the code that clips.

Guarantee: the sum is compared before and after each client, whatever the clipping code reports, and
is not changed. Kept are of all clients the one that is furthest from what the clip is stated to
make of its update (where no more than a bound is stated, the one that moved the sum most), how far
the sum moved between clients, and, where clients noise their updates themselves, how long their
reports are, how long their noise, and how far reports point along the updates that they are about.

Cost: one vector of the model's length (two where clients add noise), and three passes over it a
client, beside the two of the clip itself. What is measured on a GPU stays there until ``settle``
reads it all at once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from privacy.aggregate import Aggregate
from privacy.clipping import NORMS, norm_in_place
from privacy.errors import PrivacyError
from privacy.recording.shard_observation import Probe, Reports, ShardObservation, settle

# Up to so many parameters every client is watched; of larger models one a round, so that no vector
# of theirs is kept.
WATCH_ALL = 1 << 24
# So many elements of the parts' sums are compared with the whole's.
COMPARED = 1 << 15
# Half a unit in the last place of a float32, relative: what one rounding can do at most.
HALF_ULP = 2.0**-24
# What a few dozen additions of float32 can do to a sum, relative to the norms of its parts.
_OF_ADDITIONS = 64 * HALF_ULP
# On the CPU, so many elements stay in the cache.
_CHUNK = 1 << 16


class SumWatch:
    """Watches the sum of a round, or of a part of one, in the norm that updates are clipped in.

    ``watches_all`` says whether every client is watched, not one.
    """

    def __init__(self, norm: str, watches_all: bool, clips_to_bound: bool = True) -> None:
        self._norm = norm
        self._norm_of = NORMS[norm]
        self._all = watches_all
        self._clips_to_bound = clips_to_bound
        self._chosen = -1
        self._taken = 0
        # The clean sum as it was last seen, and the noised one; None is zero.
        self._known: Tensor | None = None
        self._noised: Tensor | None = None
        self._sent: tuple[float | Tensor, float] | None = None
        self._seen = ShardObservation(None, None, None)
        self._probes: list[Probe] = []
        self._between: list[float | Tensor] = []

    def begin(self, chosen: int) -> None:
        """Begin a part of a round.

        Where not all are watched, the client to come of number ``chosen``, from 0, is; negative or
        too large for none.
        """
        self._chosen, self._taken, self._sent = chosen, 0, None
        self._known = self._noised = None
        self._seen = ShardObservation(None, 0.0 if self._all else None, None)
        self._probes, self._between = [], []

    def before(self, aggregate: Aggregate, update: Tensor) -> None:
        """Look at the sum before an update, shape (P,), as a watched client sends it."""
        watched = self._all or self._taken == self._chosen
        self._taken += 1
        self._sent = None
        if not watched:
            return
        total = clean_total(aggregate)
        self._look_between(total)
        if self._known is None or not self._all:
            self._known = total.clone()
        if aggregate.clipped_total is not None or self._noised is not None:
            self._noised = aggregate.total.clone()
        self._sent = norm_in_place(update.to(torch.float32), self._norm), aggregate.bit_sum

    def after(self, aggregate: Aggregate, clip_norm: float) -> None:
        """See how far the sum has moved since ``before``, if that client was watched."""
        if self._sent is None:
            return
        (norm, bit_before), self._sent = self._sent, None
        assert self._known is not None
        total, bit = clean_total(aggregate), aggregate.bit_sum - bit_before
        products = None
        if aggregate.clipped_total is not None:
            products = self._report_products(aggregate.total, total)
        self._probes.append(Probe(norm, self._step(total), bit, clip_norm, products))

    def settle(self, parts: Iterable[ShardObservation]) -> list[ShardObservation]:
        """See ``privacy.recording.shard_observation.settle``."""
        return settle(parts, self._clips_to_bound)

    def seen(self, aggregate: Aggregate) -> ShardObservation:
        """Observations since ``begin``, for ``settle`` and ``merge``."""
        total = clean_total(aggregate)
        self._look_between(total)
        some = _some(total).clone() if self._taken else None
        return replace(self._seen, total=some, probes=self._probes, between=self._between)

    def merge(self, parts: Iterable[ShardObservation], aggregate: Aggregate) -> None:
        """Take in what was seen of all parts of a round, in their order, this one's too.

        ``PrivacyError``: the parts of a large model do not come to the sum.
        """
        known = self.settle(parts)
        # Who comes from now on, such as a canary, is no client of the round.
        self._chosen, self._sent = -1, None
        sent = [part.reports for part in known if part.reports is not None]
        reports = functools.reduce(Reports.merge, sent) if sent else None
        probed = [part.worst for part in known if part.worst is not None]
        worst = max(probed, key=lambda found: found[0], default=None)
        total = clean_total(aggregate)
        # What the parts come to together, which is the sum but for the rounding of its additions.
        # On the CPU: MPS has no float64, and other processes are on other GPUs.
        totals = _on_cpu([part.total for part in known if part.total is not None])
        clean = _some(total).cpu().double()
        expected = torch.stack(totals).sum(dim=0) if totals else torch.zeros_like(clean)
        moved = float(torch.linalg.vector_norm(clean - expected))
        rounding = math.fsum(float(torch.linalg.vector_norm(part)) for part in totals)
        unseen = math.fsum(part.unseen or 0.0 for part in known) if self._all else None
        if not moved <= _OF_ADDITIONS * rounding:
            if unseen is None or len(clean) < total.numel():
                raise PrivacyError(
                    f"the sums of a round's parts differ from the round's sum by {moved:.3g} in "
                    f"norm, where rounding explains {_OF_ADDITIONS * rounding:.3g}: clients were "
                    "lost or counted twice on the way; nothing was released, and the run can be "
                    "resumed"
                )
            unseen += moved
        if self._all:
            self._known = total.clone()
        self._seen = ShardObservation(
            worst, unseen, None, sum(part.watched for part in known), reports
        )
        self._probes, self._between = [], []

    def result(self, aggregate: Aggregate) -> ShardObservation:
        """Observations of the whole round."""
        self._look_between(clean_total(aggregate))
        seen = replace(self._seen, probes=self._probes, between=self._between)
        (self._seen,), self._probes, self._between = self.settle([seen]), [], []
        return self._seen

    def _look_between(self, total: Tensor) -> None:
        """Add up how far the sum has moved while no client was taken in."""
        if self._seen.unseen is None:
            return
        known = torch.zeros_like(total) if self._known is None else self._known
        # To know whether they are equal, the host would wait for a GPU.
        if total.device.type != "cpu" or not torch.equal(total, known):
            self._between.append(norm_in_place(total - known, self._norm))
            if self._known is not None:
                self._known.copy_(total)

    def _step(self, total: Tensor) -> float | Tensor:
        """Distance of the sum from where it was known to be, which it then is known to be."""
        assert self._known is not None
        if total.device.type != "cpu":
            moved = norm_in_place(total - self._known, self._norm)
            self._known.copy_(total)
            return moved
        found = 0.0
        buffer = torch.empty(min(_CHUNK, total.numel()), dtype=torch.float64)
        for start in range(0, total.numel(), _CHUNK):
            new, old = total[start : start + _CHUNK], self._known[start : start + _CHUNK]
            part = buffer[: len(new)].copy_(torch.sub(new, old, out=old))
            old.copy_(new)
            if self._norm == "linf":
                largest = self._norm_of(part)
                # Not ``max``, which loses a NaN.
                found = largest if math.isnan(largest) or largest > found else found
            else:
                found += float(part.abs_().sum() if self._norm == "l1" else torch.dot(part, part))
        return math.sqrt(found) if self._norm == "l2" else found

    def _report_products(self, noised: Tensor, clean: Tensor) -> Sequence[float | Tensor]:
        """Measure what the client sent against the update that it is about; see ``Probe``."""
        assert self._known is not None
        is_on_gpu = noised.device.type not in ("cpu", "mps")
        sums: list[float | Tensor] = [0.0, 0.0, 0.0]
        step = _CHUNK if noised.device.type == "cpu" else noised.numel()
        for start in range(0, noised.numel(), step):
            place = slice(start, start + step)
            report = _wide(noised[place])
            if self._noised is not None:
                report -= _wide(self._noised[place])
            update = _wide(clean[place]) - _wide(self._known[place])
            pairs = ((report, report), (update, update), (report, update))
            dots = [torch.dot(*pair) for pair in pairs]
            if is_on_gpu:
                return dots
            sums = [x + float(dot) for x, dot in zip(sums, dots, strict=True)]
        return sums


def clean_total(aggregate: Aggregate) -> Tensor:
    """The sum before any noise, shape (P,)."""
    return aggregate.total if aggregate.clipped_total is None else aggregate.clipped_total


def _wide(part: Tensor) -> Tensor:
    """A copy in float64; on the CPU where the device has none."""
    return (part.cpu() if part.device.type == "mps" else part).to(torch.float64, copy=True)


def _on_cpu(parts: Sequence[Tensor]) -> list[Tensor]:
    """Vectors of one length in float64 on the CPU; those of one GPU come together."""
    if len({part.device for part in parts}) == 1 and parts[0].device.type != "cpu":
        parts = torch.stack(list(parts)).cpu().unbind()
    return [part.cpu().double() for part in parts]


def _some(total: Tensor) -> Tensor:
    """Elements all over a vector, ``COMPARED`` or a few more."""
    return total[:: max(1, total.numel() // COMPARED)]
