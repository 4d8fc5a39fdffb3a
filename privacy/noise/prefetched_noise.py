"""Noise that is drawn while clients train: it depends on neither their updates nor the bound.

Guarantee: a mechanism gets exactly the draws that the stream itself would give it, in their order
and each of them once. A mechanism is given this in the place of the stream, so that none can be
drawn past what was prefetched. A thread that failed gives an error, never memory that it has not
written.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, overload

import numpy as np
from numpy.typing import NDArray

from privacy.mechanism import BeginsWithNormals, Mechanism, Release

if TYPE_CHECKING:
    from privacy.aggregate import Aggregate

# Draws that a thread is worth: a thousandth of a second's.
SMALLEST = 1 << 16
# No more are held, in 128 MiB; the rest is drawn when it is asked for.
_LARGEST = 1 << 24


def prefetched_release(
    rng: np.random.Generator, mechanism: Mechanism, num_parameters: int
) -> Callable[[Aggregate], Release]:
    """Begin to draw the noise of a round's release, if it is enough for a thread.

    What is returned releases the round's sum, once. The noise is held until the result is gone: 8
    bytes a parameter, 128 MiB at most. ``rng``, the round's source of noise, must not be used
    otherwise from now on.
    """
    asked: object = mechanism
    is_worth_it = mechanism.update_noise_multiplier != 0.0 and num_parameters >= SMALLEST
    if is_worth_it and isinstance(asked, BeginsWithNormals) and asked.begins_with_normals:
        begun, prefetched = asked, PrefetchedNoise(rng, min(num_parameters, _LARGEST))
        return lambda aggregate: begun.release(aggregate, prefetched)
    return lambda aggregate: mechanism.release(aggregate, rng)


class PrefetchedNoise:
    """A source of standard normals, the first ``count`` of which a thread draws, in float64."""

    def __init__(self, rng: np.random.Generator, count: int) -> None:
        self._rng = rng
        self._drawn = np.empty(count)
        self._taken = 0
        executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="noise")
        # At once: numpy lets the interpreter go meanwhile, and needs it again only at the end.
        self._done = executor.submit(rng.standard_normal, out=self._drawn)
        executor.shutdown(wait=False)

    @overload
    def standard_normal(self, size: None = None) -> float: ...
    @overload
    def standard_normal(self, size: int) -> NDArray[np.float64]: ...

    def standard_normal(self, size: int | None = None) -> float | NDArray[np.float64]:
        """Give the next standard normals, float64, shape (size,); one number without a size."""
        self._done.result()
        count = 1 if size is None else size
        ready = self._drawn[self._taken : self._taken + count]
        self._taken += len(ready)
        if len(ready) < count:
            # Of what was drawn ahead nothing is left: the stream goes on where the thread stopped.
            ready = np.concatenate([ready, self._rng.standard_normal(count - len(ready))])
        return float(ready[0]) if size is None else ready
