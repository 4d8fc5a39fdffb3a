"""A few numbers of one round's noise, by which an audit can tell it from independent draws.

Guarantee: none of its own; the vector is not changed, and nothing is drawn. All elements are looked
at. Besides count, sum and sum of squares there are:

- how many elements are beyond some bounds, and the largest: noise that is cut or drawn again has
  none beyond the cut;
- how many are next to zero: elements that get no noise are at the level of rounding;
- how many *windows* of ``WINDOW`` neighbouring elements come again somewhere, as they are, negated
  or in reverse order, to within ``SAME``: a layer that is seeded anew repeats another's draws. All
  windows of small vectors; of large ones those whose middle is of a certain size, because what is
  repeated has the same middle, and so is chosen in both places;
- the correlation with itself at the lag where it is largest, of the first ``CORRELATED`` elements;
- how many of the first ``FIRST`` elements have a twin, no further away than ``TWIN``: noise from a
  coarse grid or a table has many;
- the ``PEAKS`` largest elements, each between its two neighbours: noise that is used again in
  another round, wherever and in whatever order of its parts, has the same;
- sums of segments, each over the root of its length, which an audit compares over all rounds.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Bounds of the tails, and of what is next to zero, in standard deviations. Those of the tails are
# a little beyond round numbers: what is cut off at one stays within it, however it is rounded.
TAILS = (2.01, 2.51, 3.01, 3.51, 4.01, 5.01, 6.01)
NEAR_ZERO = (1e-2, 1e-4, 1e-6, 1e-8)
SEGMENTS = 16
WINDOW = 5
# Two elements are the same that are no further apart: many times what float32 rounds away, and so
# little that five independent ones are never the same.
SAME = 5e-5
# Elements whose magnitude is from here on are chosen as the middles of windows, if not all are.
MIDDLE = 0.5
# So many windows are chosen, about; below twice as many all are.
CHOSEN = 1 << 13
# Elements of which two are twins, whatever their signs, that are no further apart than this.
FIRST = 1 << 11
TWIN = 1e-6
PEAKS = 4
# Elements that are looked at together; they stay in the cache.
PIECE = 1 << 17
# The first elements, which are correlated with one another.
CORRELATED = 1 << 15
# Neighbours, in the order of their middles, that a window is compared with.
_NEIGHBOURS = 4
# Density of the magnitude of a draw of variance 1 at MIDDLE: 0.704 (Gaussian), 0.697 (Laplace).
_DENSITY_AT_MIDDLE = 0.7
_HALF = WINDOW // 2


def middle_width(count: float) -> float:
    """Width of the range from ``MIDDLE`` on in which chosen middles are; infinite for all.

    Args:
        count: Elements of the vector.
    """
    return math.inf if count <= 2 * CHOSEN else CHOSEN / (_DENSITY_AT_MIDDLE * count)


class NoiseRecord:
    """Takes in a vector of noise piece by piece, in order.

    Args:
        count: Elements of the whole vector.
        draw: Noise of the count, in standard deviations; None if there is none.
    """

    def __init__(self, count: int, draw: float | None) -> None:
        self._count = count
        self._draw = draw
        self._tails = np.zeros(len(TAILS), dtype=np.int64)
        self._near = np.zeros(len(NEAR_ZERO), dtype=np.int64)
        self._largest = 0.0
        self._distance = math.inf
        self._width = middle_width(count)
        self._windows: list[NDArray[np.float64]] = []
        self._places: list[NDArray[np.int64]] = []
        self._before = torch.empty(0, dtype=torch.float64)
        self._ends = [count * k // SEGMENTS for k in range(SEGMENTS + 1)]
        self._sums = np.zeros(SEGMENTS)
        self._lag: tuple[int, float] | None = None
        self._twins = 0
        self._peaks = torch.empty((0, 3), dtype=torch.float64)

    def add(self, start: int, noise: Tensor) -> None:
        """Take in a piece.

        Args:
            start: Index of its first element.
            noise: Shape (n,), float64, on the CPU, in standard deviations; not changed.
        """
        size = noise.abs()
        # As numpy has it, NaN stays.
        self._largest = float(np.maximum(self._largest, float(size.max())))
        # Of the largest alone is asked again: most elements are within the first bound.
        large, small = size[size > TAILS[0]], size[size < NEAR_ZERO[0]]
        self._tails += [int((large > bound).sum()) for bound in TAILS]
        self._near += [int((small < bound).sum()) for bound in NEAR_ZERO]
        if self._draw is not None:
            nearest = float((size - abs(self._draw)).abs_().min())
            self._distance = float(np.minimum(self._distance, nearest))
        for segment in range(SEGMENTS):
            first, last = self._ends[segment] - start, self._ends[segment + 1] - start
            if last > 0 and first < len(noise) and last > first:
                self._sums[segment] += float(noise[max(0, first) : last].sum())
        if not start:
            self._lag = _largest_lag(noise[:CORRELATED].numpy())
            gaps = torch.diff(size[:FIRST].sort().values)
            self._twins = int((gaps < TWIN).sum())
        if len(noise) >= 3:
            places = size[1:-1].topk(min(PEAKS, len(noise) - 2)).indices
            found = torch.stack([noise[places], noise[places + 1], noise[places + 2]], dim=1)
            joined = torch.cat([self._peaks, found])
            order = joined[:, 1].abs().argsort(descending=True, stable=True)
            self._peaks = joined[order[:PEAKS]]
        self._choose(start, noise)

    def _choose(self, start: int, noise: Tensor) -> None:
        # Windows reach over the end of a piece.
        joined = torch.cat([self._before, noise]).numpy()
        first = start - len(self._before)
        self._before = noise[-2 * _HALF :].clone()
        if len(joined) < WINDOW or len(self._windows) * PIECE > 64 * self._count:
            return
        middle = np.abs(joined[_HALF : len(joined) - _HALF])
        if math.isinf(self._width):
            at = np.arange(len(middle))
        else:
            at = np.flatnonzero((middle >= MIDDLE) & (middle < MIDDLE + self._width))[:CHOSEN]
        self._windows.append(joined[at[:, None] + np.arange(WINDOW)])
        self._places.append(at + first)

    def result(self) -> dict[str, Any]:
        """The numbers, JSON-serialisable; one that is not finite is None."""
        windows, lengths = 0, np.diff(self._ends)
        repeats = 0
        if self._windows:
            chosen, places = np.concatenate(self._windows), np.concatenate(self._places)
            windows, repeats = len(chosen), count_repeats(chosen, places)
        sums = self._sums / np.sqrt(np.maximum(1, lengths))
        lag, product = self._lag or (0, 0.0)
        return {
            "tails": self._tails.tolist(),
            "near_zero": self._near.tolist(),
            "largest": finite(self._largest),
            "windows": windows,
            "repeats": repeats,
            "self_lag": lag,
            "self_product": finite(product),
            "segments": [
                finite(value)
                for value, length in zip(sums.tolist(), lengths, strict=True)
                if length
            ],
            "twins": self._twins,
            "peaks": [finite(value) for value in self._peaks.flatten().tolist()],
            "count_distance": finite(self._distance),
        }


def count_repeats(windows: NDArray[np.float64], places: NDArray[np.int64]) -> int:
    """How many windows are those of another place, negated or in reverse order too.

    Args:
        windows: Shape (m, WINDOW).
        places: Shape (m,): where the first element of each is.
    """
    signed = windows * np.where(windows[:, _HALF] < 0.0, -1.0, 1.0)[:, None]
    order = np.argsort(signed[:, _HALF], kind="stable")
    signed, places = signed[order], places[order]
    found = np.zeros(len(signed), dtype=np.bool_)
    for step in range(1, min(_NEIGHBOURS, len(signed) - 1) + 1):
        one, other = signed[:-step], signed[step:]
        near = np.flatnonzero(other[:, _HALF] - one[:, _HALF] < SAME)
        one, other = one[near], other[near]
        same = (np.abs(one - other) < SAME).all(axis=1)
        # Overlapping windows in reverse order have elements in common, which are always the same.
        apart = np.abs(places[near] - places[near + step]) >= WINDOW
        same |= (np.abs(one - other[:, ::-1]) < SAME).all(axis=1) & apart
        found[near[same]] = found[near[same] + step] = True
    return int(found.sum())


def _largest_lag(noise: NDArray[np.float64]) -> tuple[int, float] | None:
    """The lag at which a vector goes most with itself: the lag, and the sum of products."""
    count = len(noise)
    if count < 2 or not np.isfinite(noise).all():
        return None
    spectrum = np.fft.rfft(noise, 1 << (2 * count - 1).bit_length())
    products = np.fft.irfft(spectrum.real**2 + spectrum.imag**2)[1:count]
    lags = np.arange(1, count)
    best = int(np.argmax(np.abs(products) / np.sqrt(count - lags)))
    return best + 1, float(np.dot(noise[best + 1 :], noise[: count - best - 1]))


def finite(value: float) -> float | None:
    """A number for JSON, which has none that is not finite."""
    return value if math.isfinite(value) else None
