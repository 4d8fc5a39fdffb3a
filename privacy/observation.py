"""What a round really did, seen from outside the code that clips and noises, for the ledger.

Guarantee: nothing here changes a round or draws from its streams. What is recorded is computed
from the sum before and after, never from what the mechanism says of itself, so that an audit can
hold the mechanism's claims against it:

- clients are *probed*: how far the sum really moved when an update was taken in, whatever the
  clipping code reports. All of a round's where the model is small, and then also whether the sum
  moved between them; one a round, chosen at random, where it is not. Kept is the one that is
  furthest from what the bound allows;
- the noise is what the release, times the configured cohort size, has beyond the sum. Divided by
  the standard deviation that is claimed, it is kept as sufficient statistics: count, sum, sum of
  squares, a histogram, its product with the sum (a noise that knows the data, or a wrong
  denominator, shows there) and with the noise of the round before (noise that is used again).

All of it describes a simulation from the inside. No deployment would keep or publish it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privacy.aggregate import Aggregate
from privacy.clipping import l1_norm, l2_norm
from privacy.errors import PrivacyError
from privacy.mechanism import Release

# Edges of the histogram, in standard deviations; two tails lie outside of them.
HISTOGRAM_EDGES = np.linspace(-4.0, 4.0, 33)
# At most so many elements are counted in the histogram and multiplied with the round before.
_SAMPLED = 1 << 17
_HEAD = 8
# Up to so many parameters every client is probed; it then costs less than a local step.
PROBE_ALL = 1 << 15
# Half a unit in the last place of a float32, relative: what one rounding can do at most.
_HALF_ULP = 2.0**-24
# What a few dozen additions of float32 can do to a sum, relative to the norms of its parts.
_OF_ADDITIONS = 64 * _HALF_ULP


@dataclass(slots=True)
class _Probe:
    before: Tensor
    bit_before: float
    norm: float


@dataclass(frozen=True, slots=True)
class Seen:
    """What an observer saw of a part of a round that was summed apart.

    Attributes:
        worst: Its worst probe, and how wrong that was; None if nobody was probed.
        unseen: How far its sum moved while no client was taken in; None where not all are probed.
        total: Its sum, or some of its elements where not all are probed; None if nobody was there.
    """

    worst: tuple[float, dict[str, float | None]] | None
    unseen: float | None
    total: Tensor | None


class Observer:
    """Watches the rounds of one run; its state goes into the checkpoint.

    Args:
        cohort_size: The configured expected cohort, which every sum is to be divided by.
        norm: "l2", or "l1" where updates are clipped in that norm.
        probes_all: Whether every client of a round is probed, not one.
    """

    def __init__(self, cohort_size: float, norm: str = "l2", probes_all: bool = False) -> None:
        self._cohort_size = float(cohort_size)
        self._norm_of = l1_norm if norm == "l1" else l2_norm
        self._probes_all = probes_all
        self._chosen = -1
        self._taken = 0
        self._last: Tensor | None = None
        self._probe: _Probe | None = None
        self._worst: tuple[float, dict[str, float | None]] | None = None
        self._expected: Tensor | None = None
        self._unseen: float | None = None

    def begin(self, chosen: int) -> None:
        """Begin a round, or a part of one that is summed apart.

        Args:
            chosen: Which of the clients to come is probed, from 0, where not all are; negative or
                too large for none.
        """
        self._chosen, self._taken = chosen, 0
        self._probe = self._worst = self._expected = None
        self._unseen = 0.0 if self._probes_all else None

    def before(self, aggregate: Aggregate, update: Tensor) -> None:
        """Remember the sum, before a client's update is taken in, if the client is probed.

        Args:
            aggregate: The round's sum.
            update: Shape (P,): the update as the client sends it.
        """
        probed = self._probes_all or self._taken == self._chosen
        self._taken += 1
        if not probed:
            return
        total = _clean_total(aggregate)
        self._look_between(total)
        norm = self._norm_of(update.to(torch.float32))
        self._probe = _Probe(total.clone(), aggregate.bit_sum, norm)

    def after(self, aggregate: Aggregate, clip_norm: float) -> None:
        """See how far the sum has moved since ``before``, if that was a probe.

        Args:
            aggregate: The round's sum.
            clip_norm: The bound in force.
        """
        probe, self._probe = self._probe, None
        if probe is None:
            return
        total = _clean_total(aggregate)
        if self._probes_all:
            self._expected = total.clone()
        moved = self._norm_of(total - probe.before)
        bit = aggregate.bit_sum - probe.bit_before
        allowed = min(probe.norm, clip_norm) if math.isfinite(probe.norm) else 0.0
        sent = math.isfinite(probe.norm)
        wrong = abs(moved - allowed) / clip_norm + abs(abs(bit) - 0.5 * sent)
        wrong = wrong if math.isfinite(wrong) else math.inf
        if self._worst is None or wrong > self._worst[0]:
            seen = {"norm": _finite(probe.norm), "moved": _finite(moved), "bit": bit}
            self._worst = (wrong, seen)

    def seen(self, aggregate: Aggregate) -> Seen:
        """What was seen since ``begin``.

        Args:
            aggregate: The part's sum.
        """
        total = _clean_total(aggregate)
        self._look_between(total)
        expected = self._expected if self._probes_all else _some(total).clone()
        return Seen(self._worst, self._unseen, expected if self._taken else None)

    def merge(self, parts: Iterable[Seen], aggregate: Aggregate) -> None:
        """Take in what the observers of all parts of a round have seen, this one's too.

        Args:
            parts: In the order of the round's parts, whoever trained them.
            aggregate: The sum of all parts.

        Raises:
            PrivacyError: The parts do not come to the sum, and the ledger would not show it.
        """
        known = list(parts)
        # Who comes from now on, such as a canary, is no client of the round.
        self._chosen, self._probe = -1, None
        self._worst = max(
            (part.worst for part in known if part.worst is not None),
            key=lambda worst: worst[0],
            default=None,
        )
        total = _clean_total(aggregate)
        # What the parts come to together, which is the sum but for the rounding of its additions.
        # On the CPU: MPS has no float64, and other processes are on other GPUs.
        totals = [part.total.cpu().double() for part in known if part.total is not None]
        clean = (total if self._probes_all else _some(total)).cpu().double()
        expected = torch.stack(totals).sum(dim=0) if totals else torch.zeros_like(clean)
        moved = float(torch.linalg.vector_norm(clean - expected))
        rounding = math.fsum(float(torch.linalg.vector_norm(part)) for part in totals)
        is_wrong = not moved <= _OF_ADDITIONS * rounding
        if self._probes_all:
            self._unseen = math.fsum(part.unseen or 0.0 for part in known)
            self._unseen += moved if is_wrong else 0.0
            self._expected = total.clone()
        elif is_wrong:
            raise PrivacyError(
                f"the sums of a round's parts differ from the round's sum by {moved:.3g} in norm, "
                "where rounding explains "
                f"{_OF_ADDITIONS * rounding:.3g}: clients were lost or counted twice on the way; "
                "nothing was released, and the run can be resumed"
            )

    def _look_between(self, total: Tensor) -> None:
        """Add up how far the sum has moved while no client was taken in."""
        if self._unseen is None:
            return
        expected = torch.zeros_like(total) if self._expected is None else self._expected
        if not torch.equal(total, expected):
            self._unseen += self._norm_of(total - expected)

    def observe(self, release: Release, aggregate: Aggregate) -> dict[str, Any]:
        """What the ledger keeps of the round, JSON-serialisable.

        Args:
            release: What the mechanism released.
            aggregate: The sum that it was released from.

        Returns:
            "probe" (None if nobody was), "unseen" (how far the sum moved while no client was taken
            in; None where not all are probed), "sum_norm" and "noise"; a number that is not finite
            is None.
        """
        total = _clean_total(aggregate)
        self._look_between(total)
        return {
            "probe": None if self._worst is None else self._worst[1],
            "unseen": None if self._unseen is None else _finite(self._unseen),
            "sum_norm": _finite(self._norm_of(total)),
            "noise": self._noise(release, aggregate, total),
        }

    def _noise(
        self, release: Release, aggregate: Aggregate, total: Tensor
    ) -> dict[str, Any] | None:
        stddev = release.update_noise_stddev
        if not stddev > 0.0:
            self._last = None
            return None
        released, clean = release.mean_update.detach().cpu(), total.detach().cpu()
        count = released.numel()
        step = max(1, -(-count // _SAMPLED))
        sums = np.zeros(5)
        pieces = []
        # Pieces stay in the cache, and begin where the sample has an element.
        for start in range(0, count, _SAMPLED // step * step):
            place = slice(start, start + _SAMPLED // step * step)
            # In float64: the difference of two float32 that are nearly equal.
            noise = released[place].double().mul_(self._cohort_size)
            squares = float(torch.dot(noise, noise))
            known = clean[place].double()
            noise.sub_(known).div_(stddev)
            dots = (torch.dot(noise, noise), torch.dot(noise, known), torch.dot(known, known))
            sums += [squares, float(noise.sum()), *map(float, dots)]
            pieces.append(noise[::step].clone())
            if not start:
                head = [_finite(float(value)) for value in noise[:_HEAD]]
        scale, sum_, sum_squares, product, norm = sums.tolist()
        scale, norm = math.sqrt(scale / count), math.sqrt(norm)
        product = product / norm if norm > 0.0 else 0.0
        sampled = torch.cat(pieces)
        lag = None
        if self._last is not None and self._last.shape == sampled.shape:
            lag = _finite(float(torch.dot(sampled, self._last)) / sampled.numel())
        self._last = sampled
        count_draw = None
        if release.noisy_fraction_unclipped is not None and release.count_noise_stddev:
            noisy = (release.noisy_fraction_unclipped - 0.5) * self._cohort_size
            count_draw = _finite((noisy - aggregate.bit_sum) / release.count_noise_stddev)
        return {
            "count": count,
            "sum": _finite(sum_),
            "sum_squares": _finite(sum_squares),
            "histogram": _histogram(sampled),
            "head": head,
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
        last = state["last"]
        if last is not None and not (isinstance(last, Tensor) and last.dtype == torch.float64):
            raise PrivacyError(
                f"the saved state of the observer has {type(last).__name__} for the noise of the "
                "round before, but must have a float64 tensor; start a new run folder"
            )
        self._last = last


class ParticipationHistory:
    """Who took part how often and when, so that a line can hold what a sampler's law predicts.

    Args:
        num_users: Users of the data.
    """

    def __init__(self, num_users: int) -> None:
        self._counts = np.zeros(num_users, dtype=np.int64)
        self._last = np.zeros(num_users, dtype=np.int64)

    def add(self, users: NDArray[np.int64], round_number: int) -> dict[str, int | None]:
        """Take in a round.

        Args:
            users: Shape (n,): who was drawn.
            round_number: From 1.

        Returns:
            "returning": the sum over who was drawn of the rounds that each was in before;
            "smallest_gap": the fewest rounds since one of them was last in; None if all are new;
            "largest_count": the most rounds that one of them has been in, this one included; 0
            for nobody. The largest of all lines is the most that any user was in.
        """
        returning = int(self._counts[users].sum())
        again = users[self._last[users] > 0]
        gap = round_number - int(self._last[again].max()) if len(again) else None
        np.add.at(self._counts, users, 1)
        self._last[users] = round_number
        largest = int(self._counts[users].max(initial=0))
        return {"returning": returning, "smallest_gap": gap, "largest_count": largest}

    def state_dict(self) -> dict[str, Tensor]:
        """Counts and last rounds."""
        return {
            "counts": torch.from_numpy(self._counts.copy()),
            "last": torch.from_numpy(self._last.copy()),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what ``state_dict`` gave.

        Raises:
            PrivacyError: It is of other users.
        """
        shapes = {name: tuple(state[name].shape) for name in ("counts", "last") if name in state}
        if set(state) != {"counts", "last"} or set(shapes.values()) != {self._counts.shape}:
            raise PrivacyError(
                f"the saved history of participation has {shapes}, but the data have "
                f"{len(self._counts)} users; resume with the data that the run was started with"
            )
        self._counts = state["counts"].numpy().copy()
        self._last = state["last"].numpy().copy()


def _clean_total(aggregate: Aggregate) -> Tensor:
    return aggregate.total if aggregate.clipped_total is None else aggregate.clipped_total


def _some(total: Tensor) -> Tensor:
    """Elements all over a vector, ``PROBE_ALL`` or a few more."""
    return total[:: max(1, total.numel() // PROBE_ALL)]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _histogram(values: Tensor) -> list[int]:
    """Counts below the first edge, between edges, and from the last one on; NaN counts nowhere."""
    array = values.numpy()
    inside, _ = np.histogram(array, bins=HISTOGRAM_EDGES)
    below = int(np.count_nonzero(array < HISTOGRAM_EDGES[0]))
    above = int(np.count_nonzero(array > HISTOGRAM_EDGES[-1]))
    return [below, *map(int, inside), above]
