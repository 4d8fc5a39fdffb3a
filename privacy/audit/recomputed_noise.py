"""Noise that was computed again, held against what a ledger's line has of it.

Guarantee: none of its own; what rounding may come to is stated in ``privacy.audit.recomputed``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privacy.audit.inputs import as_number
from privacy.reference.round import Round

ULP = 2.0**-24
_SEGMENTS = 16
_EXACT = 1e-9

Array = NDArray[np.float64]


def noise_problems(line: Mapping[str, Any], made: Round, relative: float) -> Iterator[str]:
    """Clauses of what differs in the noise on the sum; ``relative`` is R."""
    stddev, key = made.stddev, "update_noise_stddev"
    yield from recorded_number("noise's standard deviation", line, key, stddev, _EXACT * stddev)
    record = line.get("noise")
    if not isinstance(record, Mapping) or not stddev > 0.0:
        return
    unit = made.noise.numpy() / stddev
    count, near = len(unit), 64.0 * rounding_of(made) + made.mechanism.follows * relative
    for key, (expected, allowed) in sums_of(unit, near).items():
        found = np.atleast_1d(np.array(record.get(key), dtype=np.float64))
        same = found.shape == expected.shape
        far = float(np.abs(found - expected).max()) if same else math.inf
        if not far <= allowed:
            where = ""
            if key == "segments" and same:
                first, end = _segments(count)[int(np.argmax(np.abs(found - expected)))]
                where = f", most in elements {first} to {end - 1}"
            yield (
                f"noise vector: its {key.replace('_', ' of ')} of {count} elements differ by "
                f"{far:.3g} standard deviations, where rounding explains {allowed:.2g}{where}"
            )


def sums_of(noise: Array, near: float) -> dict[str, tuple[Array, float]]:
    """Numbers of noise, shape (P,), that a line has, and how far rounding may move each.

    Noise, and ``near`` of a segment, are in standard deviations.
    """
    root, parts = math.sqrt(len(noise)), _segments(len(noise))
    return {
        "head": (noise[:8], near * 4.0),
        "segments": (np.array([noise[a:b].sum() / math.sqrt(b - a) for a, b in parts]), near),
        "sum": (np.array([noise.sum()]), near * root),
        "sum_squares": (np.array([noise @ noise]), near * (2.0 * root + near * len(noise))),
    }


def _segments(count: int) -> list[tuple[int, int]]:
    """First element and end of each."""
    ends = [count * k // _SEGMENTS for k in range(_SEGMENTS + 1)]
    return [(a, b) for a, b in pairwise(ends) if b > a]


def report_problems(line: Mapping[str, Any], made: Round, near: float) -> Iterator[str]:
    """Clauses of what differs in the noise of clients' reports; ``near`` is A."""
    record, lengths = line.get("reports"), made.mechanism.lengths
    # Of huge models one client's report is measured.
    if not isinstance(record, Mapping) or not record.get("count") == len(lengths) > 0:
        return
    for what, key, wanted in (("least", "quietest", min), ("most", "loudest", max)):
        yield from recorded_number(f"{what} noise of a report", record, key, wanted(lengths), near)


def rounding_of(made: Round) -> float:
    """e: float32's own, and what the release's length makes of it; nothing that a line states."""
    length, count = float((made.total + made.noise).norm()), len(made.total)
    known = made.stddev > 0.0
    return ULP * (1.0 + (length * math.sqrt(3.0 / count) / made.stddev if known else 0.0))


def recorded_number(
    what: str, record: Mapping[str, Any], key: str, expected: float, allowed: float = 0.0
) -> Iterator[str]:
    """That a number is recorded as it was computed again; nothing where it is not recorded."""
    if key not in record:
        return
    found = as_number(record[key])
    is_lost = not (math.isfinite(expected) or math.isfinite(found))
    if not (is_lost or abs(found - expected) <= allowed):
        near = f", where rounding explains {allowed:.2g}" if allowed else ""
        yield f"{what}: {record[key]!r} is recorded, but computed again it is {expected:.12g}{near}"
