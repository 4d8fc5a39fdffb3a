"""Masked language modelling: which tokens of a block are hidden, and behind what.

Of the ordinary tokens each is chosen with a probability, independently. A chosen one becomes
``[MASK]`` (80 %), another ordinary token (10 %), or stays as it is (10 %); the model is to tell
what it was.

Training hides anew in each batch, by draws of the client's own stream, so the targets are all
tokens of a block: of one that is not hidden the model says itself what it is, which costs nothing
and has no gradient (``models.HiddenTokens``). Evaluation always hides the same tokens of a block,
and no other target counts.

Source: Devlin et al. 2019 (BERT), section 3.1; Lai et al. 2022 (FedScale), core/utils/nlp.py, whose
random tokens may be special ones too.
"""

from __future__ import annotations

import zlib

import numpy as np
import torch
from torch import Tensor

from pfl_bench.data import StoredSplit
from pfl_bench.types import Examples, SplitAround

SPECIAL = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
PAD_ID, UNKNOWN_ID, START_ID, END_ID, MASK_ID = range(5)
FIRST_WORD = len(SPECIAL)
# What PyTorch's cross entropy leaves out unless told otherwise.
NOT_COUNTED = -100
# In the place of a token that the model is to tell.
HIDDEN = -1
MASKED, REPLACED = 0.8, 0.1
_RANGE = 1 << 30
_EVALUATION_SEED = 0


class HideTokens:
    """Hides tokens of batches (``types.BatchTransform``), blocks of L tokens.

    Special tokens, unknown words among them, are never hidden.
    """

    def __init__(self, probability: float, length: int, vocabulary_size: int) -> None:
        self._below = int(probability * _RANGE)
        self._length = length
        self._ordinary = vocabulary_size - FIRST_WORD

    def draw(self, count: int, rng: np.random.Generator) -> Tensor:
        """Draw three numbers a token: whether, behind what, and behind which other token.

        Their shape is (count, 3 * L), int64.
        """
        return torch.from_numpy(rng.integers(0, _RANGE, (count, 3 * self._length)))

    def __call__(self, inputs: Tensor, draws: Tensor | None) -> Tensor:
        """Hide tokens of a batch of shape (n, L), int64, by draws of shape (n, 3 * L).

        Without draws, reading has hidden them already. Returns shape (n, L, 2), int64: what the
        model reads, and what it need not tell: ``HIDDEN`` where it is to tell the token, everywhere
        without draws.
        """
        if draws is None:
            return torch.stack([inputs, torch.full_like(inputs, HIDDEN)], dim=2)
        whether, how, other = draws.view(-1, 3, self._length).unbind(dim=1)
        hidden = (inputs >= FIRST_WORD) & (whether < self._below)
        masked = hidden & (how < MASKED * _RANGE)
        replaced = hidden & ~masked & (how < (MASKED + REPLACED) * _RANGE)
        read = torch.where(replaced, FIRST_WORD + other % self._ordinary, inputs)
        read = read.masked_fill(masked, MASK_ID)
        return torch.stack([read, inputs.masked_fill(hidden, HIDDEN)], dim=2)


class MaskedSplit(SplitAround):
    """One split of a store: plain for training, its tokens hidden for evaluation.

    What evaluation hides of an example depends on nothing but the split's name and the example's
    place, so that results are comparable from round to round and from run to run.
    """

    def __init__(self, stored: StoredSplit, transform: HideTokens) -> None:
        super().__init__(stored)
        self._transform = transform
        self._stream = zlib.crc32(stored.name.encode())

    def read_range(self, start: int, stop: int) -> Examples:
        """Read the blocks ``start:stop`` of all users as evaluation sees them, tokens hidden."""
        tokens = self._split.read_range(start, stop).inputs
        if not len(tokens):
            return Examples(tokens, tokens)
        seeds = ([_EVALUATION_SEED, self._stream, place] for place in range(start, stop))
        draws = [self._transform.draw(1, np.random.default_rng(seed)) for seed in seeds]
        read, told = self._transform(tokens, torch.cat(draws)).unbind(dim=2)
        return Examples(read, tokens.masked_fill(told != HIDDEN, NOT_COUNTED))
