"""Filling a new folder with generated files, whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pfl_bench.data.temporary import lock_folder, remove_leftovers
from pfl_bench.types import DataError


@contextmanager
def new_folder(out: Path, what: str) -> Iterator[Path]:
    """Give a hidden folder beside ``out`` that takes its name when the block ends well.

    Args:
        out: Folder to make; it may exist if it is empty.
        what: What fills it, such as "pictures", for the message.

    Raises:
        DataError: ``out`` is or lies below a file, or is a folder that is not empty.
        OSError: The folder cannot be made.
    """
    out = out.resolve()
    file = next((path for path in (out, *out.parents) if path.is_file()), None)
    if file is not None:
        raise DataError(f"{file} is a file; --out names the folder to make")
    if out.is_dir() and any(out.iterdir()):
        raise DataError(
            f"{out} is not empty, and generated {what} are not mixed with other files; give a "
            "new folder, or empty this one"
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(out)
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    lock = None
    try:
        partial.mkdir()
        lock = lock_folder(partial)
        yield partial
        partial.replace(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        if lock is not None:
            os.close(lock)
