"""An LSTM in PyTorch's own layers, as the other sides train it.

A dense ``nn.Embedding``, ``nn.LSTM`` and ``nn.Linear`` from the same initial weights. Our layers
have one bias where ``nn.LSTM`` has two, so the second stays at zero there: all sides compute the
same thing, and are compared.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tasks.common.lstm.stacked_lstm import StackedLstm


class PlainLstm(nn.Module):
    """The model in PyTorch's own layers.

    Args:
        ours: Gives the sizes and the weights.
        last_step: Whether to score the last step alone.
    """

    def __init__(self, ours: nn.Module, last_step: bool) -> None:
        super().__init__()
        embedding, stack, output = ours.embedding, ours.lstm, ours.output
        assert isinstance(embedding, nn.Embedding)
        assert isinstance(stack, StackedLstm)
        assert isinstance(output, nn.Linear)
        self.embedding = nn.Embedding(embedding.num_embeddings, embedding.embedding_dim)
        layers = list(stack.layers)
        size = output.in_features
        self.lstm = nn.LSTM(embedding.embedding_dim, size, len(layers), batch_first=True)
        self.output = nn.Linear(size, output.out_features)
        self._last_step = last_step
        with torch.no_grad():
            self.embedding.weight.copy_(embedding.weight)
            self.output.weight.copy_(output.weight)
            self.output.bias.copy_(output.bias)
            for place, layer in enumerate(layers):
                weights = {"weight_ih": layer.weight_ih, "weight_hh": layer.weight_hh}
                for name, value in {**weights, "bias_ih": layer.bias}.items():
                    getattr(self.lstm, f"{name}_l{place}").copy_(value)
                second = getattr(self.lstm, f"bias_hh_l{place}")
                second.zero_().requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits of each step, or of the last."""
        outputs, _ = self.lstm(self.embedding(inputs))
        logits: Tensor = self.output(outputs[:, -1] if self._last_step else outputs)
        return logits
