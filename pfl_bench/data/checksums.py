"""Checks of files whose publisher states no digest, and the digests that are kept."""

from __future__ import annotations

import gzip
import re
import zlib
from pathlib import Path

from pfl_bench.files import write_atomically
from pfl_bench.types import DataError

SUMS = "SHA256SUMS"
CHUNK_BYTES = 1 << 20

_LINE = re.compile(r"([0-9a-f]{64}) [ *](.+)")


def checks_content(name: str) -> bool:
    """Whether a file of that name carries something by which a cut or damage is found."""
    return name.endswith((".gz", ".tgz", ".json"))


def find_damage(path: Path, name: str) -> str | None:
    """Read a file through, as its published name says what it is; returns what is wrong, or None.

    ``.gz`` and ``.tgz`` are unpacked, which verifies their CRC-32; ``.json`` is parsed; others
    pass.
    """
    if name.endswith((".gz", ".tgz")):
        try:
            with gzip.open(path, "rb") as stream:
                while stream.read(CHUNK_BYTES):
                    pass
        except (OSError, EOFError, zlib.error) as error:
            return f"not a sound gzip file ({error})"
    elif name.endswith(".json"):
        import ijson

        try:
            with path.open("rb") as stream:
                for _ in ijson.basic_parse(stream, use_float=True):
                    pass
        except (ijson.JSONError, UnicodeDecodeError) as error:
            return f"not valid JSON ({' '.join(str(error).split())[:120]})"
    return None


def find_text_damage(path: Path) -> str | None:
    """Read a text file through, all that can be asked of one whose length nobody states.

    It must be UTF-8, without NUL, with at least one line that is not blank; returns what is wrong.
    """
    blank = True
    try:
        with path.open(encoding="utf-8-sig") as stream:
            while chunk := stream.read(CHUNK_BYTES):
                if "\0" in chunk:
                    return "not a text (it holds NUL bytes)"
                blank = blank and not chunk.strip()
    except UnicodeDecodeError as error:
        return f"not a text in UTF-8 ({error})"
    return "a text without any line" if blank else None


def read_sums(folder: Path) -> dict[str, str]:
    """Read a folder's ``SHA256SUMS``, in the format of sha256sum: by file name, "sha256:<hex>".

    It is empty if there is no such file; a line of another kind is a DataError.
    """
    path = folder / SUMS
    if not path.is_file():
        return {}
    sums = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        found = _LINE.fullmatch(line)
        if line.strip() and found is None:
            raise DataError(
                f"{path}, line {number}: {line[:80]!r} is not 'SHA256  NAME'; mend or delete the "
                "file: it is made anew from the files that are there"
            )
        if found is not None:
            sums[found[2]] = f"sha256:{found[1]}"
    return sums


def record_sum(folder: Path, name: str, digest: str) -> None:
    """Write a file's sum, "sha256:<hex>", into the folder's ``SHA256SUMS``, in one step."""
    sums = read_sums(folder) | {name: digest}
    lines = [f"{value.partition(':')[2]}  {key}\n" for key, value in sorted(sums.items())]
    write_atomically(folder / SUMS, "".join(lines))
