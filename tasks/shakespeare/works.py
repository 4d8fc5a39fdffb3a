"""The plays' text: parsed into roles, and a role's as numbers, cut into windows and split in order.

``parse`` takes Project Gutenberg's text of the complete works, by the rules of LEAF's script, which
took them from the script behind McMahan et al. 2017; they are made for the edition of January 1994
(etext 100).
"""

from __future__ import annotations

import gzip
import hashlib
import re
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, cast

import numpy as np
from numpy.typing import NDArray

from pfl_bench.data import regular
from pfl_bench.types import DataError
from tasks.common.leaf.plan import bounds
from tasks.common.sources import reading

# MD5 of the edition of January 1994 with newlines of one byte, as it is without its own name.
EDITION_MD5 = "d2028225a89d8b0b3093dddb720da91f"
EDITION_PLAYS = 36
MAX_BYTES = 64 << 20
LOOKED_FOR = (
    "Gutenberg text: one file *.txt, *.txt.gz or *.zip with a text of the complete works "
    "(etext 100, January 1994, for LEAF's numbers)"
)
_AUTHOR = "by William Shakespeare"
_TITLE_ABOVE = range(2, 8)  # lines above the author's in which the title is looked for
_SPEAKER = re.compile(r"  ([a-zA-Z][a-zA-Z ]*)\. (.*)")
_SPEECH_INDENT = "    "
# One play of the edition is not indented; in it every line after a speaker's belongs to the
# speech, empty ones too, until one that begins with the copyright's bracket.
_NOT_INDENTED = "THE COMEDY OF ERRORS"
_NOT_INDENTED_SPEAKER = re.compile(r"([a-zA-Z][a-zA-Z ]*)\. (.*)")
_NO_SPEAKER, _COPYRIGHT = "ACT ", "<"
_MIN_ROLES = 2  # works with fewer are no plays


@dataclass(slots=True)
class Play:
    """A play, and what each speaker says, line by line; names in upper case."""

    title: str
    roles: dict[str, list[str]] = field(default_factory=dict)


def find_texts(source: Path) -> list[Path]:
    """The files of a folder that may be the text."""
    endings = (".txt", ".txt.gz", ".zip")
    return sorted(path for path in source.iterdir() if path.name.lower().endswith(endings))


def read_text(path: Path) -> tuple[str, str]:
    """Read a text, plain, gzipped or alone in a zip file, and the MD5 of its bytes.

    Newlines are one character in both.
    """
    with reading(path, mend="unpack it with another tool, or get it anew"), _open(path) as stream:
        data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise DataError(
            f"{path}: holds more than {MAX_BYTES >> 20} MiB; the complete works have 5 MiB: "
            "give their file"
        )
    data = data.replace(b"\r\n", b"\n")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    return text, hashlib.md5(data, usedforsecurity=False).hexdigest()


def _open(path: Path) -> IO[bytes]:
    name = regular(path).name.lower()
    if name.endswith(".gz"):
        return cast(IO[bytes], gzip.open(path))
    if not name.endswith(".zip"):
        return path.open("rb")
    with zipfile.ZipFile(path) as archive:
        texts = [entry for entry in archive.namelist() if entry.lower().endswith(".txt")]
        if len(texts) != 1:
            raise DataError(f"{path}: holds {len(texts)} files *.txt; give a zip file with one")
        return archive.open(texts[0])


def parse(text: str, where: str) -> list[Play]:
    """Find the plays and their roles, in the order of the text; each has at least two roles.

    All before the second line that names the author is passed over: it is about the edition, and
    the sonnets. A title stands two to seven lines above the author. A speaker's line has two
    spaces, the name and a full stop; the following lines belong to it as long as they are indented
    by four.

    Source: LEAF's data/shakespeare/preprocess. Its last rule, to stop at the line 124,195, changes
        nothing: what follows has no speakers.
    """
    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines) if _AUTHOR in line][1:]
    plays: list[Play] = []
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=False):
        above = (lines[start - distance].strip() for distance in _TITLE_ABOVE if start >= distance)
        play = Play(next((line for line in above if line), ""))
        for speaker, line in _speeches(lines[start + 1 : end], play.title == _NOT_INDENTED):
            play.roles.setdefault(speaker, []).append(line)
        if len(play.roles) >= _MIN_ROLES:
            plays.append(play)
    if not plays:
        raise DataError(
            f"{where}: no play found in {len(lines)} lines, {len(starts)} of them with "
            f"'{_AUTHOR}' after the first. Looked for the form of Gutenberg's etext 100 of January "
            f"1994 (md5 {EDITION_MD5}): a title, below it '{_AUTHOR}', speakers as two spaces, a "
            "name and a full stop, and speeches indented by four spaces. Get that edition"
        )
    return plays


