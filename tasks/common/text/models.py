"""Models of short texts: a bag of words with logistic regression, and LEAF's stacked LSTM."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from pfl_bench.types import DataFacts, Examples
from tasks.common.lstm.stacked_lstm import StackedLstm
from tasks.common.options import StrictOptions, check_inputs, refuse
from tasks.common.text.words import FIRST_WORD, PAD_ID, read_store_vectors

BAG, LSTM = "bag_log_reg", "stacked_lstm"


def padded_words(fields: Mapping[str, Any], width: int) -> Examples:
    """Pad the numbered words of n texts, the "tokens", or cut them, to one width, L.

    Inputs of shape (n, L) and targets of shape (n,), both int64.
    """
    inputs = np.full((len(fields["tokens"]), width), PAD_ID, dtype=np.int64)
    for row, words in zip(inputs, fields["tokens"], strict=True):
        row[: len(words)] = words[:width]
    return Examples(torch.from_numpy(inputs), torch.from_numpy(fields["targets"].astype(np.int64)))


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


class Options(StrictOptions):
    """Options of the models; of "bag_log_reg" only ``init``, of "stacked_lstm" the rest.

    Attributes:
        name: "bag_log_reg" or "stacked_lstm".
        init: Start of the logistic regression: "zeros", or "normal", LEAF's standard normal.
        embeddings: File of word vectors (GloVe's text form, or LEAF's embs.json) that the LSTM
            reads words by.
        train_embeddings: Whether the vectors of that file are trained too; else they are fixed.
        embedding_size: Width of vectors that are learned from a random start, instead of a file
            (LEAF's code does, with 100).
        hidden_size: Units of each LSTM layer.
        num_layers: LSTM layers.
        max_words: Words of a tweet that the LSTM reads; the first ones.
        read_out: What the classifier takes: the LSTM's output after the "last_word", or after the
            "last_position" as in LEAF's code, where all tweets but the longest end in padding.
    """

    name: Literal["bag_log_reg", "stacked_lstm"]
    init: Literal["zeros", "normal"] = "zeros"
    embeddings: str | None = None
    train_embeddings: bool = False
    embedding_size: int | None = Field(default=None, ge=1, le=4096)
    hidden_size: int = Field(default=100, ge=1, le=4096)
    num_layers: int = Field(default=2, ge=1, le=8)
    max_words: int = Field(default=25, ge=1, le=10_000)
    read_out: Literal["last_word", "last_position"] = "last_word"

    @model_validator(mode="after")
    def _of_this_model(self) -> Self:
        of_bag = {"init"}
        foreign = type(self).model_fields.keys() - {"name"} - of_bag if self.name == BAG else of_bag
        refuse(self.changed(*sorted(foreign)), f"no option of {self.name}; leave it out")
        if self.name == LSTM and (self.embeddings is None) == (self.embedding_size is None):
            raise ValueError(
                "stacked_lstm: say where word vectors come from: embeddings = FILE (GloVe's text "
                "form, such as glove.6B.300d.txt, or LEAF's embs.json), or embedding_size = 100 "
                "to learn them from a random start; one of the two"
            )
        if self.train_embeddings and self.embeddings is None:
            raise ValueError(
                "train_embeddings: is about the vectors of a file; those of embedding_size are "
                "trained anyway"
            )
        return self


class TweetLstm(nn.Module):
    """LEAF's network: word vectors, LSTM layers, a linear layer of 128, and one to the logits.

    The vectors have the shape (V, D); those of padding and of unknown words are zero where they
    come from a file.

    Source: Caldas et al. 2018, LEAF, models/sent140/stacked_lstm.py: no activation between the two
        linear layers.
    """

    def __init__(
        self, vectors: Tensor, train_vectors: bool, num_classes: int, options: Options
    ) -> None:
        super().__init__()
        self._max_words = options.max_words
        self._last_word = options.read_out == "last_word"
        self.embedding = nn.Embedding(vectors.shape[0], vectors.shape[1], _weight=vectors)
        self.embedding.weight.requires_grad_(train_vectors)
        self.lstm = StackedLstm(vectors.shape[1], options.hidden_size, options.num_layers)
        self.dense = nn.Linear(options.hidden_size, 128)
        self.logits = nn.Linear(128, num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits of shape (n, num_classes) of tweets of shape (n, L), int64."""
        inputs = inputs[:, : self._max_words]
        missing = self._max_words - inputs.shape[1]
        if not self._last_word and missing > 0:
            inputs = nn.functional.pad(inputs, (0, missing), value=PAD_ID)
        outputs: Tensor = self.lstm(self.embedding(inputs))
        if self._last_word:
            # A tweet without words is read out after its first padding.
            last = ((inputs != PAD_ID).sum(dim=1) - 1).clamp_min(0)
            read = outputs.gather(1, last.view(-1, 1, 1).expand(-1, 1, outputs.shape[2])).squeeze(1)
        else:
            read = outputs[:, -1]
        logits: Tensor = self.logits(self.dense(read))
        return logits


def build_model(options: Options, facts: DataFacts, task: str) -> nn.Module:
    """Build a model of a task from numbered words to logits of shape (n, num_classes).

    The facts name the store, and so the words of a file of vectors. Vectors that are fixed require
    no gradient.
    """
    fits = len(facts.input_shape) == 1 and "vocabulary" in facts.extra
    check_inputs(fits, task, options.name, "numbered words", facts)
    size = int(facts.extra["vocabulary"]["size"])
    if options.name == BAG:
        return BagOfWords(size - FIRST_WORD, facts.num_classes, options.init)
    if options.embeddings is not None:
        vectors = read_store_vectors(Path(options.embeddings), str(facts.extra["store"]), task)
        return TweetLstm(vectors, options.train_embeddings, facts.num_classes, options)
    assert options.embedding_size is not None
    start = torch.empty(size, options.embedding_size)
    return TweetLstm(nn.init.xavier_uniform_(start), True, facts.num_classes, options)
