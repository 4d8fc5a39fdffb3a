"""What a round really did, seen from outside the code that clips and noises, for the ledger.

Guarantee: nothing here changes a round or draws from its streams. What is recorded is computed
from the sum before and after, never from what the mechanism says of itself, so that an audit can
hold the mechanism's claims against it:

- one client a round, chosen at random, is *probed*: how far the sum really moved when its update
  was taken in, whatever the clipping code reports;
- the noise is what the release, times the configured cohort size, has beyond the sum. Divided by
  the standard deviation that is claimed, it is kept as sufficient statistics: count, sum, sum of
  squares, a histogram, its product with the sum (a noise that knows the data, or a wrong
  denominator, shows there) and with the noise of the round before (noise that is used again).

All of it describes a simulation from the inside. No deployment would keep or publish it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privacy.aggregate import Aggregate
from privacy.clipping import l2_norm
from privacy.errors import PrivacyError
from privacy.mechanism import Release

# Edges of the histogram, in standard deviations; two tails lie outside of them.
HISTOGRAM_EDGES = np.linspace(-4.0, 4.0, 33)
# At most so many elements are counted in the histogram and multiplied with the round before.
_SAMPLED = 1 << 17
_HEAD = 8
# Half a unit in the last place of a float32, relative: what one rounding can do at most.
_HALF_ULP = 2.0**-24


@dataclass(slots=True)
class _Probe:
    before: Tensor
    bit_before: float
    norm: float


class Observer:
    """Watches the rounds of one run; its state goes into the checkpoint.

    Args:
        cohort_size: The configured expected cohort, which every sum is to be divided by.
    """

    def __init__(self, cohort_size: float) -> None:
        self._cohort_size = float(cohort_size)
        self._last: Tensor | None = None
        self._probe: _Probe | None = None
        self._probed: dict[str, float | None] | None = None

    def begin(self) -> None:
        """Forget the round before's probe."""
        self._probe = self._probed = None

    def before(self, aggregate: Aggregate, update: Tensor) -> None:
        """Remember the sum, before the probed client's update is taken in.

        Args:
            aggregate: The round's sum.
            update: Shape (P,): the update as the client sends it.
        """
        total = _clean_total(aggregate)
        self._probe = _Probe(total.clone(), aggregate.bit_sum, l2_norm(update.to(torch.float32)))

    def after(self, aggregate: Aggregate) -> None:
        """See how far the sum has moved since ``before``."""
        assert self._probe is not None
        moved = l2_norm(_clean_total(aggregate) - self._probe.before)
        self._probed = {
            "norm": _finite(self._probe.norm),
            "moved": _finite(moved),
            "bit": aggregate.bit_sum - self._probe.bit_before,
        }
        self._probe = None

    def observe(self, release: Release, aggregate: Aggregate) -> dict[str, Any]:
        """What the ledger keeps of the round, JSON-serialisable.

        Args:
            release: What the mechanism released.
            aggregate: The sum that it was released from.

        Returns:
            "probe", "sum_norm" and "noise"; a number that is not finite is None.
        """
        total = _clean_total(aggregate)
        return {
            "probe": self._probed,
            "sum_norm": _finite(l2_norm(total)),
            "noise": self._noise(release, aggregate, total),
        }

    def _noise(
        self, release: Release, aggregate: Aggregate, total: Tensor
    ) -> dict[str, Any] | None:
        stddev = release.update_noise_stddev
        if not stddev > 0.0:
            self._last = None
            return None
        # In float64: the difference of two float32 that are nearly equal.
        noise = release.mean_update.detach().cpu().double().mul_(self._cohort_size)
        clean = total.detach().cpu().double()
        scale = math.sqrt(float(noise.square().mean()) if noise.numel() else 0.0)
        noise.sub_(clean).div_(stddev)
        sampled = noise[:: max(1, -(-noise.numel() // _SAMPLED))].clone()
        norm = float(torch.linalg.vector_norm(clean))
        product = float(torch.dot(noise, clean)) / norm if norm > 0.0 else 0.0
        lag = None
        if self._last is not None and self._last.shape == sampled.shape:
            lag = _finite(float(torch.dot(sampled, self._last)) / sampled.numel())
        self._last = sampled
        count_draw = None
        if release.noisy_fraction_unclipped is not None and release.count_noise_stddev:
            noisy = (release.noisy_fraction_unclipped - 0.5) * self._cohort_size
            count_draw = _finite((noisy - aggregate.bit_sum) / release.count_noise_stddev)
        return {
            "count": noise.numel(),
            "sum": _finite(float(noise.sum())),
            "sum_squares": _finite(float(noise.square().sum())),
            "histogram": _histogram(sampled),
            "head": [_finite(float(value)) for value in noise[:_HEAD]],
            "dot_sum": _finite(product),
            "lag_correlation": release.lag_correlation,
            "lag_product": lag,
            # The noise, the sum and the division each are rounded to float32 once.
            "rounding": _finite(math.sqrt(3.0) * _HALF_ULP * scale / stddev),
            "count_draw": count_draw,
        }

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to compare its first round with the last one before."""
        return {"last": self._last}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` gave.

        Raises:
            PrivacyError: It is not such a state.
        """
        if set(state) != {"last"}:
            raise PrivacyError(
                f"the saved state of the observer has the keys {sorted(state)}, but must have "
                "'last'; resume with the version that saved it, or start a new run folder"
            )
        self._last = state["last"]


def _clean_total(aggregate: Aggregate) -> Tensor:
    return aggregate.total if aggregate.clipped_total is None else aggregate.clipped_total


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _histogram(values: Tensor) -> list[int]:
    """Counts below the first edge, between edges, and from the last one on; NaN counts nowhere."""
    array = values.numpy()
    inside, _ = np.histogram(array, bins=HISTOGRAM_EDGES)
    below = int(np.count_nonzero(array < HISTOGRAM_EDGES[0]))
    above = int(np.count_nonzero(array > HISTOGRAM_EDGES[-1]))
    return [below, *map(int, inside), above]
