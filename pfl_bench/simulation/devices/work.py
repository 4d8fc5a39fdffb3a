"""Computation of a client's local training, known before it trains."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pfl_bench.types import LocalTraining


def examples_processed(
    num_examples: NDArray[np.int64], local: LocalTraining
) -> NDArray[np.float64]:
    """Examples that go through the local steps of clients that have so many each: shape (n,).

    It is what ``LocalResult.num_processed`` will be: an example counts again in each epoch.
    """
    counts = num_examples.astype(np.float64)
    if local.batch_fraction is not None:
        return np.maximum(1.0, np.floor(local.batch_fraction * counts))
    everything = counts * local.epochs
    if local.max_steps is None:
        return everything
    if local.batches_across_epochs:
        return np.minimum(everything, float(local.max_steps * local.batch_size))
    # The last batch of each epoch may be smaller, and is a step all the same.
    steps_per_epoch = np.maximum(1.0, np.ceil(counts / local.batch_size))
    whole_epochs, steps = np.divmod(float(local.max_steps), steps_per_epoch)
    limited = whole_epochs * counts + np.minimum(counts, steps * local.batch_size)
    result: NDArray[np.float64] = np.minimum(everything, limited)
    return result
