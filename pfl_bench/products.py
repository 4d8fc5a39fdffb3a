"""Gradients of large weight matrices as products that are not computed: for steps of SGD.

The gradient of a linear layer's weights is a product of two matrices with a row an input. A step
of SGD adds it to the weights, which a matrix product can do itself: the gradient is neither written
to memory nor read again, and its norm, for clipping, follows from the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from pfl_bench.precision import is_mixed, without_autocast

# Below so many weights a gradient stays in the cache, and there is little to gain.
SMALLEST = 1 << 18


def weights_come_first(rows: int, outputs: int) -> bool:
    """Whether a CPU multiplies large weights by the inputs faster than the inputs by the weights.

    So it was measured with MKL on one thread, although what is computed is then transposed: the one
    order takes as long for sixteen rows as for one, the other grows by steps of a few rows
    (``scripts/bench.py products``).

    Args:
        rows: Rows of inputs.
        outputs: Outputs of the layer.
    """
    return 7 <= rows <= (32 if outputs <= 256 else 16)


@dataclass(frozen=True, slots=True)
class Product:
    """The matrix ``left.T @ right``.

    Attributes:
        left: Shape (n, rows).
        right: Shape (n, columns).
    """

    left: Tensor
    right: Tensor

    def dense(self) -> Tensor:
        """The matrix itself, shape (rows, columns)."""
        return self.left.t() @ self.right

    def norm(self) -> Tensor:
        """L2 norm of the matrix's elements, a scalar tensor."""
        count, rows = self.left.shape
        columns = self.right.shape[1]
        if count * (rows + columns) <= rows * columns:
            # |L'R|^2 = trace(R'L L'R) = sum of (L L') * (R R'), elementwise
            terms = (self.left @ self.left.t()).mul_(self.right @ self.right.t())
            squared = terms.sum()
            # Where rows nearly cancel, or a square overflows, its digits are wrong.
            if squared > 1e-4 * terms.abs_().sum() and squared.isfinite():
                return squared.sqrt()
        norm: Tensor = torch.linalg.vector_norm(self.dense())
        return norm

    def scaled(self, factor: float | Tensor) -> Product:
        """``factor`` times the matrix; of the two, the smaller is copied."""
        if self.left.numel() < self.right.numel():
            return Product(self.left * factor, self.right)
        return Product(self.left, self.right * factor)

    def add_to(self, target: Tensor, alpha: float) -> None:
        """Add ``alpha`` times the matrix to ``target``, in place."""
        torch.addmm(target, self.left.t(), self.right, alpha=alpha, out=target)


class ProductGradients:
    """Keeps the gradients of a module's large linear layers as products, while it is entered.

    ``torch.autograd.grad`` with ``allow_unused=True`` then gives None for their weights, unless
    these are used outside the layer too. Layers on the CPU alone, of PyTorch's own class and under
    none of ``torch.func``'s transforms; all others are left as they are, and so is a product that
    ``torch.autocast`` had better cast (``precision.is_mixed``).

    Args:
        module: The model.
        parameters: Its trainable parameters.
        is_mixed: Whether the module runs under ``torch.autocast``. Then it is all linear layers,
            large or not: of few rows they are to be float32, as ``precision.is_mixed`` says.
    """

    def __init__(
        self, module: nn.Module, parameters: list[nn.Parameter], is_mixed: bool = False
    ) -> None:
        places = {id(parameter): place for place, parameter in enumerate(parameters)}
        self._layers: list[tuple[nn.Linear, int]] = [
            (layer, places[id(layer.weight)])
            for layer in module.modules()
            if type(layer) is nn.Linear
            and id(layer.weight) in places
            and (is_mixed or layer.weight.numel() >= SMALLEST)
            and layer.weight.device.type == "cpu"
            and "forward" not in vars(layer)
        ]
        self._kept: dict[int, list[Product]] = {}

    def __enter__(self) -> ProductGradients:
        """Put the layers' own forward passes aside."""
        for layer, place in self._layers:
            layer.forward = partial(self._forward, layer, place)  # type: ignore[method-assign]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Put the layers' own forward passes back."""
        for layer, _ in self._layers:
            del layer.forward
        self._kept.clear()

    def _forward(self, layer: nn.Linear, place: int, inputs: Tensor) -> Tensor:
        # A parameter as input would have moved before its product is added to the weights.
        storage = layer.weight.untyped_storage().data_ptr()
        is_parameter = inputs.untyped_storage().data_ptr() == storage
        # By rows: of inputs that are not contiguous, PyTorch adds the bias in a pass of its own.
        rows = inputs.reshape(-1, inputs.shape[-1])
        if is_parameter or is_mixed(rows, len(rows)) or not torch.is_grad_enabled():
            return functional.linear(inputs, layer.weight, layer.bias)
        kept = self._kept.setdefault(place, [])
        with without_autocast(rows):
            outputs = cast("Tensor", _Linear.apply(rows, layer.weight, layer.bias, kept))
        # The view is taken here, not inside, so that a ReLU may write to it in place.
        return outputs.view(*inputs.shape[:-1], layer.out_features)

    def take(self, gradients: tuple[Tensor | None, ...]) -> list[Tensor | Product | None]:
        """Put the products in their places.

        Args:
            gradients: What ``torch.autograd.grad`` gave for ``parameters``.

        Returns:
            A gradient a parameter; None where it took no part in the loss.
        """
        taken: list[Tensor | Product | None] = list(gradients)
        for place, products in self._kept.items():
            for product in products:
                before = taken[place]
                if before is None:
                    taken[place] = product
                elif isinstance(before, Product):
                    left = torch.cat([before.left, product.left])
                    taken[place] = Product(left, torch.cat([before.right, product.right]))
                else:
                    # In this order: what the weights are used for elsewhere may give it sparse.
                    taken[place] = product.dense() + before
        self._kept.clear()
        return taken


class _Linear(torch.autograd.Function):
    """A linear layer of rows; its backward pass keeps what makes up the gradient of its weights."""

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, kept: list[Product]
    ) -> Tensor:
        inputs = inputs.to(weight.dtype)
        ctx.save_for_backward(inputs, weight)
        ctx.kept = kept
        if not weights_come_first(len(inputs), len(weight)):
            return functional.linear(inputs, weight, bias)
        outputs = torch.mm(weight, inputs.t()).t().contiguous()
        return outputs if bias is None else outputs.add_(bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        ctx.kept.append(Product(gradient, inputs.detach()))
        to_inputs = to_bias = None
        if ctx.needs_input_grad[0]:
            to_inputs = torch.mm(gradient, weight)
        if ctx.needs_input_grad[2]:
            to_bias = gradient.sum(0)
        return to_inputs, None, to_bias, None
