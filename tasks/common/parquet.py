"""Parquet files of a folder, and what is wrong with them said."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pfl_bench.data import regular


class DamagedInputError(Exception):
    """An input cannot be read to its end; the others may be."""


def find_parquet(source: Path) -> list[Path]:
    """All parquet files below a folder, by path."""
    return sorted(path for path in source.rglob("*.parquet") if not path.is_dir())


@contextmanager
def open_parquet(path: Path) -> Iterator[Any]:
    """Open a ``pyarrow.parquet.ParquetFile``; what Arrow raises is a ``DamagedInputError``."""
    import pyarrow
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(regular(path), buffer_size=1 << 20, pre_buffer=False) as file:
            yield file
    except (pyarrow.ArrowException, OSError) as error:
        raise DamagedInputError(" ".join(str(error).split())[:200]) from error
