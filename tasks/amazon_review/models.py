"""Models of the Amazon Review task: logistic regression, on word vectors or on a bag of words."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import model_validator
from torch import Tensor, nn

from pfl_bench.types import DataFacts
from tasks.common.options import StrictOptions, check_inputs
from tasks.common.text.models import BagOfWords
from tasks.common.text.words import SPECIAL, read_store_vectors

BAG, VECTORS = "bag_log_reg", "vector_log_reg"


class Options(StrictOptions):
    """Options of the Amazon Review models.

    Attributes:
        name: "vector_log_reg", FedScale's, or "bag_log_reg".
        embeddings: File of word vectors (GloVe's text form, or LEAF's embs.json), which
            "vector_log_reg" needs; they are not trained.
    """

    name: Literal["vector_log_reg", "bag_log_reg"]
    embeddings: str | None = None

    @model_validator(mode="after")
    def _embeddings_fit(self) -> Self:
        if (self.name == VECTORS) != (self.embeddings is not None):
            raise ValueError(
                "vector_log_reg needs embeddings = FILE (GloVe's text form, such as "
                "glove.6B.300d.txt), and bag_log_reg takes none"
            )
        return self


class SummedVectors(nn.Module):
    """Softmax regression on the sum of a review's word vectors, scaled to length 1.

    The vectors, of shape (V, D), stay as they are; they are zero for what does not count.

    Source: FedScale's core/utils/word2vec.py (``sent2vec``).
    """

    def __init__(self, vectors: Tensor, num_classes: int) -> None:
        super().__init__()
        self.vectors = nn.Embedding(vectors.shape[0], vectors.shape[1], _weight=vectors)
        self.vectors.weight.requires_grad_(False)
        self.logits = nn.Linear(vectors.shape[1], num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits of shape (n, num_classes) of reviews of shape (n, L), int64."""
        # A review without a known word stays at zero.
        features = nn.functional.normalize(self.vectors(inputs).sum(dim=1), dim=1)
        logits: Tensor = self.logits(features)
        return logits


def build(options: Options, facts: DataFacts) -> nn.Module:
    """Build a model from numbered words to logits of shape (n, num_classes).

    The facts name the store, and so the words. Word vectors require no gradient.
    """
    fits = len(facts.input_shape) == 1 and "vocabulary" in facts.extra
    check_inputs(fits, "amazon_review", options.name, "numbered words", facts)
    if options.embeddings is None:
        return BagOfWords(
            int(facts.extra["vocabulary"]["size"]) - len(SPECIAL), facts.num_classes, "zeros"
        )
    # As in FedScale, only words of letters alone count.
    vectors = read_store_vectors(
        Path(options.embeddings), str(facts.extra["store"]), "amazon_review", str.isalpha
    )
    return SummedVectors(vectors, facts.num_classes)
