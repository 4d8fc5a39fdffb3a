"""Read MNIST's idx files, plain or gzipped, with every byte accounted for."""

from __future__ import annotations

import gzip
import struct
import zlib
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_bench.types import DataError

# Third byte of the file: type of the values, which are big-endian.
UBYTE, INT = 0x08, 0x0C
DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def find_idx(folder: Path, name: str) -> Path | None:
    """Find a file, plain or with ``.gz``; the plain one wins, None if there is neither."""
    return next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), None)


def read_idx(path: Path, type_code: int, shape: tuple[int, ...]) -> NDArray[Any]:
    """Read an idx file of a known type and shape, in native byte order; nothing may follow.

    It is read as gzip if it begins with gzip's signature; ``type_code`` is a key of ``DTYPES``.

    Source: Y. LeCun, "The MNIST database", section on file formats.
    """
    header_size = 4 + 4 * len(shape)
    size = prod(shape) * np.dtype(DTYPES[type_code]).itemsize
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if packed else path.open("rb") as stream:
            header = stream.read(header_size)
            if len(header) < 4 or header[:2] != b"\0\0" or header[2] not in DTYPES:
                raise DataError(f"{path}: not an idx file (it begins with {header[:4].hex(' ')})")
            if header[2:4] != bytes((type_code, len(shape))):
                raise DataError(
                    f"{path}: idx type 0x{header[2]:02x} with {header[3]} dimensions; expected "
                    f"0x{type_code:02x} with {len(shape)}: is this another file under that name?"
                )
            if len(header) < header_size:
                raise DataError(f"{path}: cut within its header, at byte {len(header)}")
            found = struct.unpack(f">{len(shape)}I", header[4:])
            if found != shape:
                raise DataError(
                    f"{path}: has the shape {found}, but the published file has {shape}"
                )
            body = stream.read(size + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error}); get the file anew") from error
    if len(body) != size:
        state = "goes on after" if len(body) > size else f"is cut at {len(body)} of"
        raise DataError(f"{path}: {state} the {size} bytes of values; get the file anew")
    values = np.frombuffer(body, dtype=DTYPES[type_code]).reshape(shape)
    return values.astype(values.dtype.newbyteorder("="))
