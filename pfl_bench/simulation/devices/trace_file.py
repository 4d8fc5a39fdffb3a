"""One compact file of devices, which opens fast: plain columns, nothing to run.

An uncompressed ``.npz`` of the columns of ``Devices``, and under ``about`` its version and facts as
JSON. What a file says is checked as it is opened: a slot out of place would make rounds that hang.
"""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_bench.files import parse_json, write_atomically
from pfl_bench.simulation.devices.availability import Availability
from pfl_bench.simulation.devices.devices import Devices
from pfl_bench.types import DataError

FORMAT = "pfl-bench devices 1"
# Where a run keeps some of its devices.
DEVICES = "devices.npz"
_COLUMNS = {
    "latency_ms": np.dtype(np.float32),
    "bandwidth_kbps": np.dtype(np.float32),
    "slot_offsets": np.dtype(np.int64),
    "slot_start": np.dtype(np.int32),
    "slot_end": np.dtype(np.int32),
}

# What numpy, zipfile, zlib and json raise at files that are cut, foreign or made to harm.
_DAMAGED = (
    ValueError,
    KeyError,
    TypeError,
    EOFError,
    OverflowError,
    MemoryError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
)


def check_target(path: Path) -> None:
    """Refuse, before any work, a file that could not be written, or is of another kind."""
    if path.is_dir() or not path.parent.is_dir():
        what = "is a folder" if path.is_dir() else f"its folder {path.parent} does not exist"
        raise DataError(f"--out {path}: {what}; name a file in a folder that exists")
    if path.exists() and not zipfile.is_zipfile(path):
        raise DataError(f"--out {path}: there is another file of that name; give another name")


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
        if not zipfile.is_zipfile(path):
            raise ValueError("it is no .npz")
        with np.load(path, allow_pickle=False) as file:
            about = parse_json(str(file["about"]))
            columns: dict[str, NDArray[Any]] = {name: file[name] for name in _COLUMNS}
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
        _check(columns, availability)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error})") from None
    except _DAMAGED as error:
        raise DataError(
            f"{path}: no file of devices, or a damaged one ({error}); write it again with "
            "`pfl-bench data traces`"
        ) from None
    return devices


def _check(columns: dict[str, NDArray[Any]], slots: Availability) -> None:
    """Hold the columns against what ``Devices`` and ``Availability`` say of them."""
    for name, kind in _COLUMNS.items():
        if columns[name].dtype != kind or columns[name].ndim != 1:
            raise ValueError(f"column {name!r} is {columns[name].dtype}, not a column of {kind}")
    latency, bandwidth = columns["latency_ms"], columns["bandwidth_kbps"]
    if not len(latency) or len(latency) != len(bandwidth):
        raise ValueError(f"{len(latency)} latencies and {len(bandwidth)} bandwidths")
    for column in (latency, bandwidth):
        if not (np.isfinite(column) & (column > 0)).all():
            raise ValueError("a capacity is not a finite number above 0")
    offsets, start, end = slots.offsets, slots.start, slots.end
    if len(offsets) < 2 or offsets[0] != 0 or (offsets[1:] < offsets[:-1]).any():
        raise ValueError("the offsets of the slots do not ascend from 0")
    if offsets[-1] != len(start) or len(start) != len(end):
        raise ValueError(f"{len(start)} starts and {len(end)} ends of {offsets[-1]} slots")
    if slots.period_s < 1:
        raise ValueError(f"the period is {slots.period_s} seconds")
    if not len(start):
        return
    # A slot begins behind the one before it, or is the first of its trace.
    behind = start[1:] > end[:-1]
    inner = offsets[(offsets > 0) & (offsets < len(start))]
    behind[inner - 1] = True
    if not (behind.all() and (start < end).all()):
        raise ValueError("slots overlap or run backwards")
    if start.min() < 0 or end.max() > slots.period_s:
        raise ValueError(f"slots do not fit the period of {slots.period_s} seconds")
