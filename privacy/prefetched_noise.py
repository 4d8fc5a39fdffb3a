"""Noise that is drawn while clients train: it depends on neither their updates nor the bound.

Guarantee: a mechanism gets exactly the draws that the stream itself would give it, in their order
and each of them once; what would be given in another order is refused. A thread that failed gives
an error, never memory that it has not written.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from privacy.errors import PrivacyError
from privacy.mechanism import BeginsWithNormals, Mechanism

# Draws that a thread is worth: a thousandth of a second's.
SMALLEST = 1 << 16
# No more are held, in 128 MiB; the rest is drawn when it is asked for.
_LARGEST = 1 << 24


def prefetched_noise(
    rng: np.random.Generator, mechanism: Mechanism, num_parameters: int
) -> np.random.Generator:
    """Begin to draw the noise of a round's release, if it is enough for a thread.

    It is held until the result is gone: 8 bytes a parameter, 128 MiB at most.

    Args:
        rng: The round's source of noise; it must not be used otherwise from now on.
        mechanism: What will release the round.
        num_parameters: P, elements of the release.

    Returns:
        What ``Mechanism.release`` is to be given in the place of ``rng``.
    """
    begins = isinstance(mechanism, BeginsWithNormals) and mechanism.begins_with_normals
    if not begins or mechanism.update_noise_multiplier == 0.0 or num_parameters < SMALLEST:
        return rng
    return cast("np.random.Generator", PrefetchedNoise(rng, min(num_parameters, _LARGEST)))


class PrefetchedNoise:
    """A stream whose first standard normals a thread draws.

    Once they were asked for, it has all methods of a numpy generator.

    Args:
        rng: The stream.
        count: Standard normals to draw, in float64.
    """

    def __init__(self, rng: np.random.Generator, count: int) -> None:
        self._rng = rng
        self._drawn = np.empty(count)
        self._taken = 0
        executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="noise")
        # At once: numpy lets the interpreter go meanwhile, and needs it again only at the end.
        self._done = executor.submit(rng.standard_normal, out=self._drawn)
        executor.shutdown(wait=False)

    def standard_normal(self, size: int | None = None) -> float | NDArray[np.float64]:
        """Give the next standard normals, float64.

        Args:
            size: How many, at least 0; None for one number.
        """
        self._done.result()
        count = 1 if size is None else size
        ready = self._drawn[self._taken : self._taken + count]
        self._taken += len(ready)
        if len(ready) < count:
            # Of what was drawn ahead nothing is left: the stream goes on where the thread stopped.
            ready = np.concatenate([ready, self._rng.standard_normal(count - len(ready))])
        return float(ready[0]) if size is None else ready

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._done.result()
        if self._taken < len(self._drawn):
            raise PrivacyError(
                f"the noise of a release was asked for by {name!r} before all standard normals "
                "that are drawn ahead; a mechanism that draws otherwise has no "
                "`begins_with_normals`"
            )
        return getattr(self._rng, name)
