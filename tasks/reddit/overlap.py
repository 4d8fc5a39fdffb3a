"""Proof that no comment of a user is in two splits, in bounded memory."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
from numpy.typing import NDArray

from pfl_bench.types import DataError
from tasks.common.leaf.parts import Part
from tasks.reddit.vocabulary import cannot_write

_DIGEST = 16
_RECORD = np.dtype([("digest", f"V{_DIGEST}"), ("split", "u1")])


class OverlapFinder:
    """Finds comments that are in two splits; a context manager.

    A comment is told by its user, subreddit, time and tokens: a digest of them, of 16 bytes, goes
    to one of 64 temporary files without names in ``folder``, which are looked through one by one.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: list[IO[bytes]] = []
        self._splits: list[str] = []

    def __enter__(self) -> Self:
        for _ in range(64):
            self._files.append(tempfile.TemporaryFile(dir=self._folder))
        return self

    def __exit__(self, *exception: object) -> None:
        for file in self._files:
            with contextlib.suppress(OSError):  # a full disk refuses the last buffer
                file.close()

    def add(self, part: Part, subreddits: NDArray[np.object_]) -> None:
        """Take in a user's comments in a split; names of subreddits by number, shape (S,)."""
        if part.split not in self._splits:
            self._splits.append(part.split)
        split = bytes((self._splits.index(part.split),))
        try:
            for digest in comment_digests(part, subreddits):
                self._files[digest[0] & 63].write(digest + split)
        except OSError as error:
            raise cannot_write(self._folder, error) from error

    def check(self, parts: Iterable[Part], subreddits: NDArray[np.object_], source: Path) -> None:
        """Refuse data of which a comment is in two splits.

        ``parts`` are those that were taken in, once more, to name the user; ``subreddits`` has the
        names by number, shape (S,).
        """
        comments = repeated = 0
        example: bytes | None = None
        for file in self._files:
            try:
                file.seek(0)
            except OSError as error:
                raise cannot_write(self._folder, error) from error
            records = np.frombuffer(file.read(), dtype=_RECORD)
            comments += len(records)
            unique, inverse = np.unique(records["digest"], return_inverse=True)
            low = np.full(len(unique), 255, dtype=np.uint8)
            high = np.zeros(len(unique), dtype=np.uint8)
            np.minimum.at(low, inverse, records["split"])
            np.maximum.at(high, inverse, records["split"])
            shared = np.flatnonzero(low < high)
            repeated += len(shared)
            if len(shared) and example is None:
                example = unique[shared[0]].tobytes()
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
