"""Reading raw comment dumps: a JSON object a line, as it is or compressed."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pfl_bench.data import parse_json, regular
from pfl_bench.types import DataError
from tasks.common.damage import reading
from tasks.common.leaf.json_files import find_files

SUFFIXES = (".json", ".jsonl", ".ndjson")
# Of any content; that of .gz must have a suffix of its own.
PACKED = (".bz2", ".xz", ".zst")
LOOKED_FOR = (
    "raw comment dumps, a JSON object a line: RC_* (such as RC_2017-12.xz), *.json, *.jsonl or "
    "*.ndjson, as they are or with .gz, .bz2, .xz or .zst; or *.zst, *.bz2, *.xz"
)
# Of published dumps the newer ones need this much to be unpacked.
_WINDOW = 1 << 31
_CHUNK = 1 << 20
# A comment has at most 10,000 characters; a line this long is no comment.
_LONGEST_LINE = 16 << 20
_KEYS = ("author", "body", "subreddit", "created_utc")


@dataclass(frozen=True, slots=True)
class Comment:
    """Needed parts of one comment; ``created`` is in seconds since 1970, UTC."""

    author: str
    body: str
    subreddit: str
    created: int
    identifier: str | None


def find_dumps(source: Path, pattern: str | None) -> list[Path]:
    """Find the dumps of a folder, sorted by name; [] if there are none.

    The ``pattern`` says which (``RC_2017-*.zst``); None takes those with a dump's name (``RC_*``),
    or without any such all with a fitting suffix. Where LEAF's JSON is, ``.json`` is not one:
    LEAF's own files end so, and those that lie beside them.
    """
    files = sorted(path for path in source.glob(pattern or "*") if not path.is_dir())
    if pattern is not None:
        return files
    named = [path for path in files if path.name.startswith("RC_")]
    leafs = bool(find_files(source))
    return named or [
        path for path in files if _has_suffix(path) and not (leafs and path.suffix == ".json")
    ]


def _has_suffix(path: Path) -> bool:
    return path.name.endswith(PACKED) or path.name.removesuffix(".gz").endswith(SUFFIXES)


def read_comments(
    path: Path, tell_position: Callable[[int], None] = lambda position: None
) -> Iterator[Comment | str]:
    """Read a dump, a line in memory at a time; now and then tell the bytes that were read.

    Of an object that is no whole comment a text says what it lacks and in which line. A file that
    is cut or damaged, or a line that is not JSON, is a DataError that names file and line.
    """
    with regular(path).open("rb") as file:
        for number, line in _lines(path, file):
            if number % 1000 == 0:
                tell_position(file.tell())
            try:
                found = parse_json(line)
            except (json.JSONDecodeError, UnicodeDecodeError) as error:
                raise DataError(
                    f"{path}, line {number}: not JSON ({str(error)[:100]}); a dump has a comment a "
                    "line, a JSON object each. If this is the last line, the file is cut: get it "
                    "anew"
                ) from error
            except ValueError as error:  # JSON, but of values that nobody can use
                yield f"line {number}: {error}"
                continue
            yield _comment(found, number)
        tell_position(file.tell())


def _comment(found: Any, number: int) -> Comment | str:
    if not isinstance(found, dict):
        return f"line {number}: no JSON object"
    lacking = [key for key in _KEYS if found.get(key) is None]
    if lacking:
        return f"line {number}: lacks {', '.join(lacking)}"
    author, body, subreddit, created = (found[key] for key in _KEYS)
    for key, value in (("author", author), ("body", body), ("subreddit", subreddit)):
        if not isinstance(value, str):
            return f"line {number}: {key} is no text"
    if not (_is_name(author) and _is_name(subreddit)):
        return f"line {number}: author or subreddit is empty or not valid Unicode"
    try:
        seconds = to_seconds(created)
    except ValueError:
        return f"line {number}: created_utc is {str(created)[:40]!r}, no whole number of seconds"
    identifier = found.get("id")
    return Comment(
        author, body, subreddit, seconds, None if identifier is None else str(identifier)
    )


def to_seconds(value: Any) -> int:
    """Whole seconds since 1970 of ``created_utc``, a number or text, or a ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("no number")
    if isinstance(value, float) and not value.is_integer():
        raise ValueError("not whole")
    seconds = int(value)
    if abs(seconds) >= 1 << 62:
        raise ValueError("too large")
    return seconds


def _is_name(text: str) -> bool:
    try:
        return bool(text.encode()) and "\0" not in text
    except UnicodeEncodeError:
        return False


def _lines(path: Path, file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Lines that are not empty, with their numbers from 1."""
    number = held = 0
    pieces: list[bytes] = []  # of the line that has no end yet
    with reading(path, what=lambda: f"cannot be read after line {number}"):
        for chunk in _content(path, file):
            *lines, rest = chunk.split(b"\n")
            if lines:
                lines[0] = b"".join([*pieces, lines[0]])
                pieces, held = [], 0
            pieces.append(rest)
            held += len(rest)
            for line in lines:
                number += 1
                if line.strip():
                    yield number, line
            if held > _LONGEST_LINE:
                raise DataError(
                    f"{path}, line {number + 1}: longer than {_LONGEST_LINE >> 20} MiB, so no "
                    f"comment. Looked for: {LOOKED_FOR}"
                )
    rest = b"".join(pieces)
    if rest.strip():
        yield number + 1, rest


def _content(path: Path, file: IO[bytes]) -> Iterator[bytes]:
    """The unpacked content, piece by piece."""
    if path.suffix == ".zst":
        yield from _unzstd(path, file)
        return
    unpack: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
    stream: Any = unpack[path.suffix](file) if path.suffix in unpack else file
    # One read at a time: what a cut file holds before its end is given before the error.
    while chunk := stream.read1(_CHUNK):
        yield chunk


def _unzstd(path: Path, file: IO[bytes]) -> Iterator[bytes]:
    try:
        import zstandard
    except ImportError as error:
        raise DataError(
            f"{path}: reading .zst needs the package zstandard, which is not there ({error}); "
            "`pip install zstandard`, or unpack the file by `zstd -d --long=31` and give that"
        ) from error
    # The stream reader of the package takes a cut file for a whole one; this tells them apart.
    frames = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
    frame: Any = None
    try:
        while chunk := file.read(_CHUNK >> 3):
            while chunk:
                frame = frame or frames.decompressobj()
                yield frame.decompress(chunk)
                chunk = frame.unused_data
                if frame.eof:
                    frame = None
    except zstandard.ZstdError as error:
        raise OSError(str(error)) from error
    if frame is not None:
        raise EOFError("the last zstd frame has no end")