def _speeches(lines: list[str], not_indented: bool) -> Iterator[tuple[str, str]]:
    """Lines of one play with their speakers."""
    pattern = _NOT_INDENTED_SPEAKER if not_indented else _SPEAKER
    speaker: str | None = None
    for line in lines:
        match = pattern.match(line)
        if match:
            speaker = match[1].upper()
            if not_indented and speaker.startswith(_NO_SPEAKER):
                speaker = None
            else:
                yield speaker, match[2]
        elif speaker is not None and not_indented:
            if line.startswith(_COPYRIGHT):
                speaker = None
            else:
                yield speaker, line
        elif speaker is not None and line.startswith(_SPEECH_INDENT):
            yield speaker, line[len(_SPEECH_INDENT) :]


# In LEAF's order; a character's number is its place.
CHARACTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
# Where LEAF's search for a character finds nothing it answers -1, and its one-hot vector of that
# has its one in the last place: any other character is taken for the last of these.
OTHER = len(CHARACTERS) - 1
_OUTSIDE = 255
_TABLE = np.full(256, _OUTSIDE, dtype=np.uint8)
_TABLE[[ord(character) for character in CHARACTERS]] = np.arange(len(CHARACTERS))
LENGTH = 80
_SPACES = re.compile(r"  +")
_NAME = re.compile(r"\W+")


def encode(text: str) -> tuple[NDArray[np.uint8], int]:
    """Turn text into numbers of characters, 0 to 79, shape (len(text),).

    Returns also how many characters are none of ``CHARACTERS``, which became ``OTHER``.
    """
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    numbers = _TABLE[np.minimum(codes, 255)]
    outside = (codes > 255) | (numbers == _OUTSIDE)
    return np.where(outside, np.uint8(OTHER), numbers), int(np.count_nonzero(outside))


def client_name(play: str, role: str) -> str:
    """Name of a role as LEAF writes it: PLAY_ROLE, and anything but letters and digits as "_"."""
    return _NAME.sub("_", f"{play}_{role}".replace(" ", "_"))


def join_lines(lines: Sequence[str]) -> str:
    """Text of a role's lines: a space after each line, and never two spaces in a row."""
    return _SPACES.sub(" ", "".join(f"{line} " for line in lines))


def cut(numbers: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Cut a text of shape (m,) into windows, one a character from the 81st on.

    Returns inputs, shape (m - 80, 80), a view; and targets, shape (m - 80,), the character after
    each. Both are empty for a text of at most 80 characters.
    """
    if len(numbers) <= LENGTH:
        return np.empty((0, LENGTH), dtype=np.uint8), np.empty(0, dtype=np.uint8)
    return np.lib.stride_tricks.sliding_window_view(numbers[:-1], LENGTH), numbers[LENGTH:]


def positions(inputs: NDArray[np.uint8], targets: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Places, ascending from 0, of windows in the text that they were cut from, shape (n,).

    A window that goes on where the one before it ended by a character is at the next position. One
    that begins with the end of the one before it, as where windows between them are missing, is as
    much further on; one that repeats it is at the same place. Any other begins a text of its own,
    which shares no position with those before. Where most windows do not go on, each begins one.
    ``inputs`` has the shape (n, 80), ``targets`` (n,).
    """
    goes_on = (inputs[1:, :-1] == inputs[:-1, 1:]).all(axis=1) & (inputs[1:, -1] == targets[:-1])
    steps = np.where(goes_on, 1, LENGTH + 1)
    jumps = np.flatnonzero(~goes_on)
    if 2 * len(jumps) <= len(steps):
        texts = np.concatenate([inputs, targets[:, None]], axis=1)
        for shift in (*range(LENGTH, 1, -1), 0):
            meets = texts[jumps, shift:] == texts[jumps + 1, : LENGTH + 1 - shift]
            steps[jumps[meets.all(axis=1)]] = shift
    return np.concatenate([[0], np.cumsum(steps)]).astype(np.int64)


def in_order(places: NDArray[np.int64]) -> bool:
    """Whether windows at places, shape (n,), follow the text: most go on where one ended."""
    return bool(2 * np.count_nonzero(np.diff(places) == 1) >= len(places) - 1)


def split_in_order(
    places: NDArray[np.int64], train_fraction: float, val_fraction: float, remove_overlap: bool
) -> dict[str, slice]:
    """Split a role's windows at ``places``, shape (n,): the earliest are train, the next val.

    Train has at least one; splits that get none are absent. With ``remove_overlap``, windows of val
    and test that share a character with a window of a split before are left out: the first 80 of
    each.
    """
    train_end, val_end = bounds(len(places), train_fraction, val_fraction)
    parts = {"train": slice(0, train_end)}
    last = train_end - 1
    for name, start, stop in (("val", train_end, val_end), ("test", val_end, len(places))):
        if remove_overlap:
            start = max(start, int(np.searchsorted(places, places[last] + LENGTH + 1)))
        if start < stop:
            parts[name] = slice(start, stop)
            last = stop - 1
    return parts
