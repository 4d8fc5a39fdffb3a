"""Softmax regression on counts of words."""

from __future__ import annotations

from torch import Tensor, nn

from tasks.common.text.words import SPECIAL

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
