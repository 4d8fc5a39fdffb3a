"""Stacked LSTMs of LEAF's sequence models, with passes of their own for short sequences on CPUs.

Against ``torch.nn.LSTM``, the maths is the same with one difference: a layer has one bias, as in
TensorFlow, where PyTorch has two whose gradients are equal, so that SGD moves their sum twice as
far.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Mapping
from math import sqrt
from typing import Any, Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from pfl_bench.types import KeepFactors
from tasks.common.lstm.linear_cross_entropy import under_torch_func
from tasks.common.lstm.recurrence import lstm_slots, run_backward, run_forward
from tasks.common.options import StrictOptions

# Where a layer's own passes are faster on one thread of a CPU than oneDNN's: with few steps, over
# which oneDNN's preparations are not spread, of many units, beside whose products Python's part is
# small. On more threads oneDNN, which shares out a whole layer, is faster everywhere.
FEW_STEPS, LARGE_HIDDEN_SIZE = 32, 200


class LstmOptions(StrictOptions):
    """Options of a network with a stacked LSTM.

    Attributes:
        name: "stacked_lstm".
        embedding_size: Features of a token or character.
        hidden_size: Units of each LSTM layer.
        num_layers: LSTM layers.
        dropout: Probability that an output of a layer is dropped in training.
    """

    name: Literal["stacked_lstm"]
    embedding_size: int = Field(default=8, ge=1)
    hidden_size: int = Field(default=256, ge=1)
    num_layers: int = Field(default=2, ge=1)
    dropout: float = Field(default=0.0, ge=0, lt=1)


class LstmLayer(nn.Module):
    """One layer of an LSTM that starts from zeros, over a batch of sequences of one length.

    Args:
        input_size: Features of a step, I.
        hidden_size: Units, H.
        forget_bias: Added to the forget gates: what their biases start from.
        init_scale: The weights start uniform in [-init_scale, init_scale]; None for
            sqrt(6 / (I + H + 4 H)), Glorot's bound for both matrices seen as one.

    Attributes:
        weight_ih: Shape (4 H, I): input, forget, cell and output gate, as in ``torch.nn.LSTM``.
        weight_hh: Shape (4 H, H).
        bias: Shape (4 H,).
        keep_factors: See ``pfl_bench.types.GivesFactoredGradients``; not used by the library's
        passes.

    Source: Hochreiter and Schmidhuber 1997, with forget gates (Gers et al. 2000).
    """

    keep_factors: KeepFactors | None = None

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        forget_bias: float = 1.0,
        init_scale: float | None = None,
    ) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        if init_scale is None:
            init_scale = sqrt(6 / (input_size + hidden_size + 4 * hidden_size))
        self.weight_ih = nn.Parameter(torch.empty(4 * hidden_size, input_size))
        self.weight_hh = nn.Parameter(torch.empty(4 * hidden_size, hidden_size))
        self.bias = nn.Parameter(torch.zeros(4 * hidden_size))
        nn.init.uniform_(self.weight_ih, -init_scale, init_scale)
        nn.init.uniform_(self.weight_hh, -init_scale, init_scale)
        with torch.no_grad():
            self.bias[hidden_size : 2 * hidden_size] = forget_bias

    def forward(self, inputs: Tensor) -> Tensor:
        """Run the layer over all steps: shape (n, T, I), float32, to shape (n, T, H).

        Fastest where the inputs are a transposed (T, n, I), as the outputs of a layer are.
        """
        weights = (self.weight_ih, self.weight_hh, self.bias)
        if under_torch_func((inputs, *weights)):
            return _plain(inputs, *weights)
        if self._has_own_passes(inputs):
            # In float32 under autocast too, which casts the weights at each step: two layers of 256
            # units took 5.9 ms a step on 5 sequences of 10, and 9.1 in bfloat16.
            with torch.autocast("cpu", enabled=False):
                inputs = inputs.to(self.bias.dtype)
                return cast("Tensor", _Recurrence.apply(inputs, *weights, self.keep_factors))
        return _by_library(inputs, *weights)

    def forward_slots(self, inputs: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        """Run the layers of L clients, of weights with L as their first axis; see ``lstm_slots``.

        Shape (L * n, T, I) to shape (L * n, T, H).
        """
        return lstm_slots(inputs, weights["weight_ih"], weights["weight_hh"], weights["bias"])

    def _has_own_passes(self, inputs: Tensor) -> bool:
        return (
            inputs.device.type == "cpu"
            and inputs.shape[1] < FEW_STEPS
            and self.hidden_size >= LARGE_HIDDEN_SIZE
            and torch.get_num_threads() == 1
        )


class StackedLstm(nn.Module):
    """Layers of an LSTM, one on the outputs of the other.

    ``hidden_size``, H, is that of each layer. Each output of a layer (of the last, too, as in
    LEAF's cells; PyTorch leaves it out) is dropped in training with probability ``dropout``.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 2,
        dropout: float = 0.0,
        forget_bias: float = 1.0,
        init_scale: float | None = None,
    ) -> None:
        super().__init__()
        sizes = [input_size] + [hidden_size] * (num_layers - 1)
        self.layers = nn.ModuleList(
            LstmLayer(size, hidden_size, forget_bias, init_scale) for size in sizes
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, inputs: Tensor) -> Tensor:
        """Shape (n, T, input_size) to the highest layer's outputs, shape (n, T, H)."""
        for layer in self.layers:
            inputs = self.dropout(layer(inputs))
        return inputs


