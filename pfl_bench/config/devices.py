"""The section of a configuration that says on whose devices a run is simulated."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from pfl_bench.config.training import PositiveFloat, Strict

# Six days: the period of FedScale's published trace.
PERIOD_S = 518_400


class SystemsOptions(Strict):
    """Client systems: whose devices they are, and when a round ends.

    Attributes:
        source: Plug-in name and options of where the devices are from, such as {name: generated,
            seed: 0}.
        overcommitment: For N wanted participants, ceil(overcommitment * N) are selected, and the
            first N to finish count.
        deadline_s: Simulated seconds after which a round ends at the latest; null for none.
    """

    source: dict[str, Any]
    overcommitment: Annotated[float, Field(ge=1, le=100, allow_inf_nan=False)] = 1.3
    deadline_s: PositiveFloat | None = None
