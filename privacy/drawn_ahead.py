"""Noise that is drawn while clients train: it depends on neither their updates nor the bound.

Guarantee: a mechanism gets exactly the draws that the stream itself would give it, in their order
and each of them once. A thread that failed gives an error, never memory that it has not written.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from privacy.mechanism import Mechanism

# Draws that a thread is worth: a thousandth of a second's.
SMALLEST = 1 << 16
# No more are held, in 128 MiB; the rest is drawn when it is asked for.
_LARGEST = 1 << 24
# Between two pieces a thread needs the interpreter, which others hold.
_PIECE = 1 << 16


def drawn_ahead(
    rng: np.random.Generator, mechanism: Mechanism, num_parameters: int
) -> np.random.Generator:
    """Begin to draw the noise of a round's release, if it is enough for a thread.

    Args:
        rng: The round's source of noise; it must not be used otherwise from now on.
        mechanism: What will release the round.
        num_parameters: P, elements of the release.

    Returns:
        What ``Mechanism.release`` is to be given in the place of ``rng``.
    """
    begins_with_normals = (
        mechanism.noise_shape == "gaussian"
        and mechanism.update_noise_multiplier > 0.0
        and not mechanism.randomizes_clients
    )
    if not begins_with_normals or num_parameters < SMALLEST:
        return rng
    return cast("np.random.Generator", DrawnAhead(rng, min(num_parameters, _LARGEST)))


class DrawnAhead:
    """A stream whose first standard normals a thread draws; the methods of a numpy generator.

    Args:
        rng: The stream.
        count: Standard normals to draw, in float64.
    """

    def __init__(self, rng: np.random.Generator, count: int) -> None:
        self._rng = rng
        self._drawn = np.empty(count)
        self._taken = 0
        executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="noise")
        self._done = executor.submit(self._draw)
        executor.shutdown(wait=False)

    def _draw(self) -> None:
        for start in range(0, len(self._drawn), _PIECE):
            self._rng.standard_normal(out=self._drawn[start : start + _PIECE])

    def standard_normal(self, size: int | None = None) -> float | NDArray[np.float64]:
        """Give the next standard normals, float64.

        Args:
            size: How many; None for one number.
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
        # Any other draw is of what comes after those of the thread.
        self._done.result()
        return getattr(self._rng, name)
