"""One compact file of devices, which opens fast: plain columns, nothing to run.

An uncompressed ``.npz`` of the columns of ``Devices``, and under ``about`` its version and facts as
JSON. What a file says is checked as it is opened: a slot out of place would make rounds that hang.
"""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from pfl_bench.files import parse_json, read_npz, write_atomically
from pfl_bench.simulation.devices.availability import Availability
from pfl_bench.simulation.devices.devices import COLUMNS, Devices
from pfl_bench.types import DataError

FORMAT = "pfl-bench devices 1"
# Where a run keeps some of its devices.
DEVICES = "devices.npz"


def check_target(path: Path) -> None:
    """Refuse, before any work, a file that could not be written, or is of another kind."""
    if path.is_dir() or not path.parent.is_dir():
        what = "is a folder" if path.is_dir() else f"its folder {path.parent} does not exist"
        raise DataError(f"--out {path}: {what}; name a file in a folder that exists")
    if path.exists() and not _is_ours(path):
        raise DataError(f"--out {path}: there is another file of that name; give another name")


def _is_ours(path: Path) -> bool:
    """Tell whether a file is one of devices, and no other archive, such as a model's."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {"about.npy", "latency_ms.npy"} <= set(archive.namelist())
    except zipfile.BadZipFile:
        return False


def write_trace_file(path: Path, devices: Devices) -> None:
    """Write devices to a file, whole or not at all."""
    about = {
        "format": FORMAT,
        "period_s": devices.availability.period_s,
        "source": devices.source,
        "is_generated": devices.is_generated,
    }
    buffer = io.BytesIO()
    arrays: Any = {"about": np.array(json.dumps(about)), **devices.columns}
    np.savez(buffer, **arrays)
    write_atomically(path, buffer.getvalue())


def read_trace_file(path: Path) -> Devices:
    """Read what ``write_trace_file`` wrote."""
    if not path.is_file():
        raise DataError(
            f"{path}: no such file; `pfl-bench data traces SOURCE --out {path}` writes one"
        )
    try:
        columns = read_npz(path, ("about", *COLUMNS))
        about = parse_json(str(columns["about"]))
        if about["format"] != FORMAT:
            raise ValueError(f"its format is {about['format']!r:.80}, not {FORMAT!r}")
        latency, bandwidth, *slots = (columns[name] for name in COLUMNS)
        availability = Availability(int(about["period_s"]), *slots)
        source, is_generated = str(about["source"]), bool(about["is_generated"])
        devices = Devices(latency, bandwidth, availability, source, is_generated)
        devices.check()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error})") from None
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise DataError(
            f"{path}: no file of devices, or a damaged one ({error}); write it again with "
            "`pfl-bench data traces`"
        ) from None
    return devices
