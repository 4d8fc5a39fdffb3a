"""Models of the Shakespeare task: LEAF's stacked LSTM for the next character."""

from __future__ import annotations

from math import sqrt

from torch import Tensor, nn

from pfl_bench.types import DataFacts
from tasks.common.lstm.stacked_lstm import EmbeddedLstm, LstmOptions
from tasks.common.options import check_inputs


class Options(LstmOptions):
    """Options of the Shakespeare models: those of all networks with a stacked LSTM."""


class NextCharacter(EmbeddedLstm):
    """Scores every character as the one after a window, from the LSTM's output at its last step.

    817,872 parameters with the options' defaults and 80 characters. All weights start from Glorot's
    uniform distribution, biases from zero, but those of the forget gates from 1.

    Source: Caldas et al. 2018, LEAF, appendix B and models/shakespeare/stacked_lstm.py, whose
        initial values are TensorFlow's defaults and which clips no gradient.
    """

    def __init__(self, num_characters: int, options: Options) -> None:
        super().__init__(num_characters, options)
        for weight in (self.embedding.weight, self.output.weight):
            bound = sqrt(6 / sum(weight.shape))
            nn.init.uniform_(weight, -bound, bound)
        nn.init.zeros_(self.output.bias)

    def forward(self, characters: Tensor) -> Tensor:
        """Shape (n, T), int64, to logits of shape (n, K)."""
        logits: Tensor = self.output(self.lstm(self.embedding(characters))[:, -1])
        return logits


def build(options: Options, facts: DataFacts) -> nn.Module:
    """Build a model from windows, shape (n, T), to logits of shape (n, num_classes)."""
    fits = len(facts.input_shape) == 1
    check_inputs(fits, "shakespeare", options.name, "windows of character numbers", facts)
    return NextCharacter(facts.num_classes, options)
