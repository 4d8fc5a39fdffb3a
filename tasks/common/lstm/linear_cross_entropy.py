"""The cross-entropy of a linear layer's outputs, with passes of its own for many outputs on CPUs.

The layer's outputs, their softmax and the loss's gradient by them are one matrix each time, so it
is written once and then worked on in place. It lies with the examples as its fast axis.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from pfl_bench.types import KeepFactors

# Fewer rows or weights are no faster than by the library's functions.
FEWEST_ROWS, FEWEST_WEIGHTS = 16, 1 << 18
# Sums of exponentials between these are as exact as those of logits less their largest: the terms
# that float32 rounds to zero are below 1e-38, and there are fewer than 1e8 of them; and a gradient
# of 1e-8 divided by a sum is not rounded to zero either.
_SMALLEST_SUM, _LARGEST_SUM = 1e-20, 1e30
# The library leaves out rows of one target, by default of -100: here, of one that nobody has.
_NO_TARGET = torch.iinfo(torch.int64).min


def linear_cross_entropy(layer: nn.Linear, rows: Tensor, targets: Tensor) -> Tensor:
    """Sum over rows of the cross-entropy of ``layer(rows)``.

    Args:
        layer: With V outputs.
        rows: Shape (n, inputs).
        targets: Shape (n,), int64, in [0, V).

    Returns:
        A differentiable scalar, that of ``torch.nn.functional.cross_entropy`` to rounding. Its
        backward pass runs once.

    Raises:
        IndexError: A target is not an output's.
    """
    weight, bias = layer.weight, layer.bias
    if not _has_own_passes(layer, rows, targets):
        return functional.cross_entropy(
            layer(rows), targets, ignore_index=_NO_TARGET, reduction="sum"
        )
    keep: KeepFactors | None = getattr(layer, "keep_factors", None)
    return cast("Tensor", _LinearCrossEntropy.apply(rows, weight, bias, targets, keep))


def under_torch_func(tensors: Iterable[Tensor]) -> bool:
    """Whether one of the tensors, of any shapes, is inside a transform of ``torch.func``.

    Opacus takes gradients of single examples by ``vmap`` and ``grad``, which see through PyTorch's
    own operations but not through a ``torch.autograd.Function`` with passes written for one
    backward pass. PyTorch has no public question for it.
    """
    return any(map(torch._C._functorch.is_functorch_wrapped_tensor, tensors))


def _has_own_passes(layer: nn.Linear, rows: Tensor, targets: Tensor) -> bool:
    weight, bias = layer.weight, layer.bias
    tensors = (rows, weight, bias, targets)
    return (
        bias is not None
        and all(tensor.device.type == "cpu" for tensor in tensors)
        and all(tensor.dtype == torch.float32 for tensor in tensors[:3])
        and weight.numel() >= FEWEST_WEIGHTS
        and len(rows) >= FEWEST_ROWS
        and targets.dtype == torch.int64
        and targets.shape == rows.shape[:1]
        and torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and not under_torch_func(tensors)
        and _is_plain(layer)
    )


def _is_plain(layer: nn.Linear) -> bool:
    """Whether calling the layer does nothing but what its class does."""
    is_ours = "forward" not in vars(layer) or hasattr(layer, "keep_factors")
    hooks = (layer._forward_hooks, layer._forward_pre_hooks)
    return type(layer) is nn.Linear and is_ours and not any(hooks)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        weight: Tensor,
        bias: Tensor,
        targets: Tensor,
        keep: KeepFactors | None,
    ) -> Tensor:
        if bool((targets < 0).any()):
            raise IndexError("a target is negative: rows that do not count are to be left out")
        logits = _logits(rows, weight, bias)
        places = torch.arange(len(rows))
        of_targets = logits[targets, places]
        powers = logits.exp_()
        sums = powers.sum(0)
        shift: Tensor | None = None
        if not bool(((sums >= _SMALLEST_SUM) & (sums <= _LARGEST_SUM)).all()):
            logits = _logits(rows, weight, bias)
            shift = logits.amax(0)
            powers = logits.sub_(shift).exp_()
            sums = powers.sum(0)
        ctx.save_for_backward(rows, weight, targets, places, powers, sums)
        ctx.keep = keep
        losses = sums.log() - (of_targets if shift is None else of_targets - shift)
        return losses.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight, targets, places, powers, sums = ctx.saved_tensors
        slopes = powers.mul_(gradient / sums)
        slopes[targets, places] -= gradient
        to_rows = to_weight = to_bias = None
        if ctx.needs_input_grad[0]:
            to_rows = torch.mm(slopes.t(), weight)
        if ctx.needs_input_grad[1]:
            if ctx.keep is None:
                to_weight = torch.mm(slopes, rows)
            else:
                ctx.keep("weight", slopes.t(), rows)
        if ctx.needs_input_grad[2]:
            to_bias = slopes.sum(1)
        return to_rows, to_weight, to_bias, None, None


def _logits(rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Of each output a row: shape (V, n)."""
    return torch.mm(weight, rows.t()).add_(bias.unsqueeze(1))
