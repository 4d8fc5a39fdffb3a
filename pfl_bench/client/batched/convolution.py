"""Convolutions of several clients' images, each client with kernels of its own.

On a CPU slot by slot, with channels last in memory: oneDNN's kernels are near the processor's limit
there, and neither a grouped convolution nor unfolded patches with batched products are faster.
Elsewhere as one grouped convolution.

In mixed precision the slots' own pass casts as ``torch.autocast`` does: images, kernels and slopes
to bfloat16, the kernels' gradients back to float32; its outputs stay bfloat16 for what follows.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional


def convolve(layer: nn.Conv2d, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Convolve each slot's images with its kernels, strided, padded and grouped as the layer is.

    Args:
        layer: Not its own weights.
        inputs: Shape (L * n, C, height, width).
        weight: Shape (L, outputs, C / groups, k, k), channels last in memory.
        bias: Shape (L, outputs), or None.

    Returns:
        Shape (L * n, outputs, height', width').
    """
    slots, channels = weight.shape[:2]
    if inputs.device.type == "cpu" and not isinstance(layer.padding, str):
        dtype = inputs.dtype
        if torch.is_autocast_enabled("cpu"):
            dtype = torch.get_autocast_dtype("cpu")
        outputs = cast("Tensor", _Convolution.apply(inputs, weight, bias, layer, dtype))
        return outputs.view_as(outputs)  # made here, so that a ReLU may write to it in place
    # (L n, C, ...) -> (n, L C, ...): a group, or more of them, a slot
    images = inputs.reshape(slots, -1, *inputs.shape[1:]).transpose(0, 1).flatten(1, 2)
    grouped = functional.conv2d(
        images,
        weight.flatten(0, 1),
        None if bias is None else bias.flatten(),
        layer.stride,
        layer.padding,
        layer.dilation,
        slots * layer.groups,
    )
    outputs = grouped.reshape(-1, slots, channels, *grouped.shape[2:])
    return outputs.transpose(0, 1).flatten(0, 1)


class _Convolution(torch.autograd.Function):
    """The convolution of each slot by the library."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        layer: nn.Conv2d,
        dtype: torch.dtype,
    ) -> Tensor:
        inputs = inputs.to(dtype).contiguous(memory_format=torch.channels_last)
        weight = weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
        ctx.save_for_backward(inputs, weight)
        ctx.settings = layer.stride, layer.padding, layer.dilation
        ctx.groups = layer.groups
        slots = len(weight)
        return _joined(
            [
                functional.conv2d(
                    images,
                    weight[slot],
                    None if bias is None else bias[slot],
                    layer.stride,
                    cast("tuple[int, ...]", layer.padding),
                    layer.dilation,
                    layer.groups,
                )
                for slot, images in enumerate(inputs.chunk(slots))
            ]
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        slots, channels = weight.shape[:2]
        gradient = gradient.to(weight.dtype).contiguous(memory_format=torch.channels_last)
        to_weight = torch.empty_like(weight, dtype=torch.float32)
        to_inputs = []
        parts = zip(gradient.chunk(slots), inputs.chunk(slots), weight.unbind(), strict=True)
        for slot, (slopes, images, kernels) in enumerate(parts):
            # Without the bias, whose gradient is a plain sum: with it the library is slower.
            of_images, of_kernels, _ = torch.ops.aten.convolution_backward(
                slopes,
                images,
                kernels,
                None,
                *ctx.settings,
                False,
                (0, 0),
                ctx.groups,
                (ctx.needs_input_grad[0], True, False),
            )
            to_weight[slot].copy_(of_kernels)
            to_inputs.append(of_images)
        to_bias = None
        if ctx.needs_input_grad[2]:
            to_bias = gradient.permute(0, 2, 3, 1).reshape(slots, -1, channels).sum(1)
        first = _joined(to_inputs) if ctx.needs_input_grad[0] else None
        return first, to_weight, to_bias, None, None


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
