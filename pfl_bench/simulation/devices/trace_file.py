"""One compact file of devices, which opens fast: plain columns, nothing to run.

An uncompressed ``.npz`` of the columns of ``Devices``, and under ``about`` its version and facts as
JSON. What a file says is checked as it is opened: a slot out of place would make rounds that hang.
"""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import numpy as np

from pfl_bench.files import parse_json, read_npz, write_atomically
from pfl_bench.simulation.devices.availability import Availability
from pfl_bench.simulation.devices.devices import Devices
from pfl_bench.types import DataError

FORMAT = "pfl-bench devices 1"
# Where a run keeps some of its devices.
DEVICES = "devices.npz"
_COLUMNS = ("latency_ms", "bandwidth_kbps", "slot_offsets", "slot_start", "slot_end")


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
    slots = devices.availability
    about = {
        "format": FORMAT,
        "period_s": slots.period_s,
        "source": devices.source,
        "is_generated": devices.is_generated,
    }
    buffer = io.BytesIO()
    np.savez(
        buffer,
        about=np.array(json.dumps(about)),
        latency_ms=devices.latency_ms,
        bandwidth_kbps=devices.bandwidth_kbps,
        slot_offsets=slots.offsets,
        slot_start=slots.start,
        slot_end=slots.end,
    )
    write_atomically(path, buffer.getvalue())


def read_trace_file(path: Path) -> Devices:
    """Read what ``write_trace_file`` wrote."""
    if not path.is_file():
        raise DataError(
            f"{path}: no such file; `pfl-bench data traces SOURCE --out {path}` writes one"
        )
    try:
        columns = read_npz(path, ("about", *_COLUMNS))
        about = parse_json(str(columns["about"]))
        if about["format"] != FORMAT:
            raise ValueError(f"its format is {about['format']!r:.80}, not {FORMAT!r}")
        availability = Availability(
            int(about["period_s"]),
            columns["slot_offsets"],
            columns["slot_start"],
            columns["slot_end"],
        )
        devices = Devices(
            columns["latency_ms"],
            columns["bandwidth_kbps"],
            availability,
            str(about["source"]),
            bool(about["is_generated"]),
        )
        devices.check()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error})") from None
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise DataError(
            f"{path}: no file of devices, or a damaged one ({error}); write it again with "
            "`pfl-bench data traces`"
        ) from None
    return devices
