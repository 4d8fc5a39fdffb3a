"""Comments by author, and proof that none is in two splits: on disk, in bounded memory."""

from __future__ import annotations

import hashlib
import json
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from pfl_bench.types import DataError
from tasks.common.leaf.parts import Part
from tasks.reddit.vocabulary import cannot_write

_BUFFER = 64 << 10
_DIGEST = 16
_RECORD = np.dtype([("digest", f"V{_DIGEST}"), ("split", "u1")])


class Buckets:
    """Records, those of a key all in one of ``number`` temporary files; a context manager.

    The files have no names and lie in ``folder``, one that cannot be written is a DataError.
    """

    def __init__(self, folder: Path, number: int = 256) -> None:
        self._folder = folder
        self._number = number
        self._files: list[IO[bytes]] = []

    def __enter__(self) -> Self:
        try:
            for _ in range(self._number):
                self._files.append(tempfile.TemporaryFile(buffering=_BUFFER, dir=self._folder))
        except OSError as error:
            self.__exit__()
            raise cannot_write(self._folder, error) from error
        return self

    def __exit__(self, *exception: object) -> None:
        for file in self._files:
            with suppress(OSError):  # a full disk refuses the last buffer; the file goes anyway
                file.close()

    def put(self, key: int, record: bytes) -> None:
        """Write a record; a full disk is a DataError."""
        try:
            self._files[key % self._number].write(record)
        except OSError as error:
            raise cannot_write(self._folder, error) from error

    def files(self) -> Iterator[IO[bytes]]:
        """Give each file, to be read from its beginning."""
        for file in self._files:
            try:
                file.seek(0)
            except OSError as error:
                raise cannot_write(self._folder, error) from error
            yield file


class Cleaned(NamedTuple):
    """A comment after cleaning; ``text`` is its tokens with a blank between each two."""

    created: int
    subreddit: int
    identifier: str | None
    text: str


class AuthorBuckets(Buckets):
    """Comments by author.

    Dumps are in the order of time, so an author's comments lie scattered; to bring them together a
    file at a time takes memory for one part in ``number`` of all comments (LEAF's month: about 12
    GB of text).
    """

    def add(self, author: str, comment: Cleaned) -> None:
        """Take a comment in; a full disk is a DataError."""
        line = json.dumps([author, *comment]) + "\n"
        self.put(zlib.crc32(author.encode()), line.encode())

    def authors(self) -> Iterator[tuple[str, list[Cleaned], int]]:
        """Give each author once, with the comments in the order of time and how many were repeated.

        Comments of equal times stay as they came; repeated ones (by identifier) are left out.
        """
        for file in self.files():
            comments: dict[str, list[Cleaned]] = {}
            for line in file:
                author, *values = json.loads(line)
                comments.setdefault(author, []).append(Cleaned(*values))
            for author in sorted(comments):
                own, unique = comments[author], dict[object, Cleaned]()
                for place, comment in enumerate(own):
                    # One without an identifier is like no other.
                    key = place if comment.identifier is None else comment.identifier
                    unique.setdefault(key, comment)
                in_time = sorted(unique.values(), key=lambda comment: comment.created)
                yield author, in_time, len(own) - len(unique)


class OverlapFinder(Buckets):
    """Finds comments that are in two splits.

    A comment is told by its user, subreddit, time and tokens: a digest of them, of 16 bytes, goes
    to one of 64 files, which are looked through one by one.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, 64)
        self._splits: list[str] = []

    def add(self, part: Part, subreddits: NDArray[np.object_]) -> None:
        """Take in a user's comments in a split; names of subreddits by number, shape (S,)."""
        if part.split not in self._splits:
            self._splits.append(part.split)
        split = bytes((self._splits.index(part.split),))
        for digest in comment_digests(part, subreddits):
            self.put(digest[0], digest + split)

    def check(self, parts: Iterable[Part], subreddits: NDArray[np.object_], source: Path) -> None:
        """Refuse data of which a comment is in two splits.

        ``parts`` are those that were taken in, once more, to name the user; ``subreddits`` has the
        names by number, shape (S,).
        """
        comments = repeated = 0
        example: bytes | None = None
        for file in self.files():
            records = np.frombuffer(file.read(), dtype=_RECORD)
            comments += len(records)
            # Each split has a comment once or more: of a digest's different records one a split.
            digests, splits = np.unique(np.unique(records)["digest"], return_counts=True)
            shared = digests[splits > 1]
            repeated += len(shared)
            if len(shared) and example is None:
                example = shared[0].tobytes()
        if example is None:
            return
        # A digest has the user in it, so all of these are of one user.
        found = [p for p in parts if example in comment_digests(p, subreddits)]
        raise DataError(
            f"{source}: the splits are not disjoint: {repeated} comments, of {comments} in all "
            f"splits, are in several, such as one of user {found[0].client_id!r} in "
            f"{' and '.join(part.split for part in found)}; results on such a test split would be "
            "results on training comments. LEAF's small download once had the same comments in "
            "train, val and test: get the present files, or prepare a raw dump, which is split here"
        )


def comment_digests(part: Part, subreddits: NDArray[np.object_]) -> list[bytes]:
    """Digests of a user's comments; ``subreddits`` has their names by number, shape (S,)."""
    user = part.client_id.encode()
    arrays: dict[str, Any] = part.arrays
    digests = []
    for text, created, number in zip(
        arrays["text"], arrays["created"], arrays["subreddit"], strict=True
    ):
        head = b"%b\0%b\0%d\0" % (user, subreddits[number].encode(), int(created))
        digests.append(hashlib.blake2b(head + text.tobytes(), digest_size=_DIGEST).digest())
    return digests
