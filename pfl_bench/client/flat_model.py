"""A model whose trainable parameters are views into one flat vector.

Resetting a client, taking its update and clipping are then one operation each, and the privacy
code sees nothing but flat vectors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from pfl_bench.client.factored_gradients import FactoredGradient
from pfl_bench.types import UserInputError

Gradient = TypeVar("Gradient", bound=Tensor | FactoredGradient)


class FlatModel:
    """Wraps a module; ``vector`` is its parameters.

    Args:
        module: The model; its trainable parameters must be float32. It is changed in place: its
            parameters become views into ``vector``.
        device: Where it lives.
        channels_last: Whether the kernels of convolutions lie in memory with their channels last,
            as gradients of images that do are; elements of a kernel then have another order in
            ``vector``.

    Attributes:
        vector: Shape (P,), float32: all trainable parameters, in the module's order.
        parameters: The module's trainable parameters (they require gradients).
        slices: The same memory as ``parameters``, without gradients, for in-place steps.
        initial_digest: Digest of all that the model began with, frozen parameters and buffers
            too, "sha256:<hex>".
    """

    def __init__(
        self, module: nn.Module, device: torch.device, channels_last: bool = False
    ) -> None:
        if not isinstance(module, nn.Module):
            raise UserInputError(f"the model is a {type(module).__name__}, but has to be a Module")
        lazy = [n for n, p in module.named_parameters() if is_lazy(p)]
        if lazy:
            raise UserInputError(f"the model has parameters without shape: {lazy}; give sizes")
        self.module = module.to(device)
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        odd = [n for n, p in module.named_parameters() if p.dtype != torch.float32]
        if odd or not self.parameters:
            what = f"parameters that are not float32: {odd}" if odd else "no trainable parameters"
            raise UserInputError(f"the model has {what}; training needs float32 parameters")
        if device.type != "cpu":
            for layer in module.modules():
                # The host waits to hear how many rows a sparse gradient has; zeros cost less.
                if isinstance(layer, nn.Embedding):
                    layer.sparse = False
        self.initial_digest = _digest(self.module)
        if channels_last:
            cast("Any", self.module).to(memory_format=torch.channels_last)
        # Axes of each parameter in the order of memory.
        axes = [_axes(p, channels_last) for p in self.parameters]
        pairs = list(zip(self.parameters, axes, strict=True))
        self.vector = torch.cat([p.detach().permute(order).reshape(-1) for p, order in pairs])
        start = 0
        for parameter, order in pairs:
            stop = start + parameter.numel()
            shape = [parameter.shape[axis] for axis in order]
            back = sorted(range(len(order)), key=order.__getitem__)
            parameter.data = self.vector[start:stop].view(shape).permute(back)
            start = stop
        self.slices = [p.detach() for p in self.parameters]

    @property
    def num_parameters(self) -> int:
        """P, the number of trainable parameters."""
        return self.vector.numel()

    def buffers(self) -> dict[str, Tensor]:
        """Copies of the module's buffers, such as running statistics, by name, in their shapes."""
        return {name: buffer.clone() for name, buffer in self.module.named_buffers()}

    def fixed(self) -> dict[str, Tensor]:
        """Copies of all that training has to leave as it is, in their shapes, by what it is.

        That is "buffer 'NAME'" or "frozen parameter 'NAME'".
        """
        return {name: value.clone() for name, value in self._fixed()}

    def moved(self, before: dict[str, Tensor]) -> str | None:
        """The first that differs from what ``fixed`` gave, in its shape; None for none."""
        return next(
            (name for name, value in self._fixed() if not is_same(value, before[name])), None
        )

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Put all weights and buffers back after the block."""
        vector, fixed = self.vector.clone(), self.fixed()
        try:
            yield
        finally:
            self.vector.copy_(vector)
            for name, value in self._fixed():
                value.copy_(fixed[name])

    def _fixed(self) -> Iterator[tuple[str, Tensor]]:
        for name, buffer in self.module.named_buffers():
            yield f"buffer '{name}'", buffer
        for name, parameter in self.module.named_parameters():
            if not parameter.requires_grad:
                yield f"frozen parameter '{name}'", parameter.detach()

    def load_buffers(self, buffers: dict[str, Tensor]) -> None:
        """Restore what ``buffers`` gave, in the same shapes; all of them must be there."""
        for name, buffer in self.module.named_buffers():
            buffer.copy_(buffers[name])

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return self.vector.device


def is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one shape have the same elements; a NaN is the same as a NaN."""
    if torch.equal(one, other):
        return True
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def view_like(parameter: Tensor, vector: Tensor) -> Tensor:
    """The part of a flat vector, of shape (P,), that lies as one of ``slices`` does in its own."""
    start = vector.storage_offset() + parameter.storage_offset()
    return vector.as_strided(parameter.shape, parameter.stride(), start)


