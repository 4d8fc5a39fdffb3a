"""The weighted mean of clients' updates: federated averaging as it is."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from pfl_bench.federated.aggregation import Aggregation
from privacy.mechanism import NoiseScale


class Options(BaseModel):
    """The mean has no options."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def build(options: Options, noise: NoiseScale) -> Aggregation:
    """Build the mean: the mechanism without clipping and noise."""
    return Aggregation()
