"""From a tweet to words, and from words to their numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import islice

import numpy as np
from numpy.typing import NDArray

PAD_ID, UNKNOWN_ID = 0, 1
SPECIAL = ("<PAD>", "<UNK>")
FIRST_WORD = len(SPECIAL)
_WORD = re.compile(r"[\w']+|[.,!?;]")


def split_words(text: str, lowercase: bool) -> list[str]:
    """Cut a text into words and the marks ``. , ! ? ;``, each of them a word.

    A word is a run of letters, digits, underscores and apostrophes; all else only divides. So
    ``@name`` gives ``name``, an address gives several words, and HTML entities stay undecoded
    (``&lt;`` gives ``lt`` and ``;``).

    LEAF does not make it lower case first.

    Source: Caldas et al. 2018, LEAF, models/utils/language_utils.py (split_line).
    """
    return _WORD.findall(text.lower() if lowercase else text)


def choose_vocabulary(counts: Mapping[str, int], size: int) -> list[str]:
    """Take the commonest words: the word of each of ``size`` numbers, 3 at least.

    Padding and unknown come first, then words from the commonest on; of equally common ones, the
    first by code points; none that never occurs. There are fewer if there are not as many words.
    """
    common = sorted((word for word in counts if counts[word]), key=lambda w: (-counts[w], w))
    return [*SPECIAL, *islice(common, size - len(SPECIAL))]


def to_ids(words: Iterable[str], ids: Mapping[str, int]) -> NDArray[np.uint32]:
    """Number n words, shape (n,); those without a number become ``UNKNOWN_ID``."""
    return np.array([ids.get(word, UNKNOWN_ID) for word in words], dtype=np.uint32)
