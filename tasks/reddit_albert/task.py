"""The task of Reddit with ALBERT: fill in masked tokens of comments, one client an author.

Of the ordinary tokens each is chosen with a probability, independently. A chosen one becomes
``[MASK]`` (80 %), an ordinary token drawn from all of them (10 %), or stays as it is (10 %); the
model is to tell what it was.

Training hides anew in each batch, by draws of the client's own stream, so the targets are all
tokens of a block: of one that is not hidden the model says itself what it is, which costs nothing
and has no gradient (``models.HiddenTokens``). Evaluation always hides the same tokens of a block,
and no other target counts.

Source: Devlin et al. 2019 (BERT), section 3.1; Lai et al. 2022 (FedScale), core/utils/nlp.py, whose
random tokens may be special ones too.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from pfl_bench.data import Store, StoredSplit, open_store
from pfl_bench.metrics.next_token import NOT_COUNTED
from pfl_bench.types import DataError, Examples, SplitAround
from tasks.common.classification import token_losses
from tasks.common.fedscale.stored import PartitionedTask, TaskOptions

SPECIAL = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
PAD_ID, UNKNOWN_ID, START_ID, END_ID, MASK_ID = range(5)
FIRST_WORD = len(SPECIAL)
# In the place of a token that the model is to tell.
HIDDEN = -1
MASKED, REPLACED = 0.8, 0.1
_RANGE = 1 << 30
_EVALUATION_SEED = 0


class HideTokens:
    """Hides tokens of batches (``types.BatchTransform``), blocks of L tokens.

    Special tokens, unknown words among them, are never hidden.
    """

    needs_draws = True

    def __init__(self, probability: float, length: int, vocabulary_size: int) -> None:
        self._below = int(probability * _RANGE)
        self._length = length
        self._ordinary = vocabulary_size - FIRST_WORD

    def draw(self, count: int, rng: np.random.Generator) -> Tensor:
        """Draw three numbers a token: whether, behind what, and behind which token in its place.

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


TASK_NAME = "reddit_albert"
FIELDS = ("tokens",)


class Options(TaskOptions):
    """Options of the task, beside those of ``TaskOptions``.

    Attributes:
        mask_probability: Of each ordinary token to be hidden.
    """

    mask_probability: float = Field(default=0.15, gt=0, le=1)


def to_examples(arrays: Mapping[str, Any]) -> Examples:
    """Turn stored blocks into tokens: int64, shape (n, L), which are inputs and targets alike."""
    tokens = torch.from_numpy(arrays["tokens"].astype(np.int64))
    return Examples(tokens, tokens)


class RedditAlbertTask(PartitionedTask):
    """Masked language modelling on blocks of tokens.

    Metrics are those of the family "next_token", of the hidden tokens alone: "perplexity" and
    "loss" are the published ones.
    """

    metrics: tuple[str, ...] = ("next_token",)

    def __init__(self, store: Store, options: Options) -> None:
        if store.facts.num_classes <= FIRST_WORD:
            raise DataError(
                f"task reddit_albert: {options.data} has no ordinary token in its vocabulary; "
                "prepare the data again"
            )
        super().__init__(store, FIELDS, to_examples, options)
        self._probability = options.mask_probability
        length, size = store.facts.input_shape[0], store.facts.num_classes
        self.transform = HideTokens(options.mask_probability, length, size)

    # Not a stored split, but one that hides what evaluation reads.
    def split(self, name: str) -> MaskedSplit:  # type: ignore[override]
        """Open one split, whose tokens are hidden when evaluation reads them."""
        return MaskedSplit(super().split(name), self.transform)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean over blocks of what ``example_losses`` gives; a differentiable scalar.

        FedScale's is the mean over the hidden tokens of all blocks of a batch, by which a block
        with more of them weighs more; here each block stands for itself, as example-level DP needs.
        ``outputs`` are logits of shape (n, L, V); ``targets`` int64 of shape (n, L): all tokens
        (training), or -100 where one was not hidden.
        """
        return self.example_losses(outputs, targets).mean()

    def example_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Loss of each block, shape (n,): that of its hidden tokens, by their number.

        Where the targets are all tokens, by the number that is expected: the ones that are not
        hidden have no loss, and which these are the targets do not say.
        """
        counted = (targets != NOT_COUNTED).sum(dim=1).clamp_min(1)
        expected = self._probability * (targets >= FIRST_WORD).sum(dim=1).clamp_min(1)
        told = (targets == NOT_COUNTED).any(dim=1)
        return token_losses(outputs, targets).sum(dim=1) / torch.where(told, counted, expected)


def build(options: Options) -> RedditAlbertTask:
    """Open a prepared store; refused as ``open_store`` says, or if the options do not fit it."""
    return RedditAlbertTask(open_store(options.data, TASK_NAME), options)
