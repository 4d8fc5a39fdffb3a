"""Mean and variance of each channel of the examples' features, released with noise.

Guarantee: unit example; adjacency add-or-remove-one, or zero-out where the batches' scheme has it.
Two vectors of an example count: the mean of each channel over its positions, and the mean of the
channel's square. Each is clipped in L2 norm to a bound that nobody has taken from the data, so that
an example more or less moves the sum of either by at most its bound. Each sum gets Gaussian noise
of standard deviation ``noise_multiplier`` times its bound, once, in every element. The two releases
are two Gaussian mechanisms of that multiplier, composed with whatever is released of the same
examples (``privacy.amplification.after_gaussians``). What is made of the noised sums is
post-processing. The number of examples, by which they are divided, is taken as public, as it is in
the sampling rate.

Source: Tramer and Boneh 2021, "Differentially private learning needs better features (or much more
data)", appendix A (whose code takes the bounds from the data, which is outside of any guarantee).
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privacy.errors import PrivacyError

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class FeatureStatistics:
    """Settings of the release of the statistics.

    Attributes:
        noise_multiplier: Standard deviation of the noise on either sum, in multiples of its bound;
            positive and finite.
        mean_clip_norm: L2 bound of an example's channel means, positive and finite.
        square_clip_norm: L2 bound of an example's channel mean squares, positive and finite.

    Raises:
        PrivacyError: A number is out of its range.
    """

    noise_multiplier: float
    mean_clip_norm: float
    square_clip_norm: float

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not 0.0 < value < math.inf:
                raise PrivacyError(
                    f"the statistics' {name} is {value!r}, but must be positive and finite: without"
                    " it one example could move the statistics by any amount, or nothing hides it"
                )

    @property
    def noise_multipliers(self) -> tuple[float, float]:
        """Those of the two releases."""
        return self.noise_multiplier, self.noise_multiplier

    @property
    def bounds(self) -> tuple[float, float]:
        """L2 bounds of means and mean squares."""
        return self.mean_clip_norm, self.square_clip_norm


@dataclass(frozen=True, slots=True)
class ReleasedStatistics:
    """Released statistics, all that may be used.

    Attributes:
        mean: Shape (K,): noised mean of each channel.
        square: Shape (K,): noised mean of each channel's square.
    """

    mean: Array
    square: Array

    @property
    def variance(self) -> Array:
        """Shape (K,): of each channel, at least 0; 0 where noise has hidden it."""
        return np.maximum(self.square - self.mean**2, 0.0)

    @property
    def digest(self) -> str:
        """SHA-256 of both, in hexadecimal."""
        return hashlib.sha256(self.mean.tobytes() + self.square.tobytes()).hexdigest()


class StatisticsSums:
    """Adds up examples' clipped vectors, and releases the sums once."""

    def __init__(self, request: FeatureStatistics) -> None:
        self._request = request
        self._sums: list[Array | float] = [0.0, 0.0]

    def add(self, means: Array, squares: Array) -> None:
        """Add examples' channel means and mean squares, shape (n, K) each.

        A row that is not finite counts nothing.
        """
        for place, vectors in enumerate((means, squares)):
            clipped = _clip(np.asarray(vectors, np.float64), self._request.bounds[place])
            self._sums[place] = self._sums[place] + clipped.sum(axis=0)

    def release(self, num_examples: int, rng: np.random.Generator) -> ReleasedStatistics:
        """Noise both sums and divide them by the number of examples, which is public.

        ``rng`` is a stream of its own.
        """
        noised = []
        for total, bound in zip(self._sums, self._request.bounds, strict=True):
            noise = rng.normal(0.0, self._request.noise_multiplier * bound, np.shape(total))
            noised.append(np.asarray(total + noise) / num_examples)
        return ReleasedStatistics(*noised)


def _clip(vectors: Array, bound: float) -> Array:
    """Scale each row beyond the bound down to it; rows that are not finite become zero."""
    finite = np.asarray(np.isfinite(vectors).all(axis=1))
    kept = np.where(finite[:, None], vectors, 0.0)
    # Of a row divided by its largest element, or by a bound above that, no square overflows.
    unit = np.maximum(np.abs(kept).max(axis=1, initial=0.0), bound)
    room = bound / unit
    norms = np.linalg.norm(kept / unit[:, None], axis=1)
    return np.asarray(kept * (room / np.maximum(norms, room))[:, None])


class StatisticsWatch:
    """Measures the noise of a release from outside, by sums of its own."""

    def __init__(self, request: FeatureStatistics) -> None:
        self._request = request
        self._sums: list[Array | float] = [0.0, 0.0]

    def add(self, means: Array, squares: Array) -> None:
        """See examples, as ``StatisticsSums.add`` does."""
        for place, vectors in enumerate((means, squares)):
            rows = [row for row in np.asarray(vectors, np.float64) if np.isfinite(row).all()]
            bound = self._request.bounds[place]
            for row in rows:
                self._sums[place] = self._sums[place] + row / max(1.0, math.hypot(*row) / bound)

    def record(self, released: ReleasedStatistics, num_examples: int) -> dict[str, Any]:
        """Record of the release for a ledger: of each vector, elements and squares of its noise.

        JSON-serialisable; the noise is in multiples of the standard deviation that is claimed.
        """
        record: dict[str, Any] = {"release_sha256": released.digest}
        parts = ("mean", released.mean), ("square", released.square)
        for place, (name, vector) in enumerate(parts):
            scale = self._request.noise_multiplier * self._request.bounds[place]
            noise = (vector * num_examples - self._sums[place]) / scale
            record[name] = {"count": len(vector), "sum_squares": float(np.square(noise).sum())}
        return record
