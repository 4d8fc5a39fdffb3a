"""The steps of an LSTM layer that starts from zeros, forward and backward, one after another.

What does not depend on the step before is left to the caller, as one product for all steps. Shapes
are those of one client, (T, n, ...), or of several at once, (T, L, n, ...).

As batched matrix products, written out over time: what does not depend on the step before is one
product a client for all steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# ``torch.addmm``, or ``torch.baddbmm`` for several clients: the sum of a tensor and a product.
AddProduct = Callable[..., Tensor]


def run_forward(
    gates: Tensor, recurrent: Tensor, add_product: AddProduct
) -> tuple[Tensor, Tensor, Tensor]:
    """Run the layer.

    Args:
        gates: Shape (T, ..., n, 4, H): what the inputs and the bias bring to the input, forget,
            cell and output gate; becomes the gates themselves, in place.
        recurrent: Shape (..., H, 4 H).
        add_product: See ``AddProduct``.

    Returns:
        Hidden states and cells, shape (T + 1, ..., n, H), the first of them zero; and tanh of the
        cells, of the same shape, whose last one is not set.
    """
    hidden = gates.new_empty(len(gates) + 1, *gates.shape[1:-2], gates.shape[-1])
    cell = torch.empty_like(hidden)
    cell_tanh = torch.empty_like(hidden)
    hidden[0].zero_()
    cell[0].zero_()
    in_forget = gates[..., :2, :].unbind()
    in_gate, forget, new, out = (part.unbind() for part in gates.unbind(-2))
    hidden_at, cell_at, tanh_at = hidden.unbind(), cell.unbind(), cell_tanh.unbind()
    for step, gate in enumerate(gates.flatten(-2).unbind()):
        if step:
            add_product(gate, hidden_at[step], recurrent, out=gate)
        in_forget[step].sigmoid_()
        new[step].tanh_()
        out[step].sigmoid_()
        torch.mul(forget[step], cell_at[step], out=cell_at[step + 1])
        cell_at[step + 1].addcmul_(in_gate[step], new[step])
        torch.tanh(cell_at[step + 1], out=tanh_at[step])
        torch.mul(out[step], tanh_at[step], out=hidden_at[step + 1])
    return hidden, cell, cell_tanh


def run_backward(
    to_hidden: Tensor,
    gates: Tensor,
    cells: Sequence[Tensor],
    weight_hh: Tensor,
    add_product: AddProduct,
) -> Tensor:
    """Gradients of what goes into the gates.

    Args:
        to_hidden: Shape (T, ..., n, H), gradients of the layer's outputs; changed in place.
        gates: As ``run_forward`` leaves them.
        cells: The cells and their tanh, as ``run_forward`` gives them.
        weight_hh: Shape (..., 4 H, H).
        add_product: See ``AddProduct``.

    Returns:
        Shape (T, ..., n, 4, H), in the layout of ``gates``.
    """
    slopes, to_cell = _slopes(gates, *(cell[:-1] for cell in cells))
    # Step by step, the slopes become the gradients of what goes into the gates.
    forget = gates[..., 1, :].unbind()
    of_cell, of_out = slopes[..., :3, :].unbind(), slopes[..., 3, :].unbind()
    flat_at, hidden_at, to_cell_at = (
        tensor.unbind() for tensor in (slopes.flatten(-2), to_hidden, to_cell)
    )
    carried = torch.zeros_like(hidden_at[0])
    carried_row = carried.unsqueeze(-2)
    for step in range(len(gates) - 1, -1, -1):
        if step < len(gates) - 1:
            add_product(hidden_at[step], flat_at[step + 1], weight_hh, out=hidden_at[step])
            carried.mul_(forget[step + 1])
        carried.addcmul_(hidden_at[step], to_cell_at[step])
        of_cell[step].mul_(carried_row)
        of_out[step].mul_(hidden_at[step])
    return slopes


def _slopes(gates: Tensor, cell: Tensor, tanh: Tensor) -> tuple[Tensor, Tensor]:
    """Factors of a step's gradients on their way into the gates and the cell.

    Args:
        gates: Shape (T, ..., n, 4, H).
        cell: Shape (T, ..., n, H): of the step before.
        tanh: Shape (T, ..., n, H): of the step's own cell.

    Returns:
        Shape (T, ..., n, 4, H): for the input, forget and cell gates the factor of the cell's
        gradient, for the output gate that of the hidden state's; and shape (T, ..., n, H), from
        the hidden state to the cell.
    """
    in_gate, forget, new, out = gates.unbind(-2)
    slopes = torch.empty_like(gates)
    of_in, of_forget, of_new, of_out = slopes.unbind(-2)
    # sigmoid' = s (1 - s) = s - s s, tanh' = 1 - t t
    torch.addcmul(in_gate, in_gate, in_gate, value=-1, out=of_in).mul_(new)
    torch.addcmul(forget, forget, forget, value=-1, out=of_forget).mul_(cell)
    in_new = in_gate * new
    torch.addcmul(in_gate, in_new, new, value=-1, out=of_new)
    torch.addcmul(out, out, out, value=-1, out=of_out).mul_(tanh)
    out_tanh = torch.mul(out, tanh, out=in_new)
    return slopes, torch.addcmul(out, out_tanh, tanh, value=-1)


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
