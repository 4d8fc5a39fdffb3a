"""Reading Reddit in LEAF's JSON form, streaming: one user of one file in memory at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_bench.types import DataError
from tasks.common.leaf.json_files import LeafUser, read_splits
from tasks.common.leaf.partition import Gathering
from tasks.common.progress import Progress
from tasks.reddit.dumps import to_seconds
from tasks.reddit.sequences import pack, to_masks

_KEYS = ("target_tokens", "count_tokens", "subreddit", "created_utc")


def gather(
    source: Path,
    files: dict[str, list[Path]],
    length: int,
    gathering: Gathering,
    subreddits: dict[str, int],
    progress: Progress,
) -> dict[str, Any]:
    """Read all ``files`` and number their ``subreddits``, which grows; returns facts for the store.

    A file that is damaged or contradicts itself is a DataError that names file, user and comment,
    or the position; so is a sequence of another ``length``.
    """
    for split, leaf, where in read_splits(source, files, progress, counts_all_splits=True):
        gathering.append(split, leaf.user, **_comments(leaf, length, subreddits, where))
    return {"files": sum(map(len, files.values()))}


def _comments(
    leaf: LeafUser, length: int, subreddits: dict[str, int], where: str
) -> dict[str, Any]:
    texts: list[NDArray[np.uint8]] = []
    masks: list[NDArray[np.uint16]] = []
    created: list[int] = []
    numbers: list[int] = []
    for index, (x, y) in enumerate(zip(leaf.x, leaf.y, strict=True)):
        here = f"{where}, comment {index}"
        if not isinstance(y, dict) or any(y.get(key) is None for key in _KEYS):
            raise DataError(
                f"{here}: 'y' must have {', '.join(_KEYS)}, as LEAF's Reddit has; is this another "
                "LEAF data set?"
            )
        text, mask = _sequences(x, y, length, here)
        texts.append(text)
        masks.append(mask)
        try:
            created.append(to_seconds(y["created_utc"]))
        except ValueError as error:
            raise DataError(
                f"{here}: created_utc is {str(y['created_utc'])[:40]!r}; it must be whole seconds "
                "since 1970"
            ) from error
        name = y["subreddit"]
        if not isinstance(name, str) or not name:
            raise DataError(f"{here}: subreddit is {name!r}; it must be a name")
        numbers.append(subreddits.setdefault(name, len(subreddits)))
    return {
        "text": texts,
        "counted": masks,
        "created": np.array(created, dtype=np.int64),
        "subreddit": np.array(numbers, dtype=np.uint32),
    }


def _sequences(
    x: Any, y: dict[str, Any], length: int, here: str
) -> tuple[NDArray[np.uint8], NDArray[np.uint16]]:
    """Check a comment's sequences, and give their text and masks."""
    inputs = _flat(x, length, "x", here)
    targets = _flat(y["target_tokens"], length, "target_tokens", here)
    counts = _flat(y["count_tokens"], length, "count_tokens", here)
    if not len(inputs) == len(targets) == len(counts):
        raise DataError(
            f"{here}: {len(inputs) // length} sequences of inputs, {len(targets) // length} of "
            f"target_tokens and {len(counts) // length} of count_tokens; they must be as many"
        )
    for key, tokens in (("x", inputs), ("target_tokens", targets)):
        if not all(isinstance(token, str) for token in tokens):
            raise DataError(f"{here}: {key} has a token that is no text")
    if not all(count in (0, 1) for count in counts):
        raise DataError(f"{here}: count_tokens must be 0 or 1")
    flags = np.array(counts, dtype=np.uint16).reshape(-1, length)
    return pack(inputs, targets, here), to_masks(flags)


def _flat(value: Any, length: int, key: str, here: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise DataError(f"{here}: {key} must be a list of sequences, at least one")
    flat: list[Any] = []
    for number, row in enumerate(value):
        if not isinstance(row, list) or len(row) != length:
            found = f"{len(row)} tokens" if isinstance(row, list) else type(row).__name__
            raise DataError(
                f"{here}: sequence {number} of {key} has {found}; sequences have {length} tokens "
                "here: set sequence_length if all files have another length"
            )
        flat += row
    return flat
