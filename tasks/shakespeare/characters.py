"""LEAF's 80 characters, and text as their numbers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# In LEAF's order; a character's number is its place.
CHARACTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
# Where LEAF's search for a character finds nothing it answers -1, and its one-hot vector of that
# has its one in the last place: any other character is taken for the last of these.
OTHER = len(CHARACTERS) - 1
_OUTSIDE = 255


def _table() -> NDArray[np.uint8]:
    table = np.full(256, _OUTSIDE, dtype=np.uint8)
    for number, character in enumerate(CHARACTERS):
        table[ord(character)] = number
    return table


_TABLE = _table()


def encode(text: str) -> tuple[NDArray[np.uint8], int]:
    """Turn text into numbers of characters.

    Args:
        text: Any text.

    Returns:
        Shape (len(text),), 0 to 79; and how many characters are none of ``CHARACTERS``, which
        became ``OTHER``.
    """
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    numbers = _TABLE[np.minimum(codes, 255)]
    outside = (codes > 255) | (numbers == _OUTSIDE)
    return np.where(outside, np.uint8(OTHER), numbers), int(np.count_nonzero(outside))


def decode(numbers: NDArray[np.uint8]) -> str:
    """Turn numbers of characters, shape (n,), back into text."""
    return "".join(CHARACTERS[number] for number in numbers.tolist())
