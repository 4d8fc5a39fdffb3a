"""PyTorch's layers for several clients at once, each with weights of its own.

Slots are folded into the axis of examples: a tensor of shape (L * n, ...) has n examples of the
first slot, then n of the second. So all that treats examples one by one (activations, pooling,
reshaping, the code between layers) is left as it is; only layers with weights, and dropout, are
replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from pfl_bench.client.batched.convolution import convolve
from pfl_bench.client.batched.gradients import Products, Rows
from pfl_bench.client.batched.step_context import StepContext
from pfl_bench.client.precision import is_mixed, without_autocast
from pfl_bench.types import ComputesInSlots

LayerForward = Callable[[Tensor], Tensor]
Build = Callable[[Any, StepContext], LayerForward]


def find(layer: nn.Module) -> Build | None:
    """Replacement of a layer's forward pass; None if there is none for its type."""
    build = _BUILDERS.get(type(layer))
    if build is None and isinstance(layer, ComputesInSlots):
        return _own
    return build


def refusal(layer: nn.Module) -> str | None:
    """Reason why a layer of a known type cannot be replaced as it is set; None if it can."""
    if isinstance(layer, nn.Embedding) and (layer.max_norm or layer.scale_grad_by_freq):
        return "has max_norm or scale_grad_by_freq"
    if isinstance(layer, nn.Conv2d) and layer.padding_mode != "zeros":
        return f"pads by '{layer.padding_mode}'"
    return None


def pool_first(module: nn.Module) -> list[tuple[nn.Module, LayerForward]]:
    """Patches by which a ReLU follows the pooling behind it, where a maximum is a quarter as large.

    The maximum of ReLUs is the ReLU of the maximum, and so are the gradients: where they tie, below
    zero, there are none. It is done for a ReLU that stands before a max pooling in a
    ``torch.nn.Sequential``, and nowhere else.
    """
    places: dict[nn.Module, int] = {}
    for sequence in (m for m in module.modules() if isinstance(m, nn.Sequential)):
        for layer in sequence:
            places[layer] = places.get(layer, 0) + 1
    patches: list[tuple[nn.Module, LayerForward]] = []
    for sequence in (m for m in module.modules() if type(m) is nn.Sequential):
        children = list(sequence)
        for relu, pool in pairwise(children):
            if type(relu) is not nn.ReLU or type(pool) is not nn.MaxPool2d:
                continue
            if places[relu] == places[pool] == 1 and not pool.return_indices:
                patches += [(relu, _same), (pool, partial(_pool_and_rectify, pool))]
    return patches


def _same(inputs: Tensor) -> Tensor:
    return inputs


def _pool_and_rectify(pool: nn.MaxPool2d, inputs: Tensor) -> Tensor:
    pooled = functional.max_pool2d(
        inputs, pool.kernel_size, pool.stride, pool.padding, pool.dilation, pool.ceil_mode
    )
    return functional.relu(pooled)


