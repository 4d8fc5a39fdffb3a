"""Models of the Sent140 task: a bag of words with logistic regression, and LEAF's stacked LSTM."""

from torch import nn

from pfl_bench.types import DataFacts
from tasks.common.text.models import Options, build_model

__all__ = ["Options", "build"]


def build(options: Options, facts: DataFacts) -> nn.Module:
    """Build a model from numbered words to logits of shape (n, num_classes)."""
    return build_model(options, facts, "sent140")
