"""Sources of devices: a generator, FedScale's published files, CSV, a converted file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pfl_bench.config.devices import CsvSource, FedScaleSource, GeneratedSource, Source
from pfl_bench.simulation.devices.devices import Devices

if TYPE_CHECKING:
    from pfl_bench.simulation.devices.fedscale import LeftOut


def open_devices(source: Source, num_users: int, left_out: LeftOut | None = None) -> Devices:
    """Read devices, or make them up.

    Args:
        source: Where they are from.
        num_users: Users of the data: so many are made up, unless ``source`` says how many.
        left_out: Takes note of bad clients of FedScale's files, which are left out; None to refuse
            them, as the other sources do in any case.
    """
    # Each reader is imported when it is used: a run has one.
    if isinstance(source, GeneratedSource):
        from pfl_bench.simulation.devices.generator import generate_devices

        rng = np.random.Generator(np.random.Philox(source.seed))
        return generate_devices(source.num_devices or num_users, rng, f"seed {source.seed}")
    if isinstance(source, FedScaleSource):
        from pfl_bench.simulation.devices.fedscale import read_fedscale

        availability = None if source.availability is None else Path(source.availability)
        return read_fedscale(Path(source.capacity), availability, left_out)
    if isinstance(source, CsvSource):
        from pfl_bench.simulation.devices.csv_traces import read_csv

        availability = None if source.availability is None else Path(source.availability)
        return read_csv(Path(source.capacity), availability, source.period_s)
    from pfl_bench.simulation.devices.trace_file import read_trace_file

    return read_trace_file(Path(source.path))
