"""Parquet files of a folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pfl_bench.data import regular
from tasks.common.damage import reading


def find_parquet(source: Path) -> list[Path]:
    """All parquet files below a folder, by path."""
    return sorted(path for path in source.rglob("*.parquet") if not path.is_dir())


@contextmanager
def open_parquet(path: Path) -> Iterator[Any]:
    """Open a ``pyarrow.parquet.ParquetFile``; damage is a ``DamagedInputError``."""
    import pyarrow
    from pyarrow.parquet import ParquetFile

    with (
        reading(path, pyarrow.ArrowException),
        ParquetFile(regular(path), buffer_size=1 << 20, pre_buffer=False) as file,
    ):
        yield file
