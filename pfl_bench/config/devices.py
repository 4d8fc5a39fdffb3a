"""The section of a configuration that says on whose devices a run is simulated."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pfl_bench.config.training import PositiveFloat, PositiveInt, Strict

# Six days: the period of FedScale's published trace.
PERIOD_S = 518_400


class GeneratedSource(Strict):
    """Made-up devices; named as generated wherever they are shown.

    Attributes:
        name: "generated".
        seed: Decides all of them; the run's own seed does not.
        num_devices: How many; null for one a user of the data.
    """

    name: Literal["generated"]
    seed: Annotated[int, Field(ge=0)] = 0
    num_devices: PositiveInt | None = None


class FedScaleSource(Strict):
    """FedScale's published files, as they are: pickles, read without running what is in them.

    Attributes:
        name: "fedscale".
        capacity: Path of ``client_device_capacity``.
        availability: Path of ``client_behave_trace``; null for devices that are always available.
    """

    name: Literal["fedscale"]
    capacity: str
    availability: str | None = None


class CsvSource(Strict):
    """Own traces.

    Attributes:
        name: "csv".
        capacity: A file with the columns client_id, latency_ms, bandwidth_kbps.
        availability: A file with the columns client_id, start_s, end_s, a line a slot, in whole
            seconds; null for devices that are always available.
        period_s: Seconds after which the slots come again, below 2^31.
    """

    name: Literal["csv"]
    capacity: str
    availability: str | None = None
    period_s: Annotated[int, Field(ge=1, lt=2**31)] = PERIOD_S


class FileSource(Strict):
    """A file that ``pfl-bench data traces`` has written.

    Attributes:
        name: "file".
        path: The file.
    """

    name: Literal["file"]
    path: str


Source = GeneratedSource | FedScaleSource | CsvSource | FileSource
SOURCES: dict[str, type[Source]] = {
    "generated": GeneratedSource,
    "fedscale": FedScaleSource,
    "csv": CsvSource,
    "file": FileSource,
}


class SystemsOptions(Strict):
    """Client systems: whose devices they are, and when a round ends.

    Attributes:
        source: Where the devices are from, such as {name: generated, seed: 0}.
        overcommitment: For N wanted participants, ceil(overcommitment * N) are selected, and the
            first N to finish count.
        deadline_s: Simulated seconds after which a round ends at the latest; null for none.
    """

    source: Annotated[Source, Field(discriminator="name")]
    overcommitment: Annotated[float, Field(ge=1, le=100, allow_inf_nan=False)] = 1.3
    deadline_s: PositiveFloat | None = None
