"""Bringing the comments of each author together, in bounded memory."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple, Self

from pfl_bench.data.temporary import TemporaryFolder
from pfl_bench.types import DataError

_BUFFER = 64 << 10


class Cleaned(NamedTuple):
    """A comment after cleaning; ``text`` is its tokens with a blank between each two."""

    created: int
    subreddit: int
    identifier: str | None
    text: str


class AuthorBuckets:
    """Comments on disk, those of an author all in one of ``num_buckets`` files; a context manager.

    Dumps are in the order of time, so an author's comments lie scattered; to bring them together a
    file at a time takes memory for one part in ``num_buckets`` of all comments (LEAF's month: about
    12 GB of text). The files lie beside ``out``; a folder that cannot be written is a DataError.
    """

    def __init__(self, out: Path, num_buckets: int = 256) -> None:
        self._out = out
        self._num_buckets = num_buckets
        self._files: list[IO[str]] = []
        self._folder: TemporaryFolder | None = None

    def __enter__(self) -> Self:
        try:
            self._folder = TemporaryFolder(self._out, "comments")
            for number in range(self._num_buckets):
                path = self._folder.path / str(number)
                self._files.append(open(path, "w+", _BUFFER, encoding="utf-8", newline="\n"))
        except OSError as error:
            self.__exit__()
            raise self._cannot_write(error) from error
        return self

    def __exit__(self, *exception: object) -> None:
        for file in self._files:
            with suppress(OSError):  # a full disk refuses the last buffer; the file goes anyway
                file.close()
        if self._folder is not None:
            self._folder.remove()

    def add(self, author: str, comment: Cleaned) -> None:
        """Take a comment in; a full disk is a DataError."""
        number = zlib.crc32(author.encode()) % self._num_buckets
        try:
            self._files[number].write(json.dumps([author, *comment]) + "\n")
        except OSError as error:
            raise self._cannot_write(error) from error

    def authors(self) -> Iterator[tuple[str, list[Cleaned], int]]:
        """Give each author once, with the comments in the order of time and how many were repeated.

        Comments of equal times stay as they came; repeated ones (by identifier) are left out.
        """
        for file in self._files:
            try:
                file.flush()
            except OSError as error:
                raise self._cannot_write(error) from error
            file.seek(0)
            comments: dict[str, list[Cleaned]] = {}
            for line in file:
                author, *values = json.loads(line)
                comments.setdefault(author, []).append(Cleaned(*values))
            for author in sorted(comments):
                unique, repeated = _without_repetitions(comments[author])
                yield author, sorted(unique, key=lambda comment: comment.created), repeated

    def _cannot_write(self, error: OSError) -> DataError:
        return DataError(
            f"cannot write temporary data into {self._out.absolute().parent} ({error.strerror}): "
            "the output's folder must exist, be writable and have room for about the size of the "
            "unpacked comments' text, three times; choose another one by --out"
        )


def _without_repetitions(comments: list[Cleaned]) -> tuple[list[Cleaned], int]:
    seen: set[str] = set()
    unique: list[Cleaned] = []
    for comment in comments:
        if comment.identifier is not None:
            if comment.identifier in seen:
                continue
            seen.add(comment.identifier)
        unique.append(comment)
    return unique, len(comments) - len(unique)
