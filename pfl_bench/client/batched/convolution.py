"""Convolutions of several clients' images, each client with kernels of its own.

On a CPU slot by slot, with channels last in memory: oneDNN's kernels are near the processor's limit
there, and neither a grouped convolution nor unfolded patches with batched products are faster.
On a GPU as one batched product of all slots' unfolded patches, where a slot's are too few to fill
the device, else slot by slot: cuDNN takes the groups of a grouped convolution one after another,
each with kernels that change the layout. A layer that has groups of its own is one grouped
convolution there.

In mixed precision the slots' own pass casts as ``torch.autocast`` does: images, kernels and slopes
to bfloat16, the kernels' gradients back to float32; its outputs stay bfloat16 for what follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

# Unfolded patches that are in memory at once, in a pass over the slots.
PATCH_BYTES = 1 << 28
# A slot's unfolded patches from which on it is convolved by itself: 16 images of ResNet-18's last
# blocks have less, of its first blocks more.
SLOT_ELEMENTS = 1 << 22


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
    way, device, dtype = _way(layer, inputs, len(weight)), inputs.device.type, inputs.dtype
    if way is not None:
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
        outputs = cast("Tensor", way.apply(inputs, weight, bias, layer, dtype))
        return outputs.view_as(outputs)  # made here, so that a ReLU may write to it in place
    return _grouped(layer, inputs, weight, bias)


def _grouped(layer: nn.Conv2d, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    slots, channels = weight.shape[:2]
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


def _way(
    layer: nn.Conv2d, inputs: Tensor, slots: int
) -> type[_Convolution] | type[_Unfolded] | None:
    """The way to convolve the slots; None for one grouped convolution."""
    if isinstance(layer.padding, str):
        return None
    if inputs.device.type == "cpu":
        return _Convolution
    if slots == 1 or layer.groups > 1:
        return None
    around = zip(inputs.shape[2:], _padding(layer), strict=True)
    sides = [side + 2 * added for side, added in around]
    height, width = _sides_of_outputs(layer, sides)
    elements = len(inputs) // slots * height * width * layer.weight[0].numel()
    return _Unfolded if elements < SLOT_ELEMENTS else _Convolution


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


class _Unfolded(torch.autograd.Function):
    """The convolution of each slot as a product of its images' patches and its kernels."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        layer: nn.Conv2d,
        dtype: torch.dtype,
    ) -> Tensor:
        slots, channels = weight.shape[:2]
        images = _padded(inputs.to(dtype), layer)
        kernels = _as_rows(weight.to(dtype))
        ctx.save_for_backward(images, kernels)
        ctx.layer = layer
        patches = _patches(images, layer)
        rows = patches.shape[:3].numel() // slots
        outputs = images.new_empty(slots, rows, channels)
        for part, of_part in _parts(patches, slots):
            own = _rows(patches[of_part], part.stop - part.start)
            torch.bmm(own, kernels[part].transpose(1, 2), out=outputs[part])
        if bias is not None:
            outputs += bias.to(dtype).unsqueeze(1)
        return outputs.view(*patches.shape[:3], channels).permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        images, kernels = ctx.saved_tensors
        layer: nn.Conv2d = ctx.layer
        slots, channels = kernels.shape[:2]
        patches = _patches(images, layer)
        slopes = gradient.to(images.dtype).permute(0, 2, 3, 1).reshape(slots, -1, channels)
        to_weight = torch.empty_like(kernels, dtype=torch.float32)
        for part, of_part in _parts(patches, slots):
            own = _rows(patches[of_part], part.stop - part.start)
            to_weight[part] = torch.bmm(slopes[part].transpose(1, 2), own)
        to_weight = to_weight.view(slots, channels, *patches.shape[3:]).permute(0, 1, 4, 2, 3)
        to_bias = slopes.sum(1) if ctx.needs_input_grad[2] else None
        if not ctx.needs_input_grad[0]:
            return None, to_weight, to_bias, None, None
        # Patches overlap: their slopes are added in float32, one place of the kernel after
        # another, of which none meets an element of an image twice.
        to_images = torch.zeros_like(images, dtype=torch.float32)
        into = _patches(to_images, layer)
        for part, of_part in _parts(patches, slots):
            target = into[of_part]
            of_patches = torch.bmm(slopes[part], kernels[part]).view(target.shape)
            for row, column in product(*map(range, layer.kernel_size)):
                target[:, :, :, row, column] += of_patches[:, :, :, row, column]
        above, left = _padding(layer)
        height, width = to_images.shape[1:3]
        inside = to_images[:, above : height - above, left : width - left]
        return inside.permute(0, 3, 1, 2), to_weight, to_bias, None, None


def _padding(layer: nn.Conv2d) -> tuple[int, int]:
    """Rows above and below, and columns beside; the layer names no padding."""
    return cast("tuple[int, int]", layer.padding)


def _padded(images: Tensor, layer: nn.Conv2d) -> Tensor:
    """Images with channels last and zeros around, shape (L * n, height, width, C)."""
    images, (above, left) = images.permute(0, 2, 3, 1), _padding(layer)
    if not above and not left:
        return images.contiguous()
    return functional.pad(images, (0, 0, left, left, above, above)).contiguous()


def _as_rows(weight: Tensor) -> Tensor:
    """Each slot's kernels as rows, shape (L, outputs, k * k * C): no copy of channels last."""
    return weight.permute(0, 1, 3, 4, 2).flatten(2)


def _patches(images: Tensor, layer: nn.Conv2d) -> Tensor:
    """Inputs of each output, as a view: shape (L * n, height', width', k, k, C)."""
    count, *sides, channels = images.shape
    steps = images.stride()
    return images.as_strided(
        (count, *_sides_of_outputs(layer, sides), *layer.kernel_size, channels),
        (
            steps[0],
            steps[1] * layer.stride[0],
            steps[2] * layer.stride[1],
            steps[1] * layer.dilation[0],
            steps[2] * layer.dilation[1],
            steps[3],
        ),
    )


def _sides_of_outputs(layer: nn.Conv2d, sides: Sequence[int]) -> list[int]:
    """Height and width of what comes of padded images."""
    parts = zip(sides, layer.kernel_size, layer.stride, layer.dilation, strict=True)
    return [(side - wide * (size - 1) - 1) // stride + 1 for side, size, stride, wide in parts]


def _parts(patches: Tensor, slots: int) -> Iterator[tuple[slice, slice]]:
    """Slots that are taken together, and their images."""
    per_slot = len(patches) // slots
    together = max(1, PATCH_BYTES // (patches[:per_slot].numel() * patches.itemsize))
    for first in range(0, slots, together):
        last = min(first + together, slots)
        yield slice(first, last), slice(first * per_slot, last * per_slot)


def _rows(patches: Tensor, slots: int) -> Tensor:
    """The patches of slots as rows, shape (slots, n, k * k * C)."""
    return patches.reshape(slots, -1, patches.shape[3:].numel())


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