class _Linear(torch.autograd.Function):
    """A linear layer of rows; the backward pass keeps what makes up its weights' gradients."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, keep: Any) -> Tensor:
        inputs = inputs.to(weight.dtype)
        ctx.save_for_backward(inputs, weight)
        ctx.keep = keep
        if bias is None:
            return torch.bmm(inputs, weight.transpose(1, 2))
        return torch.baddbmm(bias.unsqueeze(1), inputs, weight.transpose(1, 2))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        ctx.keep(Products(gradient, inputs.detach()))
        to_inputs = torch.bmm(gradient, weight) if ctx.needs_input_grad[0] else None
        to_bias = gradient.sum(1) if ctx.needs_input_grad[2] else None
        return to_inputs, None, to_bias, None


class _MixedLinear(torch.autograd.Function):
    """A linear layer of many rows in the type of autocast; gradients of weights are float32."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        dtype = torch.get_autocast_dtype(inputs.device.type)
        inputs, weight = inputs.to(dtype), weight.to(dtype)
        ctx.save_for_backward(inputs, weight)
        outputs = torch.bmm(inputs, weight.transpose(1, 2))
        return outputs if bias is None else outputs.add_(bias.unsqueeze(1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        gradient = gradient.to(weight.dtype)
        to_inputs = torch.bmm(gradient, weight) if ctx.needs_input_grad[0] else None
        # Rows of weights contiguous: as the gradient of a transposed matrix they would not be, and
        # adding such a one to the weights takes several times the product.
        to_weight = torch.bmm(gradient.transpose(1, 2), inputs).float()
        to_bias = gradient.sum(1) if ctx.needs_input_grad[2] else None
        return to_inputs, to_weight, to_bias


def _linear(layer: nn.Linear, context: StepContext) -> LayerForward:
    def forward(inputs: Tensor) -> Tensor:
        # Slots first, then all else but the features: rows.
        rows = inputs.reshape(context.count, -1, inputs.shape[-1])
        weight = context.of(layer.weight)
        bias = None if layer.bias is None else context.of(layer.bias)
        if is_mixed(rows, rows.shape[1]):
            outputs = cast("Tensor", _MixedLinear.apply(rows, weight, bias))
        else:
            keep = lambda gradient: context.keep(layer.weight, gradient)  # noqa: E731
            with without_autocast(rows):
                outputs = cast("Tensor", _Linear.apply(rows, weight, bias, keep))
        return outputs.view(*inputs.shape[:-1], layer.out_features)

    return forward


class _Embedding(torch.autograd.Function):
    """Rows of the slots' tables; the backward pass keeps the rows' gradients."""

    @staticmethod
    def forward(ctx: Any, places: Tensor, weight: Tensor, padding: Tensor | None, keep: Any) -> Any:
        ctx.save_for_backward(places, *([] if padding is None else [padding]))
        ctx.slots, ctx.table, ctx.keep = weight.shape[0], weight.shape[1], keep
        return functional.embedding(places, weight.flatten(0, 1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, ...]:
        places, *padding = ctx.saved_tensors
        values = gradient.reshape(-1, gradient.shape[-1])
        if padding:
            values = values.masked_fill(padding[0].reshape(-1, 1), 0.0)
        ctx.keep(Rows(places.reshape(-1), values, ctx.slots, ctx.table))
        return None, None, None, None


def _embedding(layer: nn.Embedding, context: StepContext) -> LayerForward:
    def forward(inputs: Tensor) -> Tensor:
        first = torch.arange(context.count, device=inputs.device) * layer.num_embeddings
        per_slot = inputs.shape[0] // context.count
        first = first.repeat_interleave(per_slot, output_size=inputs.shape[0])
        places = inputs + first.view(-1, *[1] * (inputs.ndim - 1))
        padding = None if layer.padding_idx is None else inputs == layer.padding_idx
        keep = lambda gradient: context.keep(layer.weight, gradient)  # noqa: E731
        return cast("Tensor", _Embedding.apply(places, context.of(layer.weight), padding, keep))

    return forward


def _conv2d(layer: nn.Conv2d, context: StepContext) -> LayerForward:
    def forward(inputs: Tensor) -> Tensor:
        bias = None if layer.bias is None else context.of(layer.bias)
        return convolve(layer, inputs, context.of(layer.weight), bias)

    return forward


class _Flatten(torch.autograd.Function):
    """Images with channels last to rows; their gradients have channels last, as pooling wants."""

    @staticmethod
    def forward(ctx: Any, images: Tensor) -> Tensor:
        ctx.shape = images.shape
        return images.flatten(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.view(ctx.shape).contiguous(memory_format=torch.channels_last)


def flatten(layer: nn.Flatten, inputs: Tensor) -> Tensor:
    """Flatten inputs of shape (L * n, ...) as the layer would."""
    is_image = inputs.ndim == 4 and inputs.is_contiguous(memory_format=torch.channels_last)
    if is_image and (layer.start_dim, layer.end_dim) == (1, -1) and inputs.requires_grad:
        return cast("Tensor", _Flatten.apply(inputs))
    return inputs.flatten(layer.start_dim, layer.end_dim)


def _scaled(outputs: Tensor, layer: Any, context: StepContext, shape: Sequence[int]) -> Tensor:
    """Scale and shift outputs by each slot's own weight and bias, of a shape that fits theirs."""
    per_slot = len(outputs) // context.count
    for operation, parameter in ((torch.mul, layer.weight), (torch.add, layer.bias)):
        if parameter is not None:
            values = context.of(parameter).repeat_interleave(per_slot, 0)
            outputs = operation(outputs, values.view(len(outputs), *shape))
    return outputs


def _group_norm(layer: nn.GroupNorm, context: StepContext) -> LayerForward:
    def forward(inputs: Tensor) -> Tensor:
        normal = functional.group_norm(inputs, layer.num_groups, None, None, layer.eps)
        return _scaled(normal, layer, context, (-1, *[1] * (inputs.ndim - 2)))

    return forward


def _layer_norm(layer: nn.LayerNorm, context: StepContext) -> LayerForward:
    def forward(inputs: Tensor) -> Tensor:
        normal = functional.layer_norm(inputs, layer.normalized_shape, None, None, layer.eps)
        between = inputs.ndim - 1 - len(layer.normalized_shape)
        return _scaled(normal, layer, context, (*[1] * between, *layer.normalized_shape))

    return forward


def _own(layer: Any, context: StepContext) -> LayerForward:
    names = [name for name, _ in layer.named_parameters(recurse=False)]

    def forward(inputs: Tensor) -> Tensor:
        weights = {name: context.of(getattr(layer, name)) for name in names}
        outputs: Tensor = layer.forward_slots(inputs, weights)
        return outputs

    return forward


_BUILDERS: dict[type[nn.Module], Build] = {
    nn.Linear: _linear,
    nn.Embedding: _embedding,
    nn.Conv2d: _conv2d,
    nn.GroupNorm: _group_norm,
    nn.LayerNorm: _layer_norm,
}
