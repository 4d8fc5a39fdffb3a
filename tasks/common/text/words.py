"""From a tweet to words, and from words to their numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pfl_bench.types import Examples

PAD_ID, UNKNOWN_ID = 0, 1
SPECIAL = ("<PAD>", "<UNK>")
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


def padded_words(rows: Sequence[NDArray[np.uint32]], targets: NDArray[Any], width: int) -> Examples:
    """Pad the numbered words of n texts, or cut them, to one width, L.

    Inputs of shape (n, L) and targets of shape (n,), both int64.
    """
    inputs = np.full((len(rows), width), PAD_ID, dtype=np.int64)
    for place, row in enumerate(rows):
        words = row[:width]
        inputs[place, : len(words)] = words
    return Examples(torch.from_numpy(inputs), torch.from_numpy(targets.astype(np.int64)))


FIRST_WORD = len(SPECIAL)


class BagOfWords(nn.Module):
    """Softmax regression on how often each word occurs, without making the counts.

    The row of counts times the weights is the sum of the weights of a tweet's words. Padding and
    unknown words count for nothing, as in LEAF, and not among ``num_words``. The bias is a table
    with one row because Opacus has a rule for such tables, and none for a parameter outside of a
    layer; and it is a sum of looked-up rows, not an ``EmbeddingBag``, because Opacus' rule for that
    counts a word that occurs twice once. ``init`` is "zeros", or "normal", LEAF's standard normal.
    """

    def __init__(self, num_words: int, num_classes: int, init: str) -> None:
        super().__init__()
        self.weight = nn.Embedding(num_words, num_classes)
        self.bias = nn.Embedding(1, num_classes)
        if init == "zeros":
            nn.init.zeros_(self.weight.weight)
            nn.init.zeros_(self.bias.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits of shape (n, num_classes) of tweets of shape (n, L), int64."""
        rows = self.weight((inputs - FIRST_WORD).clamp_min(0))
        words: Tensor = (rows * (inputs >= FIRST_WORD).unsqueeze(2)).sum(dim=1)
        bias: Tensor = self.bias(inputs.new_zeros(len(inputs)))
        return words + bias

    def own_flops(self, inputs: Tensor) -> int:
        """FLOPs of a forward and a backward pass on tweets of shape (n, L).

        Each place, padding too, is multiplied by whether it counts and added, for each class; and
        so is its gradient.
        """
        return 4 * inputs.numel() * self.weight.embedding_dim
