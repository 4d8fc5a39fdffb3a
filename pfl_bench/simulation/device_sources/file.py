"""Devices from a file that ``pfl-bench data traces`` has written."""

from __future__ import annotations

from pathlib import Path

from pfl_bench.config.training import Strict
from pfl_bench.simulation.devices.devices import Devices
from pfl_bench.simulation.devices.trace_file import read_trace_file


class Options(Strict):
    """Options of the source.

    Attributes:
        path: The file.
    """

    path: str


def build(options: Options, num_users: int) -> Devices:
    """Open the file; the devices are as many as it has."""
    return read_trace_file(Path(options.path))
