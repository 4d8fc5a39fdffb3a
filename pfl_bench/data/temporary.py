"""Temporary folders beside a result, which go when their process is gone, killed or not."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout

from pfl_bench.files import locking
from pfl_bench.files import remove_leftovers as remove_leftovers
from pfl_bench.types import DataError

TemporaryKind = Literal["partial", "gathering"]


class TemporaryFolder:
    """A hidden folder beside a result; those that killed processes left there are removed.

    Its process holds a lock on it, which the system lets go of however the process ends. The kind
    is a part of its name.
    """

    def __init__(self, out: Path, kind: TemporaryKind) -> None:
        remove_leftovers(out)
        prefix = f".{out.name}.{kind}-{os.getpid()}-"
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=out.absolute().parent))
        self._lock = contextlib.ExitStack()
        self._lock.enter_context(locking(self.path))

    def remove(self) -> None:
        """Remove the folder and all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


@contextlib.contextmanager
def locked(lock: Path, refusal: str) -> Iterator[None]:
    """Hold a lock by a file, which goes in the end; DataError if another process has it.

    Where nothing can be locked, as on some network file systems, the block runs without.
    """
    held = FileLock(lock, timeout=0)
    try:
        held.acquire()
    except Timeout:
        raise DataError(refusal) from None
    except (OSError, NotImplementedError):
        pass
    try:
        yield
    finally:
        if held.is_locked:
            # Only now nobody else has it: filelock takes an unlinked file for no lock.
            lock.unlink(missing_ok=True)
            held.release()


@contextlib.contextmanager
def new_folder(out: Path, what: str) -> Iterator[Path]:
    """Give a hidden folder beside ``out`` that takes its name when the block ends well.

    ``out`` may exist if it is empty, else it is a DataError; ``what`` fills it, in the message.
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
    try:
        partial.mkdir()
        with locking(partial):
            yield partial
            try:
                partial.replace(out)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                raise DataError(
                    f"{out}: another process has made this folder meanwhile, and what this one "
                    "has generated is dropped; use that folder, or give another --out"
                ) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
