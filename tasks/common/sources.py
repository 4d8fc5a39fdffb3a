"""Public files: their form, what of them is damaged, and whether they are made up."""

from __future__ import annotations

import io
import os
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from lzma import LZMAError
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
from pydantic import BaseModel

from pfl_bench.data import regular
from pfl_bench.types import ConfigError, DataError

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


# ijson keeps a prefix for each level of nesting, which is as long as the level is deep.
_DEEPEST = 64
_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_STEPS = bytes.maketrans(b"[{]}", b"\1\1\xff\xff")
_OTHERS = bytes(set(range(256)) - set(b"[{]}"))


class DamagedInputError(DataError):
    """An input cannot be read to its end; the others may be."""


def reason(error: Exception, most: int = 200) -> str:
    """Message of an exception, in one line; of a long one, ``most`` characters of both ends."""
    if isinstance(error, UnicodeDecodeError):
        return f"not text in {error.encoding.upper()}: {error.reason}"
    said = error.args[0] if error.args else ""
    # Some backends of ijson give bytes.
    text = said.decode(errors="replace") if isinstance(said, bytes) else str(error)
    text = " ".join(text.split()) or type(error).__name__
    half = most // 2
    # The cause often comes last.
    return text if len(text) <= most else f"{text[:half]} ... {text[-half:]}"


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


def need_package(name: str, what: str, mend: str) -> Any:
    """Import an optional package, which ``what`` needs; ``mend`` says how to get it."""
    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"{what} needs the package {name.partition('.')[0]}, which is not there ({error}); "
            f"{mend}"
        ) from error


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


class _ShallowJson(io.FileIO):
    """A JSON file that is refused, before it is parsed, where it is nested too deeply."""

    _depth, _in_text, _cut = 0, 0, b""

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go back to the beginning, the only place whose depth is known."""
        self._depth, self._in_text, self._cut = 0, 0, b""
        return super().seek(offset, whence)

    def readinto(self, buffer: Any) -> int:
        """Read as any file does, but refuse what the parser would have no memory for."""
        size = super().readinto(buffer) or 0
        text = _ESCAPED.sub(b"", self._cut + bytes(buffer[:size]))
        self._cut = b"\\" if text.endswith(b"\\") else b""
        parts = text.split(b'"')
        brackets = b"".join(parts[self._in_text :: 2]).translate(_STEPS, _OTHERS)
        self._in_text = (self._in_text + len(parts) - 1) % 2
        depths = self._depth + np.cumsum(np.frombuffer(brackets, np.int8), dtype=np.int64)
        self._depth = int(depths[-1]) if len(depths) else self._depth
        if depths.max(initial=0) > _DEEPEST:
            raise DamagedInputError(
                f"{self.name}: before byte {self.tell()}, lists or objects lie more than "
                f"{_DEEPEST} deep in one another; public files have a few levels: get it anew"
            )
        return size


@contextmanager
def open_json(path: Path, told: Callable[[], str] = lambda: "") -> Iterator[IO[bytes]]:
    """Open a JSON file for ``ijson``; damage is a ``DamagedInputError`` that names the byte.

    ``told`` says what was read before: " after entry 7", say.
    """
    import ijson

    with io.BufferedReader(_ShallowJson(regular(path)), 1 << 16) as stream:

        def what() -> str:
            place = f"{stream.tell()} of {path.stat().st_size}"
            return f"not valid JSON{told()}, at or shortly before byte {place}"

        with reading(path, ijson.JSONError, OverflowError, what=what):
            yield stream


def read_tar(
    path: Path, mend: str = "the file is damaged or cut: get it anew"
) -> Iterator[tuple[str, bytes]]:
    """Names and contents of a tar's files, in their order; nothing is unpacked to the disk."""
    # As a stream: going back in a compressed file would mean to unpack it anew.
    with reading(path, mend=mend), tarfile.open(regular(path), "r|*") as tar:
        for member in tar:
            if member.isfile() and (file := tar.extractfile(member)) is not None:
                yield member.name, file.read()


_NAMES_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Form:
    """One public form of a data set.

    A form is how public files hold a data set; a variant is what a store made of them is called.

    Attributes:
        name: By which a user may ask for it, with the option ``form``.
        looked_for: What it looks like on disk, for messages.
        is_there: Whether a folder shows signs of this form; it may still be incomplete.
    """

    name: str
    looked_for: str
    is_there: Callable[[Path], bool]


AnyForm = TypeVar("AnyForm", bound=Form)


def choose_form(
    source: Path, data_set: str, forms: Iterable[AnyForm], options: BaseModel
) -> AnyForm:
    """Recognise the form of a folder; refused if it holds none, or several without a wish.

    ``data_set`` names it in messages; an option ``form``, if there is one, is the form that is
    asked for, None for the only one that is there.
    """
    wanted = getattr(options, "form", None)
    if not source.is_dir():
        what = "is a file" if source.exists() else "does not exist"
        raise DataError(f"{source} {what}; --source takes the folder that holds the public files")
    candidates = [form for form in forms if wanted in (None, form.name)]
    there = [form for form in candidates if form.is_there(source)]
    if len(there) == 1:
        return there[0]
    if there:
        choice = "say which by form=NAME, or " if hasattr(options, "form") else ""
        raise DataError(
            f"{source} holds several forms: {', '.join(form.name for form in there)}; {choice}"
            "give a folder with one"
        )
    names = sorted(path.name for path in source.iterdir())
    found = ", ".join(names[:_NAMES_SHOWN]) or "nothing"
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    lines = "".join(f"\n  - {form.name}: {form.looked_for}" for form in candidates)
    raise DataError(
        f"{source} holds no public form of {data_set}. Looked for:{lines}\nFound: {found}{more}."
    )


GENERATED_MARK = "GENERATED.txt"
# Of a store. A made-up user is nobody: a guarantee for one protects no person.
GENERATED_FACTS = {"generated": True, "artificial_users": True}


def is_generated(source: Path) -> bool:
    """Whether a folder says that its data are made up."""
    return (source / GENERATED_MARK).is_file()


def settings(options: BaseModel, sign: str = " = ", without: Set[str] = frozenset()) -> str:
    """The options that data were generated with, in one line.

    ``without`` names those on which no byte depends.
    """
    shown = options.model_dump(exclude=set(without))
    return ", ".join(f"{name}{sign}{value}" for name, value in shown.items())


def write_mark(folder: Path, text: str) -> None:
    """Write the file that says what a folder's data are."""
    (folder / GENERATED_MARK).write_text(text, encoding="utf-8")


def mark_made_up(folder: Path, task: str, what: str, options: BaseModel) -> None:
    """Write that file for a folder of texts, of which ``what`` is made up."""
    command = f"pfl-bench data generate {task} ({settings(options, '=')})"
    write_mark(folder, f"{what} are made up by\n{command}.\n")


def files_below(source: Path) -> list[Path]:
    """All files below a folder, by path; OSError if a folder there cannot be listed."""

    def refuse(error: OSError) -> None:
        raise error

    # A glob leaves such a folder out in silence, and with it a part of the data.
    walk = os.walk(source, onerror=refuse) if source.is_dir() else ()
    return sorted(Path(place, name) for place, _, names in walk for name in names)


def find_parquet(source: Path) -> list[Path]:
    """All parquet files below a folder, by path."""
    return [path for path in files_below(source) if path.suffix == ".parquet"]


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
