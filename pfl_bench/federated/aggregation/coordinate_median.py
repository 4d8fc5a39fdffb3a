"""The median of each coordinate over a round's clients: no minority moves it out of the others.

Not private: the centre sees each update. It keeps a round's updates, cohort times P numbers of
four bytes.

Source: Yin et al. 2018, "Byzantine-robust distributed learning: towards optimal statistical rates",
definition 1.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from pfl_bench.config.training import NoOptions
from pfl_bench.federated.aggregation._kept import BufferedAggregation, trimmed
from privacy.mechanism import NoiseScale

Options = NoOptions


def _median(updates: Sequence[Tensor]) -> Tensor:
    """Median of each coordinate, shape (P,): of an even number the mean of the middle two."""
    return trimmed(updates, (len(updates) - 1) // 2)


def build(options: Options, noise: NoiseScale) -> BufferedAggregation:
    """Build the median; nothing is noised."""
    return BufferedAggregation("coordinate_median", _median)
