"""The lines of ``metrics.jsonl``, which a run writes beside its ledger, as an audit takes them.

Guarantee: none of its own. The numbers are those of the file, unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# What an audit compares; other scalars are left out.
NAMES = (
    "train/cohort_size",
    "train/num_nonfinite",
    "train/num_steps",
    "train/update_norm",
    "train/central_learning_rate",
    "privacy/clip_norm",
    "privacy/update_noise_stddev",
    "privacy/fraction_clipped",
    "privacy/noisy_fraction_unclipped",
    "privacy/epsilon_simulated",
    "privacy/epsilon_actual",
)


@dataclass(frozen=True, slots=True)
class Metrics:
    """Scalars of a run's rounds (epochs).

    Attributes:
        rounds: Shape (M,), int64: the round of each line, in the file's order.
        columns: Shape (M,), float64 each, by name; NaN where a line lacks it.
    """

    rounds: NDArray[np.int64]
    columns: Mapping[str, NDArray[np.float64]]
