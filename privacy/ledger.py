"""The ledger: one line a released round, append-only, chained, so that spending can be audited.

Guarantee: a round is counted once and only once. Rounds are 1, 2, ... without a gap; a line holds
the SHA-256 of the line before, so that an altered, dropped or reordered line breaks the chain
(the last line alone has no follower; the run's statement must agree with it). A resumed run
replays rounds that are recorded already: the line, which holds a digest of the release, must come
out the same, else two sums would have been released under the same noise, whose difference is bare
of any.

A line is canonical JSON (sorted keys, no spaces, no time of day), so a replay can give the same.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from privacy import json_text
from privacy.errors import LedgerError

_START = "0" * 64


def canonical_line(entry: Mapping[str, Any], previous: str) -> bytes:
    """One line of the ledger, with its newline; ``LedgerError`` for what is no JSON.

    ``previous`` is the SHA-256 of the line before, 64 hexadecimal digits, and no key of the entry.
    """
    if "previous" in entry:
        raise LedgerError(
            "a ledger entry must not set 'previous', which the ledger computes; leave it out"
        )
    try:
        text = json.dumps(
            {**entry, "previous": previous},
            sort_keys=True,
            separators=(",", ":"),
            allow_nan=False,
        )
    except (TypeError, ValueError) as error:
        raise LedgerError(
            f"round {entry.get('round')!r} cannot be recorded: {error}; entries hold strings, "
            "finite numbers, null, lists and mappings"
        ) from error
    return text.encode() + b"\n"


def _digest(line: bytes) -> str:
    """SHA-256 of a line, its newline left out."""
    return hashlib.sha256(line.rstrip(b"\n")).hexdigest()


def read_ledger(path: Path | str) -> list[dict[str, Any]]:
    """Entries of a ledger, verified, "previous" included; the file is not changed.

    A last line that a kill has torn is left out. ``LedgerError``: the file is missing, a line is
    damaged or altered, or rounds are not 1 .. n.
    """
    return [entry for entry, _ in iterate_ledger(path)]


def iterate_ledger(path: Path | str) -> Iterator[tuple[dict[str, Any], str]]:
    """Entries as of ``read_ledger`` and the SHA-256 of their lines, in the memory of one line.

    ``LedgerError`` is raised once the reading comes to where it is wrong.
    """
    for entry, digest, _ in _lines(Path(path)):
        yield entry, digest


def _lines(path: Path) -> Iterator[tuple[dict[str, Any], str, int]]:
    """Entries, digests of their lines, and their lengths in bytes."""
    if path.exists() and not path.is_file():
        raise LedgerError(
            f"cannot read the ledger {path}: it is no regular file, and may never end"
        )
    try:
        stream = path.open("rb")
    except OSError as error:
        raise LedgerError(
            f"cannot read the ledger {path}: {error.strerror}; a run that has released a round "
            "has one in its folder"
        ) from error
    previous = _START
    with stream:
        for number, line in enumerate(stream, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                entry = json_text.parse(line)
            except (ValueError, RecursionError):
                entry = None
            if not isinstance(entry, dict):
                raise LedgerError(
                    f"{path}, line {number}: not a line of a ledger; it has been damaged. Restore "
                    "the file from a copy, or start a new run folder"
                )
            _check_line(path, number, entry, previous)
            previous = _digest(line)
            yield entry, previous, len(line)


def _check_line(path: Path, number: int, entry: dict[str, Any], previous: str) -> None:
    if entry.get("round") != number or isinstance(entry.get("round"), bool):
        raise LedgerError(
            f"{path}, line {number}: holds round {entry.get('round')!r} where {number} belongs; a "
            "line was dropped, doubled or moved. Restore the file, or start a new run folder"
        )
    if entry.get("previous") != previous:
        altered = f"line {number - 1} was altered, or this line" if number > 1 else "it was altered"
        raise LedgerError(
            f"{path}, line {number}: does not follow from the line before (its 'previous' is "
            f"{str(entry.get('previous'))[:12]}..., expected {previous[:12]}...); {altered}. "
            "Restore the file, or start a new run folder"
        )


class Ledger(contextlib.AbstractContextManager["Ledger"]):
    """A ledger that is open for appending; close it, or use it in ``with``.

    In a folder that exists, the file is made, or a torn last line mended. ``last_entry`` is the
    last line that was recorded when it was opened (None if there was none). ``LedgerError``: the
    chain or the rounds do not hold, or the file cannot be opened.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = path = Path(path)
        self._is_made_here = not path.exists()
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise LedgerError(
                f"cannot open the ledger {path} for writing: {error.strerror}; check the folder "
                "and its permissions"
            ) from error
        self._descriptor: int | None = descriptor
        self._digests, self._length = list[str](), 0
        self.last_entry: Mapping[str, Any] | None = None
        try:
            for self.last_entry, digest, size in _lines(path):
                self._digests.append(digest)
                self._length += size
            if os.fstat(descriptor).st_size > self._length:
                os.ftruncate(descriptor, self._length)
                os.fsync(descriptor)
            if self._is_made_here:
                synchronise_folder(path.parent)
        except BaseException:
            os.close(descriptor)
            raise

    @property
    def last_round(self) -> int:
        """Number of the last recorded round; 0 if there is none."""
        return len(self._digests)

    def digest(self, rounds: int) -> str:
        """SHA-256 of a round's line, by which a file kept elsewhere can name a ledger.

        Of 0, that which the first line begins from.
        """
        return self._digests[rounds - 1] if rounds else _START

    def check_resume(
        self, rounds_done: int, constants: Mapping[str, Any], digest: str | None = None
    ) -> None:
        """Check, before a run goes on, that it goes on with what is recorded.

        ``rounds_done`` and ``digest``, the SHA-256 of that round's line (None if it has none), are
        of the checkpoint; every line of the run must hold the constants. ``LedgerError``: rounds
        are missing, the last line has other constants, or the checkpoint is of another ledger.
        """
        last = self.last_entry or {}
        changed = [key for key, value in constants.items() if last and last.get(key) != value]
        if self._is_made_here and rounds_done:
            problem = (
                f"{self._path} is missing, but the checkpoint has {rounds_done} rounds: they would "
                "go unaccounted. Restore the file, or start a new run folder"
            )
        elif self.last_round < rounds_done:
            problem = (
                f"{self._path} ends with round {self.last_round}, but the checkpoint has "
                f"{rounds_done} rounds: lines are missing, and the rounds would go unaccounted. "
                "Restore the file, or start a new run folder"
            )
        elif digest is not None and digest != self.digest(rounds_done):
            problem = (
                f"{self._path}: its round {rounds_done} is not the one that the checkpoint was "
                "saved after, so it is of another run, or was altered. Restore the file, or start "
                "a new run folder"
            )
        elif changed:
            shown = "; ".join(f"{key}: {last.get(key)!r} -> {constants[key]!r}" for key in changed)
            problem = (
                f"{self._path} was recorded under other settings than today's ({shown}); one "
                "statement cannot cover both. Resume with the data and the versions of the "
                "libraries that recorded it, or start a new run folder"
            )
        else:
            return
        self.close()
        if self._is_made_here:
            # An empty one would look as if the run had had it.
            self._path.unlink(missing_ok=True)
        raise LedgerError(problem)

    def append(self, entry: Mapping[str, Any]) -> None:
        """Record a round, from 1, or verify that a replayed round is the recorded one.

        It is on disk on return. ``LedgerError``: the round is missing or leaves a gap, a replayed
        round differs from the recorded one, the entry is not JSON, the ledger is closed, or its
        file was removed, replaced, cut or written by others.
        """
        if self._descriptor is None:
            raise LedgerError(f"the ledger {self._path} is closed; open it again to append")
        self._check_in_place(self._descriptor)
        number = entry.get("round")
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise LedgerError(f"a ledger entry's round is {number!r}, but must be 1 or more")
        if number > self.last_round + 1:
            raise LedgerError(
                f"round {number} cannot follow round {self.last_round} in {self._path}: the rounds "
                "between would go unaccounted; resume from a checkpoint of round "
                f"{self.last_round} or earlier"
            )
        line = canonical_line(entry, self._digests[number - 2] if number > 1 else _START)
        if number <= self.last_round:
            if _digest(line) != self._digests[number - 1]:
                raise LedgerError(self._replay_message(number, line))
            return
        self._write(line)
        self._digests.append(_digest(line))

    def _check_in_place(self, descriptor: int) -> None:
        """Check that the file that is open is the one in the folder, as it was left here."""
        held = os.fstat(descriptor)
        try:
            is_here = os.path.samestat(held, os.stat(self._path))
        except OSError:
            is_here = False
        if not is_here or held.st_size != self._length:
            what = "was changed by another process" if is_here else "was removed, moved or replaced"
            raise LedgerError(
                f"{self._path} {what} while the run wrote to it: its rounds would go unaccounted, "
                "so no further round is released. Put the file back as it was and go on with "
                "--resume, or start a new run folder"
            )

    def _write(self, line: bytes) -> None:
        assert self._descriptor is not None
        start = self._length
        try:
            written = 0
            while written < len(line):
                written += os.write(self._descriptor, line[written:])
            os.fsync(self._descriptor)
            self._length += len(line)
        except OSError as error:
            with contextlib.suppress(OSError):  # A torn line is mended when it is opened again.
                os.ftruncate(self._descriptor, start)
            raise LedgerError(
                f"cannot write the ledger {self._path}: {error.strerror}; make room and resume"
            ) from error

    def _replay_message(self, number: int, line: bytes) -> str:
        recorded, _ = next(islice(iterate_ledger(self._path), number - 1, None))
        replayed = json.loads(line)
        keys = sorted(
            key for key in {*recorded, *replayed} if recorded.get(key) != replayed.get(key)
        )
        return (
            f"round {number} is recorded in {self._path} already, and its replay differs (in "
            f"{', '.join(keys)}): data, code or machine are not those that recorded it. Two sums "
            "released under the same noise differ without any noise; resume with the data, the "
            "machine and the versions that recorded it, or start a new run folder"
        )

    def close(self) -> None:
        """Close the file; closing twice is allowed."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __exit__(self, *exception: object) -> None:
        self.close()


def synchronise_folder(folder: Path) -> None:
    """Make a folder's entries, such as a new file's name, outlive a power cut."""
    if os.name == "nt":
        return  # Windows cannot open folders
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system without it
            raise
    finally:
        os.close(descriptor)
