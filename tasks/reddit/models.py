"""Models of the Reddit task: LEAF's stacked LSTM for the next token."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor, nn

from pfl_bench.types import DataFacts
from tasks.common.lstm.linear_cross_entropy import linear_cross_entropy
from tasks.common.lstm.stacked_lstm import EmbeddedLstm, LstmOptions
from tasks.common.options import check_inputs

# What LEAF's code draws the weights from, in both directions.
INIT_SCALE = 0.1


class Options(LstmOptions):
    """Options of the Reddit models, beside those of all networks with a stacked LSTM.

    Attributes:
        embedding_size: Features of a token; 200 in LEAF's paper, 256 in its code.
    """

    embedding_size: int = Field(default=200, ge=1)


class NextTokens(EmbeddedLstm):
    """Scores every token of the vocabulary as the next one, at each step of a sequence.

    5,563,280 parameters with the options' defaults and a vocabulary of 10,000. All start uniform in
    [-0.1, 0.1], but the biases of the LSTM from zero, those of the forget gates too.

    Source: Caldas et al. 2018, LEAF, appendix B and models/reddit/stacked_lstm.py. That code
    differs in three ways: its embedding has the size of the LSTM; a client's batches start from the
    state that the batch before ended in, here from zeros; and steps behind the end of a comment
    are skipped, which are not counted in the loss here either. It also clips the gradient's global
    norm at 5, which is a setting of the run: ``local_gradient_clip_global_norm``.

    Example-level DP has a gradient of each sequence in memory, 22 MB of floats with these sizes:
    ``central.physical_batch_size`` says of how many at once.
    """

    def __init__(self, vocabulary_size: int, options: Options) -> None:
        super().__init__(vocabulary_size, options, forget_bias=0.0, init_scale=INIT_SCALE)
        # Only the rows of a batch's tokens have a gradient. The output layer's rows all have one:
        # a softmax gives every token of the vocabulary some probability.
        self.embedding.sparse = True
        for parameter in (self.embedding.weight, self.output.weight, self.output.bias):
            nn.init.uniform_(parameter, -INIT_SCALE, INIT_SCALE)

    def forward(self, tokens: Tensor) -> Tensor:
        """Shape (n, T), int64, to logits of shape (n, T, V)."""
        logits: Tensor = self.output(self.lstm(self.embedding(tokens)))
        return logits

    def cross_entropy_where(self, tokens: Tensor, wanted: Tensor, targets: Tensor) -> Tensor:
        """Sum of the losses of the steps that are ``wanted``, without the logits of others.

        ``tokens`` has the shape (n, T), int64, ``wanted`` (n, T), bool, and ``targets`` (k,),
        int64: of the k steps that are wanted, sequence by sequence.
        """
        rows = self.lstm(self.embedding(tokens))[wanted]
        return linear_cross_entropy(self.output, rows, targets)


def build(options: Options, facts: DataFacts) -> nn.Module:
    """Build a model that gives logits of shape (n, T, num_classes) of sequences of shape (T,)."""
    fits = len(facts.input_shape) == 1
    check_inputs(fits, "reddit", options.name, "sequences of token numbers", facts)
    return NextTokens(facts.num_classes, options)
