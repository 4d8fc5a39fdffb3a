"""Files that cannot be read to their end: one refusal, whichever library reads them."""

from __future__ import annotations

import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from lzma import LZMAError
from pathlib import Path
from typing import IO, Any

from pfl_bench.data import regular
from pfl_bench.types import DataError

# What Python's own readers raise of a file that is cut, damaged, or of another kind.
_DAMAGE: tuple[type[Exception], ...] = (
    OSError,
    EOFError,
    UnicodeDecodeError,
    NotImplementedError,  # zipfile raises it of a compression that it does not know
    zlib.error,
    LZMAError,
    tarfile.TarError,
    zipfile.BadZipFile,
)


class DamagedInputError(DataError):
    """An input cannot be read to its end; the others may be."""


def reason(error: Exception, most: int = 200) -> str:
    """Message of an exception, in one line of at most ``most`` characters."""
    if isinstance(error, UnicodeDecodeError):
        return f"not text in {error.encoding.upper()}: {error.reason}"
    said = error.args[0] if error.args else ""
    # Some backends of ijson give bytes.
    text = said.decode(errors="replace") if isinstance(said, bytes) else str(error)
    return " ".join(text.split())[:most] or type(error).__name__


@contextmanager
def reading(
    path: Path,
    *also: type[Exception],
    what: Callable[[], str] = lambda: "cannot be read",
    mend: str = "the file is damaged or cut: get it anew",
) -> Iterator[None]:
    """Read a file; what is raised because of its content becomes a ``DamagedInputError``.

    ``also`` is what its library raises beside Python's own exceptions. ``what`` says what is wrong,
    perhaps with how far the file has been read: "cannot be read after line 7".
    """
    damage = (*_DAMAGE, *also)
    try:
        yield
    except damage as error:
        raise DamagedInputError(f"{path}: {what()} ({reason(error)}); {mend}") from error


@contextmanager
def open_hdf5(path: Path) -> Iterator[Any]:
    """Open an ``h5py.File`` for reading; damage is a ``DamagedInputError``."""
    import h5py

    mend = "it is damaged, cut or packed: get it anew, and unpack it"
    with (
        reading(path, RuntimeError, KeyError, what=lambda: "not a readable HDF5 file", mend=mend),
        h5py.File(path, "r") as file,
    ):
        yield file


@contextmanager
def open_json(path: Path, told: Callable[[], str] = lambda: "") -> Iterator[IO[bytes]]:
    """Open a JSON file for ``ijson``; damage is a ``DamagedInputError`` that names the byte.

    ``told`` says what was read before: " after entry 7", say.
    """
    import ijson

    with regular(path).open("rb") as stream:

        def what() -> str:
            place = f"{stream.tell()} of {path.stat().st_size}"
            return f"not valid JSON{told()}, at or shortly before byte {place}"

        with reading(path, ijson.JSONError, OverflowError, what=what):
            yield stream