def clip_each(gradients: Sequence[Gradient], bound: float) -> tuple[Gradient, ...]:
    """Scale each gradient, dense, sparse or a product, whose L2 norm exceeds a bound down to it.

    One whose norm is not finite becomes all NaN. What is given stays as it is.

    Source: Keras' optimizers have it as ``clipnorm``.
    """
    norms = _norms(gradients)
    return _scaled(gradients, clip_factors(norms, bound))


def clip_global(gradients: Sequence[Gradient], bound: float) -> tuple[Gradient, ...]:
    """Scale all gradients by one factor that brings the L2 norm of the whole down to a bound.

    They are dense, sparse or products, and become all NaN if that norm is not finite. What is given
    stays as it is.

    Source: Pascanu et al. 2013, algorithm 1; TensorFlow has it as ``clip_by_global_norm``.
    """
    return _scaled(gradients, global_clip_factor(gradients, bound).expand(len(gradients)))


def global_clip_factor(gradients: Sequence[Tensor | FactoredGradient], bound: float) -> Tensor:
    """Factor by which ``clip_global`` multiplies all gradients, a scalar."""
    return clip_factors(torch.linalg.vector_norm(_norms(gradients)), bound)


def clip_factors(norms: Tensor, bound: float) -> Tensor:
    """Factors, shaped as ``norms``, that bring gradients within a bound: 1 for those that are."""
    # NaN where a norm overflowed: 0 would leave the weights where they are, and say nothing of it.
    return torch.where(norms.isfinite(), bound / norms.clamp_min(bound), torch.nan)


def descend(
    weights: Sequence[Tensor],
    gradients: Sequence[Gradient],
    rate: float,
    factor: Tensor | None = None,
) -> None:
    """Take a step of SGD in place: of a sparse gradient, only the rows that it has are touched.

    Weights are of any shapes, without gradients; ``factor`` is a scalar that all gradients are
    multiplied with.
    """
    if factor is not None and factor.device.type == "cpu":
        rate *= float(factor)
    elif factor is not None:
        # Asking for its value would wait for the device.
        gradients = _scaled(gradients, factor.expand(len(gradients)))
    dense = [pair for pair in zip(weights, gradients, strict=True) if _is_dense(pair[1])]
    if dense:
        ours, theirs = zip(*dense, strict=True)
        torch._foreach_add_(ours, theirs, alpha=-rate)
    for weight, gradient in zip(weights, gradients, strict=True):
        if isinstance(gradient, FactoredGradient):
            gradient.add_to(weight, -rate)
        elif gradient.is_sparse:
            weight.add_(gradient.coalesce(), alpha=-rate)


def _is_dense(gradient: Tensor | FactoredGradient) -> bool:
    return isinstance(gradient, Tensor) and not gradient.is_sparse


def _norms(gradients: Sequence[Tensor | FactoredGradient]) -> Tensor:
    """L2 norm of each, shape (k,); of a sparse one, rows that occur twice count with their sum."""
    tensors = [
        gradient.coalesce().values() if gradient.is_sparse else gradient
        for gradient in gradients
        if isinstance(gradient, Tensor)
    ]
    of_tensors = iter(torch._foreach_norm(tensors) if tensors else ())
    squares: dict[int, Tensor] = {}
    return torch.stack(
        [
            g.norm(squares) if isinstance(g, FactoredGradient) else next(of_tensors)
            for g in gradients
        ]
    )


def _scaled(gradients: Sequence[Gradient], factors: Tensor) -> tuple[Gradient, ...]:
    # On a CPU, asking costs nothing and scaling by 1 does. (A NaN is not 1.)
    if factors.device.type == "cpu":
        by = factors.tolist()
        return tuple(
            gradient if factor == 1.0 else _times(gradient, factor)
            for gradient, factor in zip(gradients, by, strict=True)
        )
    if all(_is_dense(gradient) for gradient in gradients):
        dense = cast("Sequence[Tensor]", gradients)
        return cast(
            "tuple[Gradient, ...]", tuple(torch._foreach_mul(list(dense), factors.unbind()))
        )
    return tuple(_times(g, factor) for g, factor in zip(gradients, factors.unbind(), strict=True))


def _times(gradient: Gradient, factor: float | Tensor) -> Gradient:
    if isinstance(gradient, FactoredGradient):
        return cast("Gradient", gradient.scaled(factor))
    return cast("Gradient", gradient * factor)


def _axes(parameter: Tensor, channels_last: bool) -> tuple[int, ...]:
    return (0, 2, 3, 1) if channels_last and parameter.ndim == 4 else tuple(range(parameter.ndim))


def _digest(module: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, tensor in module.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return f"sha256:{digest.hexdigest()}"
