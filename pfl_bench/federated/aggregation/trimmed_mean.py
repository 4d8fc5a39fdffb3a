"""The mean of each coordinate without its smallest and largest values over a round's clients.

Not private: the centre sees each update. It keeps a round's updates, cohort times P numbers of
four bytes.

Source: Yin et al. 2018, "Byzantine-robust distributed learning: towards optimal statistical rates",
definition 2.
"""

from __future__ import annotations

import itertools
import math
from typing import Annotated

from pydantic import Field

from pfl_bench.config.training import Strict
from pfl_bench.federated.aggregation._kept import BufferedAggregation, trimmed
from pfl_bench.types import ConfigError
from privacy.mechanism import NoiseScale

# So that 0.29 of 100 clients are 29, although the product is a little less.
_ROUNDING = 1e-9


class Options(Strict):
    """Options of the trimmed mean.

    Attributes:
        trimmed_fraction: Share of a round's clients whose values are cut at each end, rounded
            down, below 0.5; at least the share of attackers, to be of use.
    """

    trimmed_fraction: Annotated[float, Field(ge=0, lt=0.5)]


def build(options: Options, noise: NoiseScale) -> BufferedAggregation:
    """Build the trimmed mean; nothing is noised. A round so small that nobody is cut is left out.

    A ConfigError if the share is above 0, but of an expected cohort it cuts nobody.
    """
    fraction = options.trimmed_fraction

    def cut(count: int) -> int:
        # Something is left of every cohort, however near to a half the share is.
        return min(math.floor(fraction * count + _ROUNDING), (count - 1) // 2)

    if fraction > 0 and not cut(int(noise.cohort_size)):
        raise ConfigError(
            f"federated.aggregation: trimmed_mean with trimmed_fraction {fraction:g} cuts none of "
            f"the {noise.cohort_size:g} clients of federated.cohort_size at either end, and would "
            "be the mean, which one attacker moves at will; raise one of the two, or set "
            "trimmed_fraction to 0 to compare with"
        )
    fewest = next(count for count in itertools.count(1) if cut(count)) if fraction > 0 else 1
    return BufferedAggregation(
        "trimmed_mean", lambda updates: trimmed(updates, cut(len(updates))), fewest
    )
