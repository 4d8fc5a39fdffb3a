"""The weighted mean of clients' updates: federated averaging as it is."""

from __future__ import annotations

from pfl_bench.config.training import NoOptions
from pfl_bench.federated.aggregation import Aggregation
from privacy.mechanism import NoiseScale

Options = NoOptions


def build(options: Options, noise: NoiseScale) -> Aggregation:
    """Build the mean: the mechanism without clipping and noise."""
    return Aggregation()
