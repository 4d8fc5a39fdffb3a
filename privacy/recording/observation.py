"""Observation of a round from outside the code that clips and noises, for the ledger.

Guarantee: nothing here changes a round or draws from its streams. What is recorded is computed
from the sum before and after, never from what the mechanism says of itself, so that an audit can
hold the mechanism's claims against it:

- clients are *probed*: how far the sum really moved when an update was taken in, whatever the
  clipping code reports, and whether the sum moved between them (``privacy.recording.sum_watch``).
  Kept is the one that is furthest from what the bound allows;
- the noise is what the release, times the configured cohort size, has beyond the sum. Divided by
  the standard deviation that is claimed, it is kept as statistics that noise drawn again from the
  round's stream must have, too: the first elements, count, sum, sum of squares, sums of segments
  (each over the root of its length), and its product with the sum.

All of it describes a simulation from the inside. No deployment would keep or publish it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privacy.aggregate import Aggregate
from privacy.errors import PrivacyError
from privacy.mechanism import Release
from privacy.recording.shard_observation import finite
from privacy.recording.sum_watch import HALF_ULP, SumWatch, clean_total

# Elements that are looked at together, which stay in the cache.
_PIECE = 1 << 17
_HEAD = 8
SEGMENTS = 16


class Observer(SumWatch):
    """Watches the rounds of one run, whose sums are to be divided by ``cohort_size``.

    See ``SumWatch`` of the others; ``probes_all`` is its ``watches_all``.
    """

    def __init__(
        self,
        cohort_size: float,
        norm: str = "l2",
        probes_all: bool = False,
        clips_to_bound: bool = True,
    ) -> None:
        super().__init__(norm, probes_all, clips_to_bound)
        self._cohort_size = float(cohort_size)

    def observe(self, release: Release, aggregate: Aggregate) -> dict[str, Any]:
        """Record of the round for the ledger, JSON-serialisable; what is not finite is None.

        Has "probe" (None if nobody was), "watched" (how many were), "unseen" (how far the sum moved
        while no client was taken in; None where not all are probed), "reports" (None where clients
        add no noise), "sum_norm" and "noise".
        """
        total, seen = clean_total(aggregate), self.result(aggregate)
        return {
            "probe": None if seen.worst is None else seen.worst[1],
            "watched": seen.watched,
            "unseen": None if seen.unseen is None else finite(seen.unseen),
            "reports": None if seen.reports is None else seen.reports.to_json_dict(),
            "sum_norm": finite(self._norm_of(total)),
            "noise": self._noise(release, aggregate, total),
        }

    def _noise(
        self, release: Release, aggregate: Aggregate, total: Tensor
    ) -> dict[str, Any] | None:
        stddev = release.update_noise_stddev
        if not stddev > 0.0:
            return None
        released, clean = release.mean_update.detach().cpu(), total.detach().cpu()
        count = released.numel()
        sums = np.zeros(5)
        draw = None
        if release.noisy_fraction_unclipped is not None and release.count_noise_stddev:
            noisy = (release.noisy_fraction_unclipped - 0.5) * self._cohort_size
            draw = finite((noisy - aggregate.bit_sum) / release.count_noise_stddev)
        ends = [count * k // SEGMENTS for k in range(SEGMENTS + 1)]
        segments = np.zeros(SEGMENTS)
        for start in range(0, count, _PIECE):
            place = slice(start, start + _PIECE)
            # In float64: the difference of two float32 that are nearly equal.
            noise = released[place].double().mul_(self._cohort_size)
            squares = float(torch.dot(noise, noise))
            known = clean[place].double()
            noise.sub_(known).div_(stddev)
            dots = (torch.dot(noise, noise), torch.dot(noise, known), torch.dot(known, known))
            sums += [squares, float(noise.sum()), *map(float, dots)]
            for segment, (first, last) in enumerate(pairwise(ends)):
                if first < start + _PIECE and last > start:
                    part = noise[max(0, first - start) : last - start]
                    segments[segment] += float(part.sum())
            if not start:
                head = [finite(float(value)) for value in noise[:_HEAD]]
        scale, sum_, sum_squares, product, norm = sums.tolist()
        scale, norm = math.sqrt(scale / count), math.sqrt(norm)
        product = product / norm if norm > 0.0 else 0.0
        lengths = np.diff(ends)
        kept = lengths > 0
        return {
            "count": count,
            "sum": finite(sum_),
            "sum_squares": finite(sum_squares),
            "head": head,
            "dot_sum": finite(product),
            "lag_correlation": release.lag_correlation,
            # The noise, the sum and the division each are rounded to float32 once.
            "rounding": finite(math.sqrt(3.0) * HALF_ULP * scale / stddev),
            "count_draw": draw,
            "segments": [
                finite(value) for value in (segments[kept] / np.sqrt(lengths[kept])).tolist()
            ],
        }


class ParticipationHistory:
    """Users' participations by number and time, of which a sampler's law predicts statistics."""

    def __init__(self, num_users: int) -> None:
        self._counts, self._last = np.zeros((2, num_users), dtype=np.int64)

    def add(self, users: NDArray[np.int64], round_number: int) -> dict[str, int | None]:
        """Take in who was drawn in a round (from 1), shape (n,).

        "returning" is the sum over them of the rounds that each was in before; "smallest_gap" the
        fewest rounds since one of them was last in, None if all are new; "largest_count" the most
        rounds that one of them has been in, this one included, 0 for nobody.
        """
        returning = int(self._counts[users].sum())
        again = users[self._last[users] > 0]
        gap = round_number - int(self._last[again].max()) if len(again) else None
        np.add.at(self._counts, users, 1)
        self._last[users] = round_number
        largest = int(self._counts[users].max(initial=0))
        return {"returning": returning, "smallest_gap": gap, "largest_count": largest}

    def state_dict(self) -> dict[str, Tensor]:
        """Counts and last rounds, of shape (U,) each, int64."""
        return {
            "counts": torch.from_numpy(self._counts.copy()),
            "last": torch.from_numpy(self._last.copy()),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what ``state_dict`` gave, in the same shapes; else ``PrivacyError``."""
        shapes = {name: tuple(state[name].shape) for name in ("counts", "last") if name in state}
        if set(state) != {"counts", "last"} or set(shapes.values()) != {self._counts.shape}:
            raise PrivacyError(
                f"the saved history of participation has {shapes}, but the data have "
                f"{len(self._counts)} users; resume with the data that the run was started with"
            )
        self._counts = state["counts"].numpy().copy()
        self._last = state["last"].numpy().copy()
