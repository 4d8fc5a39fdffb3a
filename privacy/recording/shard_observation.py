"""Observations of clients and of parts of a round, and the choice of those that are kept.

Guarantee: none of its own. It reads numbers that ``privacy.recording.sum_watch`` has measured, and
changes neither a sum nor a stream.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor


def finite(value: float) -> float | None:
    """A number for JSON, which has none that is not finite."""
    return value if math.isfinite(value) else None


@dataclass(frozen=True, slots=True)
class Reports:
    """Observations of reports by clients that noise their updates themselves."""

    count: int  # reports
    shortest: float  # smallest L2 norm of one
    longest: float  # largest
    quietest: float  # smallest L2 norm of what a report has beyond its clipped update
    loudest: float  # largest
    directed: int  # reports about an update that is not zero
    along: float  # sum over those of the report's product with the unit update
    along_squares: float  # sum of the squares of these
    clipped: float  # sum of the norms of the clipped updates
    excess_squares: float  # sum of the squares of product less norm

    def merge(self, other: Reports) -> Reports:
        """Those of both."""
        picks = {"shortest": min, "quietest": min, "longest": max, "loudest": max}
        pairs = zip(REPORT_KEYS, astuple(self), astuple(other), strict=True)
        return Reports(*(picks.get(key, operator.add)(one, two) for key, one, two in pairs))

    def to_json_dict(self) -> dict[str, float | None]:
        """Plain data; a number that is not finite is None."""
        return {key: finite(value) for key, value in asdict(self).items()}


# What a ledger's line holds of reports.
REPORT_KEYS = tuple(field.name for field in fields(Reports))


class Probe(NamedTuple):
    """Measurement of a client; a number is a scalar of float64 where it is still on a GPU."""

    norm: float | Tensor  # of its update
    moved: float | Tensor  # how far the sum moved
    bit: float  # how far the sum of bits moved
    clip_norm: float  # the bound in force
    # Of its report with itself, of its clipped update with itself, and of both; None where it adds
    # no noise.
    products: Sequence[float | Tensor] | None


@dataclass(frozen=True, slots=True)
class ShardObservation:
    """Observation of a part of a round that was summed apart."""

    # Its worst probe, and how wrong that was; None if nobody was probed.
    worst: tuple[float, dict[str, float | None]] | None
    # How far its sum moved while no client was taken in; None where not all are probed.
    unseen: float | None
    # Its sum, or some elements of that of a large model; None if nobody was there.
    total: Tensor | None
    watched: int = 0  # clients that were watched
    # Of clients that noise their updates themselves; None where none does.
    reports: Reports | None = None
    probes: Sequence[Probe] = ()  # clients that the others do not tell of so far; see ``settle``
    between: Sequence[float | Tensor] = ()  # moves of the sum that ``unseen`` does not hold so far


def settle(parts: Iterable[ShardObservation], clips_to_bound: bool) -> list[ShardObservation]:
    """Make of what ``SumWatch.seen`` gives of parts what is kept; a GPU is waited for once.

    The same parts come without ``probes`` and ``between``.
    """
    known = list(parts)
    measured: list[float | Tensor] = []
    for part in known:
        measured += part.between
        for probe in part.probes:
            measured += (probe.norm, probe.moved, *(probe.products or ()))
    scalars = [number for number in measured if isinstance(number, Tensor)]
    values = torch.stack(scalars).tolist() if scalars else []
    found = dict(zip(map(id, scalars), values, strict=True))
    return [_settled(part, found, clips_to_bound) for part in known]


def _settled(
    part: ShardObservation, found: Mapping[int, float], clips_to_bound: bool
) -> ShardObservation:
    def read(number: float | Tensor) -> float:
        return found[id(number)] if isinstance(number, Tensor) else number

    worst, unseen, reports = part.worst, part.unseen, part.reports
    for moved in part.between:
        assert unseen is not None
        unseen += read(moved)
    for probe in part.probes:
        seen = _judged(read(probe.norm), read(probe.moved), probe, clips_to_bound)
        if worst is None or seen[0] > worst[0]:
            worst = seen
        if probe.products is not None:
            report = _report(*map(read, probe.products))
            reports = report if reports is None else reports.merge(report)
    watched = part.watched + len(part.probes)
    return ShardObservation(worst, unseen, part.total, watched, reports)


def _judged(
    norm: float, moved: float, probe: Probe, clips_to_bound: bool
) -> tuple[float, dict[str, float | None]]:
    """Error of a client's move of the sum, in multiples of the bound, and the move itself."""
    bit, clip_norm = probe.bit, probe.clip_norm
    allowed = min(norm, clip_norm) if math.isfinite(norm) else 0.0
    # What moved less hides nothing where no more than a bound is stated.
    far = abs(moved - allowed) if clips_to_bound else moved
    # A client that must not have moved the sum at all comes before all that may.
    far += clip_norm * (not math.isfinite(norm)) * (moved != 0.0)
    wrong = far / clip_norm + abs(abs(bit) - 0.5 * math.isfinite(norm))
    wrong = wrong if math.isfinite(wrong) else math.inf
    return wrong, {"norm": finite(norm), "moved": finite(moved), "bit": bit}


def _report(*squares: float) -> Reports:
    """Numbers of one report, from its ``Probe.products``."""
    length, norm = math.sqrt(squares[0]), math.sqrt(squares[1])
    noise = math.sqrt(max(0.0, squares[0] + squares[1] - 2.0 * squares[2]))
    along = squares[2] / norm if norm > 0.0 else 0.0
    return Reports(
        1, length, length, noise, noise, int(norm > 0.0), along, along**2, norm,
        (along - norm) ** 2,
    )  # fmt: skip
