"""Text as numbers of LEAF's 80 characters, cut into windows that are split in its order."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tasks.common.leaf.plan import bounds

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


def decode(numbers: NDArray[np.uint8]) -> str:
    """Turn numbers of characters, shape (n,), back into text."""
    return "".join(CHARACTERS[number] for number in numbers.tolist())


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
