"""A layer of an LSTM for several clients at once, each with weights of its own.

As batched matrix products, written out over time: what does not depend on the step before is one
product a client for all steps.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tasks.common.lstm.recurrence import run_backward, run_forward


def lstm_slots(inputs: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias: Tensor) -> Tensor:
    """Run the layer of each client from zeros.

    Args:
        inputs: Shape (L * n, T, I): n sequences of the first client, n of the second and so on.
        weight_ih: Shape (L, 4 H, I): input, forget, cell and output gate.
        weight_hh: Shape (L, 4 H, H).
        bias: Shape (L, 4 H).

    Returns:
        Shape (L * n, T, H), with the steps as the slowest axis of memory.
    """
    kind = inputs.device.type
    if kind != "cpu" and torch.is_autocast_enabled(kind):
        outputs = _plain(inputs, weight_ih, weight_hh, bias)
    else:
        # On a CPU in float32 always: in bfloat16, written out over time, a layer takes four times
        # as long (77 ms against 22, and 8.8 against 2.1, for 80 and 10 steps of 256 units).
        with torch.autocast("cpu", enabled=False):
            inputs = inputs.to(bias.dtype)
            outputs = cast("Tensor", _Recurrence.apply(inputs, weight_ih, weight_hh, bias))
    return outputs.flatten(1, 2).transpose(0, 1)


def _by_slot(tensor: Tensor, slots: int) -> Tensor:
    """(L n, T, F) to (L, T n, F), contiguous."""
    count, steps, _ = tensor.shape
    parts = tensor.view(slots, count // slots, steps, -1).transpose(1, 2)
    return parts.reshape(slots, steps * (count // slots), -1)


def _plain(inputs: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias: Tensor) -> Tensor:
    slots, steps = len(weight_ih), inputs.shape[1]
    from_inputs = torch.bmm(_by_slot(inputs, slots), weight_ih.transpose(1, 2)) + bias.unsqueeze(1)
    recurrent = weight_hh.transpose(1, 2)
    hidden = cell = from_inputs.new_zeros(1)
    outputs = []
    for step, gates in enumerate(from_inputs.chunk(steps, dim=1)):
        if step:
            gates = gates + torch.bmm(hidden, recurrent)
        in_gate, forget, new, out = gates.chunk(4, dim=-1)
        cell = forget.sigmoid() * cell + in_gate.sigmoid() * new.tanh()
        hidden = out.sigmoid() * cell.tanh()
        outputs.append(hidden)
    return torch.stack(outputs)


class _Recurrence(torch.autograd.Function):
    """The layer's outputs, shape (T, L, n, H)."""

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias: Tensor
    ) -> Tensor:
        slots, _, size = weight_hh.shape
        steps = inputs.shape[1]
        rows = _by_slot(inputs, slots)
        flat = torch.baddbmm(bias.unsqueeze(1), rows, weight_ih.transpose(1, 2))
        gates = flat.view(slots, steps, -1, 4, size).transpose(0, 1)
        hidden, *cells = run_forward(gates, weight_hh.transpose(1, 2), torch.baddbmm)
        ctx.save_for_backward(rows, weight_ih, weight_hh, gates, hidden, *cells)
        return hidden[1:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight_ih, weight_hh, gates, hidden, *cells = ctx.saved_tensors
        steps, slots, count, _, size = gates.shape
        to_hidden = gradient.clone(memory_format=torch.contiguous_format)
        slopes = run_backward(to_hidden, gates, cells, weight_hh, torch.baddbmm)
        flat = slopes.transpose(0, 1).view(slots, steps * count, 4 * size)
        to_inputs = None
        if ctx.needs_input_grad[0]:
            to_inputs = torch.bmm(flat, weight_ih).view(slots, steps, count, -1)
            to_inputs = to_inputs.transpose(1, 2).flatten(0, 1)
        # The first step's hidden state is zero and adds nothing.
        before = hidden[1:-1].transpose(0, 1).reshape(slots, (steps - 1) * count, size)
        backward = flat.transpose(1, 2)
        return (
            to_inputs,
            torch.bmm(backward, rows),
            torch.bmm(backward[:, :, count:], before),
            flat.sum(1),
        )
