"""Dropout of several clients at once, each from its own stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from pfl_bench.client.batched.step_context import StepContext


def drop(
    layer: nn.Dropout, context: StepContext, channels_last: bool
) -> Callable[[Tensor], Tensor]:
    """Give what replaces a dropout layer's forward pass: of inputs of shape (L * n, ...).

    On a CPU each slot's mask is what ``torch.nn.functional.dropout`` would draw for its real
    examples alone, from a generator with the client's seed. Where clients train one by one, a
    mask's elements are drawn in the order of memory, with images' channels last or not. Other
    devices have ``SlotMasks.kept``.
    """

    def forward(inputs: Tensor) -> Tensor:
        if not layer.training or layer.p == 0:
            return inputs
        if layer.p == 1:
            return inputs * 0.0
        if inputs.device.type != "cpu":
            assert context.masks is not None
            keep = context.masks.kept(context.count, inputs.shape, layer.p)
            return inputs * keep.to(inputs.dtype).div_(1.0 - layer.p)
        order = _order(inputs, channels_last)
        mask = _mask(inputs.permute(order).shape, order.index(0), layer.p, context)
        back = sorted(range(len(order)), key=order.__getitem__)
        mask = mask.permute(back)
        # In the inputs' layout: what follows would be slow on a mixture.
        scale = torch.empty_like(inputs).copy_(mask).div_(1.0 - layer.p)
        return inputs * scale

    return forward


def _order(inputs: Tensor, channels_last: bool) -> list[int]:
    """The axes in the order of memory where clients train one by one, slowest first."""
    if inputs.ndim == 4:
        return [0, 2, 3, 1] if channels_last else [0, 1, 2, 3]
    strides = inputs.stride()
    return sorted(range(inputs.ndim), key=lambda axis: -strides[axis])


def _mask(shape: Sequence[int], examples: int, probability: float, context: StepContext) -> Tensor:
    """Mask of all slots, True (or 1) where an element is kept; anything on padding.

    ``shape`` has the axes in the order in which they are drawn; ``examples`` is the axis of
    examples, ``probability`` that of dropping an element.
    """
    assert context.masks is not None
    per_slot = shape[examples] // context.count
    generators = context.masks.generators
    # The numbers that bernoulli_ draws and compares, in half of its time.
    is_padded = any(size < per_slot for size in context.sizes)
    drawn = (torch.zeros if is_padded else torch.empty)(shape, dtype=torch.float64)
    for slot, (size, generator) in enumerate(zip(context.sizes, generators, strict=False)):
        part = drawn.narrow(examples, slot * per_slot, size)
        if part.is_contiguous():
            part.uniform_(generator=generator)
        else:
            whole = torch.empty(part.shape, dtype=part.dtype)
            part.copy_(whole.uniform_(generator=generator))
    return drawn < 1.0 - probability
