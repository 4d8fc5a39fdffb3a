"""Fetch a task's published files: resumed where they broke off, verified, whole or not at all."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPException, HTTPResponse, InvalidURL
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, build_opener

from pfl_bench.data.checksums import (
    SUMS,
    checks_content,
    find_damage,
    find_text_damage,
    read_sums,
    record_sum,
)
from pfl_bench.data.temporary import locked
from pfl_bench.files import regular
from pfl_bench.types import DataError, PluginError, Progress, RemoteFile

TIMEOUT_S = 30.0
PAUSES_S = (0.5, 2.0)
CHUNK_BYTES = 1 << 16
TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})
RANGE_REFUSED = 416
LOCK = ".download.lock"
PLAIN_NAME = re.compile("[A-Za-z0-9_][A-Za-z0-9_.-]*")
DIGEST = re.compile("md5:[0-9a-f]{32}|sha256:[0-9a-f]{64}")
# Python refuses to read a number of thousands of digits.
LENGTH = re.compile("[0-9]{1,18}")
CONTENT_RANGE = re.compile("bytes ([0-9]{1,18})-[0-9]+/([0-9]{1,18}|[*])")


def download(
    files: Sequence[RemoteFile], target: Path, progress: Progress, advice: str = ""
) -> list[Path]:
    """Fetch the files that are not there yet; those that are there are verified.

    Memory does not grow with the files. What an interruption leaves stays as ``.NAME.partial`` and
    is gone on with by the next call. Proxies are taken from the environment.

    A file without a published digest is held against the length that the server declares, and
    read through if its name says how (gzip's CRC-32, JSON). Where the server declares none, such
    content must do; a ``.txt`` must then be UTF-8 text of at least one line. Its SHA-256 goes into
    ``SHA256SUMS`` in the folder; what is recorded there is its digest from then on.
    """
    check_declaration(files)
    made = [folder for folder in (target, *target.parents) if not folder.exists()]
    try:
        target.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise DataError(
            f"{error.filename}: is a file; give --out a folder for the downloaded files"
        ) from error
    try:
        return _into(target, files, progress, advice)
    except DataError:
        # Nothing came, as without network: what holds nothing goes again.
        for folder in made:
            if not any(folder.iterdir()):
                folder.rmdir()
        raise


def _into(target: Path, files: Sequence[RemoteFile], progress: Progress, advice: str) -> list[Path]:
    sums = read_sums(target)
    recorded = {file.name for file in files if file.digest is None and file.name in sums}
    files = [replace(f, digest=sums[f.name]) if f.name in recorded else f for f in files]
    # All are looked at first: a foreign file is told of before minutes of fetching, not after.
    found = {f.name: _find(f, target / f.name, progress, f.name in recorded) for f in files}
    absent = [file for file in files if found[file.name] is None]
    unrecorded = [(f.name, found[f.name]) for f in files if f.digest is None]
    if absent or unrecorded:
        refusal = (
            f"{target}: another pfl-bench data download is fetching into this folder; wait for it, "
            "or choose another --out"
        )
        # Two would write into the same partial file.
        with locked(target / LOCK, refusal):
            for name, digest in unrecorded:
                if digest is not None:
                    record_sum(target, name, digest)
            for file in absent:
                mend = advice
                if file.name in recorded:
                    mend = (
                        f"{file.name} must be what {target / SUMS} records; if its publisher has "
                        f"replaced it, delete its line there. {advice}"
                    )
                _fetch(file, target, progress, mend)
    return [target / file.name for file in files]


def check_declaration(files: Sequence[RemoteFile]) -> None:
    """Refuse, by a PluginError, files that are declared wrongly."""
    names = [file.name for file in files]
    for file in files:
        wrong = ""
        if not PLAIN_NAME.fullmatch(file.name) or names.count(file.name) > 1:
            wrong = "name must be a plain file name, used once"
        elif not file.urls or not all(re.match("https?://", url) for url in file.urls):
            wrong = f"urls {file.urls!r} must be one or more http or https addresses"
        elif file.digest is not None and not DIGEST.fullmatch(file.digest):
            wrong = f"digest {file.digest!r} must be md5:HEX or sha256:HEX in small letters"
        if wrong:
            raise PluginError(f"FILES of the task's prepare.py, {file.name!r}: {wrong}")


def _find(file: RemoteFile, path: Path, progress: Progress, recorded: bool) -> str | None:
    """Digest of the file if it is there with the right content, None if it is absent."""
    if not path.exists():
        return None
    if not path.is_file():
        raise DataError(f"{path}: is no file, but {file.name} is to be put there; move it away")
    running = _Running(file, path)
    if file.digest is None:
        damage = find_damage(path, file.name)
        if damage:
            raise DataError(f"{path}: is there, but is {damage}; delete it, and it is fetched anew")
    elif not running.is_whole:
        which = f"the file that {SUMS} beside it records" if recorded else "the published file"
        raise DataError(
            f"{path}: is there, but is not {which}: expected {file.digest}"
            f"{_bytes(file.size)}, got {running.digest}{_bytes(running.size)}; it is left as it "
            "is: delete it, or choose another --out"
        )
    progress(file.name, running.size, running.size)
    return running.digest


class _TryError(Exception):
    """One request did not give the file; ``again``: repeated, it may."""

    def __init__(self, message: str, *, again: bool) -> None:
        super().__init__(message)
        self.again = again


class _Running:
    """The bytes of a file that are on the disk, and their digest."""

    def __init__(self, file: RemoteFile, path: Path) -> None:
        self.path = path
        self._file = file
        self._clear()
        if path.exists():
            with regular(path).open("rb") as stream:
                while chunk := stream.read(CHUNK_BYTES):
                    self.take(chunk)

    def _clear(self) -> None:
        # Publishers state MD5; it guards against damage here, which needs no cryptographic hash.
        name = (self._file.digest or "sha256").partition(":")[0]
        self._hash = hashlib.new(name, usedforsecurity=False)
        self.size = 0

    def take(self, chunk: bytes) -> None:
        """Count bytes that were written."""
        self._hash.update(chunk)
        self.size += len(chunk)

    def restart(self) -> None:
        """Throw away what is there."""
        self.path.unlink(missing_ok=True)
        self._clear()

    @property
    def digest(self) -> str:
        """Digest of what is there."""
        return f"{self._hash.name}:{self._hash.hexdigest()}"

    @property
    def is_whole(self) -> bool:
        """Whether this is the published file; never known without a digest."""
        return self._file.size in (None, self.size) and self.digest == self._file.digest


def _fetch(file: RemoteFile, target: Path, progress: Progress, advice: str) -> None:
    """Fetch one file from the first mirror that gives it."""
    path = target / file.name
    if path.exists():  # by a download that has just ended
        return
    part = target / f".{file.name}.partial"
    if part.is_symlink():  # what it points to is not ours to write
        part.unlink()
    partial = _Running(file, part)
    if file.size is not None and partial.size >= file.size and not partial.is_whole:
        partial.restart()
    failures = []
    for url in file.urls:
        failure = None if partial.is_whole else _try_mirror(url, file, partial, progress)
        if failure is None:
            if file.digest is None:
                record_sum(target, file.name, partial.digest)
            partial.path.replace(path)
            return
        failures.append(f"\n  - {url}: {failure}")
    kept = "What came is kept: the same command goes on from there. " if partial.size else ""
    raise DataError(
        f"{file.name}: could not be fetched into {target}:{''.join(failures)}\n{kept}{advice}"
    )


def _try_mirror(url: str, file: RemoteFile, partial: _Running, progress: Progress) -> str | None:
    """Fetch from one address, again after passing failures; returns what is wrong, or None."""
    for attempt, pause in enumerate((*PAUSES_S, None), start=1):
        try:
            _request(url, file, partial, progress)
        except _TryError as error:
            if error.again and pause is not None:
                time.sleep(pause)
                continue
            return f"{error} ({attempt} tries)" if attempt > 1 else str(error)
        return None
    return None


def _request(url: str, file: RemoteFile, partial: _Running, progress: Progress) -> None:
    """Make one request, and append what it gives to the partial file."""
    with _response(url, partial) as response:
        declared = _declared_size(response, partial)
        if None not in (file.size, declared) and file.size != declared:
            raise _TryError(
                f"another file is there: expected {file.size} bytes, got {declared}", again=False
            )
        if response.status == 200:
            partial.restart()
        kept = partial.size
        size = file.size if declared is None else declared
        progress(file.name, partial.size, size)
        try:
            with partial.path.open("ab") as stream:
                for chunk in _chunks(response):
                    stream.write(chunk)
                    partial.take(chunk)
                    progress(file.name, partial.size, size)
                    if file.size is not None and partial.size > file.size:
                        break
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            error.filename = error.filename or str(partial.path)
            raise
    if size is not None and partial.size < size:
        raise _TryError(f"the connection ended at {partial.size} of {size} bytes", again=True)
    if file.digest is None:
        _check_undigested(file, partial, size)
    elif not partial.is_whole:
        got = f"{partial.digest}{_bytes(partial.size)}"
        partial.restart()
        raise _TryError(
            f"another or a damaged file came: expected {file.digest}{_bytes(file.size)}, got {got}",
            again=kept > 0,  # the kept part may be another mirror's fault
        )


def _check_undigested(file: RemoteFile, partial: _Running, size: int | None) -> None:
    """Check what came of a file that has no digest: length, and what its content says of itself."""
    damage = find_damage(partial.path, file.name)
    if damage is None and size is None and not checks_content(file.name):
        if file.name.endswith(".txt"):
            damage = find_text_damage(partial.path)
        else:
            damage = "of unknown length: neither digest nor size is published or declared for it"
    if damage is None and size not in (None, partial.size):
        damage = f"{partial.size} bytes long, but {size} were declared"
    if damage is not None:
        partial.restart()
        raise _TryError(f"what came is {damage}", again=True)


@contextmanager
def _response(url: str, partial: _Running) -> Iterator[HTTPResponse]:
    """Ask for the part that is missing; ``_TryError`` if the server is not there or refuses."""
    headers = {"User-Agent": "pfl-bench"}
    if partial.size:
        headers["Range"] = f"bytes={partial.size}-"
    try:
        response = build_opener().open(Request(url, headers=headers), timeout=TIMEOUT_S)
    except HTTPError as error:
        with error:
            refused = error.code == RANGE_REFUSED and partial.size > 0
            if refused:
                partial.restart()
            again = refused or error.code in TRANSIENT
            raise _TryError(f"HTTP {error.code} {error.reason}", again=again) from error
    except URLError as error:
        reset = isinstance(error.reason, ConnectionResetError)
        raise _TryError(_words(error.reason), again=reset) from error
    except (InvalidURL, ValueError) as error:  # an address, perhaps a proxy's, makes no sense
        raise _TryError(_words(error), again=False) from error
    except (OSError, HTTPException) as error:
        raise _TryError(_words(error), again=True) from error
    with response:
        yield response


def _declared_size(response: HTTPResponse, partial: _Running) -> int | None:
    """Bytes of the whole file by the answer's headers, which may not say; checks its part."""
    length = response.headers.get("Content-Length", "")
    if response.status == 200:
        return int(length) if LENGTH.fullmatch(length) else None
    if response.status != 206:
        raise _TryError(f"HTTP {response.status} {response.reason}", again=False)
    found = CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    if found is None or int(found[1]) != partial.size:
        partial.restart()
        raise _TryError("the server gives another part than was asked for", again=True)
    if found[2] != "*":
        return int(found[2])
    return partial.size + int(length) if LENGTH.fullmatch(length) else None


def _chunks(response: HTTPResponse) -> Iterator[bytes]:
    """Read an answer; a failing connection becomes a ``_TryError``, unlike a failing disk."""
    while True:
        try:
            chunk = response.read(CHUNK_BYTES)
        except (OSError, HTTPException) as error:
            raise _TryError(_words(error), again=True) from error
        if not chunk:
            return
        yield chunk


def _words(error: BaseException | str) -> str:
    return error if isinstance(error, str) else f"{type(error).__name__}: {error}"


def _bytes(size: int | None) -> str:
    return "" if size is None else f" ({size} bytes)"