class EmbeddedLstm(nn.Module):
    """The layers of a network that scores each of ``num_tokens`` as the next one.

    ``lstm`` has further arguments of ``StackedLstm``.
    """

    def __init__(self, num_tokens: int, options: LstmOptions, **lstm: Any) -> None:
        super().__init__()
        width, hidden = options.embedding_size, options.hidden_size
        self.embedding = nn.Embedding(num_tokens, width)
        self.lstm = StackedLstm(width, hidden, options.num_layers, options.dropout, **lstm)
        self.output = nn.Linear(hidden, num_tokens)


class _Recurrence(torch.autograd.Function):
    """A layer on the CPU: what does not depend on the step before is one product for all steps.

    Forward, that is the inputs' part of the gates; backward, the gradients of the weights and the
    slopes of all gates.
    """

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight_ih: Tensor,
        weight_hh: Tensor,
        bias: Tensor,
        keep: KeepFactors | None,
    ) -> Tensor:
        count, steps, _ = inputs.shape
        size = weight_hh.shape[1]
        rows = inputs.transpose(0, 1).reshape(steps * count, -1)
        gates = torch.addmm(bias, rows, weight_ih.t()).view(steps, count, 4, size)
        hidden, *cells = run_forward(gates, weight_hh.t(), torch.addmm)
        ctx.save_for_backward(rows, weight_ih, weight_hh, gates, hidden, *cells)
        ctx.keep = keep
        return hidden[1:].transpose(0, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight_ih, weight_hh, gates, hidden, *cells = ctx.saved_tensors
        steps, count, _, size = gates.shape
        to_hidden = gradient.transpose(0, 1).clone(memory_format=torch.contiguous_format)
        slopes = run_backward(to_hidden, gates, cells, weight_hh, torch.addmm)
        flat = slopes.view(steps * count, 4 * size)
        to_inputs = None
        if ctx.needs_input_grad[0]:
            to_inputs = torch.mm(flat, weight_ih).view(steps, count, -1).transpose(0, 1)
        before = hidden[:-1].view(steps * count, size)
        to_ih = to_hh = None
        if ctx.keep is None:
            to_ih = torch.mm(flat.t(), rows)
            # The first step's hidden state is zero and adds nothing.
            to_hh = torch.mm(flat[count:].t(), before[count:])
        else:
            # With the zeros, so that both products have one left factor.
            factors = {"weight_ih": rows, "weight_hh": before}
            for (name, right), is_needed in zip(
                factors.items(), ctx.needs_input_grad[1:3], strict=True
            ):
                if is_needed:
                    ctx.keep(name, flat, right)
        return to_inputs, to_ih, to_hh, flat.sum(0), None


def _plain(inputs: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias: Tensor) -> Tensor:
    """The layer in PyTorch's own operations."""
    from_inputs = functional.linear(inputs, weight_ih, bias)
    hidden = cell = torch.zeros_like(from_inputs[:, 0, : weight_hh.shape[1]])
    outputs = []
    for step in from_inputs.unbind(1):
        in_gate, forget, new, out = (step + functional.linear(hidden, weight_hh)).chunk(4, dim=-1)
        cell = forget.sigmoid() * cell + in_gate.sigmoid() * new.tanh()
        hidden = out.sigmoid() * cell.tanh()
        outputs.append(hidden)
    return torch.stack(outputs, dim=1)


def _by_library(inputs: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias: Tensor) -> Tensor:
    """The layer by the device's library (oneDNN, cuDNN), whose second bias is kept at zero.

    On CUDA always in float32: for cuDNN autocast takes float16, whatever type it is set to, whose
    small gradients become zero without a scale of the loss.

    Source: ``_cudnn_rnn_cast_reflatten`` in PyTorch's aten/src/ATen/cudnn/AutocastRNN.cpp.
    """
    is_cuda = inputs.device.type == "cuda"
    inputs = inputs.to(bias.dtype) if is_cuda else inputs
    start = inputs.new_zeros(1, inputs.shape[0], weight_hh.shape[1])
    weights = [weight_ih, weight_hh, bias, torch.zeros_like(bias)]
    to_learn = torch.is_grad_enabled()
    with contextlib.ExitStack() as stack:
        if is_cuda:
            stack.enter_context(torch.autocast("cuda", enabled=False))
            # cuDNN copies the weights into a buffer of its own: it wants zeros behind the bias.
            stack.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", "RNN module weights are not part of single contig")
        outputs, _, _ = torch.lstm(
            inputs, (start, start), weights, True, 1, 0.0, to_learn, False, True
        )
    return outputs
