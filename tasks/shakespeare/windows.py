"""Windows of 80 characters over what a role says, and their split in the order of the text."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tasks.common.leaf.plan import bounds

LENGTH = 80
SPLITS = ("train", "val", "test")
_SPACES = re.compile(r"  +")
_NAME = re.compile(r"\W+")


def client_name(play: str, role: str) -> str:
    """Name of a role as LEAF writes it: PLAY_ROLE, and anything but letters and digits as "_"."""
    return _NAME.sub("_", f"{play}_{role}".replace(" ", "_"))


def join_lines(lines: Sequence[str]) -> str:
    """Text of a role's lines: a space after each line, and never two spaces in a row."""
    return _SPACES.sub(" ", "".join(f"{line} " for line in lines))


def cut(numbers: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Cut a text into windows, one a character from the 81st on.

    Args:
        numbers: Shape (m,), the text's characters.

    Returns:
        Inputs, shape (m - 80, 80), a view; and targets, the character after each, shape (m - 80,).
        Both are empty for a text of at most 80 characters.
    """
    if len(numbers) <= LENGTH:
        return np.empty((0, LENGTH), dtype=np.uint8), np.empty(0, dtype=np.uint8)
    return np.lib.stride_tricks.sliding_window_view(numbers[:-1], LENGTH), numbers[LENGTH:]


def positions(inputs: NDArray[np.uint8], targets: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Places of windows in the text that they were cut from.

    A window that goes on where the one before it ended by a character is at the next position. One
    that begins with the end of the one before it, as where windows between them are missing, is as
    much further on; one that repeats it is at the same place. Any other begins a text of its own,
    which shares no position with those before. Where most windows do not go on, each begins one.

    Args:
        inputs: Shape (n, 80).
        targets: Shape (n,).

    Returns:
        Shape (n,), ascending, from 0.
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
    """Split a role's windows: the earliest are train, the next val, the last test.

    Args:
        places: Shape (n,), n at least 1, as ``positions`` gives them.
        train_fraction: Fraction for train, at least one window.
        val_fraction: Fraction for val; what both leave is test.
        remove_overlap: Whether windows of val and test that share a character of the text with a
            window of a split before are left out; they are the first 80 of each.

    Returns:
        The windows of each split that gets any.
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
