"""Gradients of large weight matrices as products that are not computed: for steps of SGD.

The gradient of a linear layer's weights is a product of two matrices with a row an input. A step
of SGD adds it to the weights, which a matrix product can do itself: the gradient is neither written
to memory nor read again, and its norm, for clipping, follows from the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from pfl_bench.client.precision import is_mixed, without_autocast
from pfl_bench.types import GivesFactoredGradients, KeepFactors

# Below so many weights a gradient stays in the cache, and there is little to gain.
SMALLEST = 1 << 18


@dataclass(frozen=True, slots=True)
class FactoredGradient:
    """The matrix ``left.T @ right``, of shapes (n, rows) and (n, columns)."""

    left: Tensor
    right: Tensor

    def dense(self) -> Tensor:
        """The matrix itself, shape (rows, columns)."""
        return self.left.t() @ self.right

    def norm(self, squares: dict[int, Tensor] | None = None) -> Tensor:
        """L2 norm of the matrix's elements, a scalar tensor.

        ``squares`` are the products of rows of left factors by their ``id``; those that are missing
        are put in. They are of products that are alive together, so that those of one left factor
        share it.
        """
        count, rows = self.left.shape
        columns = self.right.shape[1]
        if count * (rows + columns) <= rows * columns:
            # |L'R|^2 = trace(R'L L'R) = sum of (L L') * (R R'), elementwise
            squares = {} if squares is None else squares
            if id(self.left) not in squares:
                squares[id(self.left)] = self.left @ self.left.t()
            terms = (self.right @ self.right.t()).mul_(squares[id(self.left)])
            squared = terms.sum()
            # Where rows nearly cancel, or a square overflows, its digits are wrong.
            if squared > 1e-4 * terms.abs_().sum() and squared.isfinite():
                return squared.sqrt()
        norm: Tensor = torch.linalg.vector_norm(self.dense())
        return norm

    def scaled(self, factor: float | Tensor) -> FactoredGradient:
        """``factor``, a number or scalar tensor, times the matrix; copies the smaller factor."""
        if self.left.numel() < self.right.numel():
            return FactoredGradient(self.left * factor, self.right)
        return FactoredGradient(self.left, self.right * factor)

    def add_to(self, target: Tensor, alpha: float) -> None:
        """Add ``alpha`` times the matrix to ``target``, in place."""
        torch.addmm(target, self.left.t(), self.right, alpha=alpha, out=target)


class FactoredGradients:
    """Keeps the gradients of a module's large linear layers as products, while it is entered.

    ``torch.autograd.grad`` with ``allow_unused=True`` then gives None for their weights, unless
    these are used outside the layer too. Layers on the CPU alone, of PyTorch's own class and under
    none of ``torch.func``'s transforms, and layers that give products themselves
    (``types.GivesFactoredGradients``); all others are left as they are, and so is a product that
    ``torch.autocast`` had better cast (``precision.is_mixed``).

    A large linear layer has ``keep_factors`` meanwhile, for functions that compute it in a way of
    their own. Under ``torch.autocast`` (``is_mixed``) it is all linear layers, large or not: of few
    rows they are to be float32.
    """

    def __init__(
        self, module: nn.Module, parameters: list[nn.Parameter], is_mixed: bool = False
    ) -> None:
        self._parameters = parameters
        self._linear: list[tuple[nn.Linear, KeepFactors]] = []
        self._givers: list[tuple[GivesFactoredGradients, KeepFactors]] = []
        self._kept: dict[int, list[FactoredGradient]] = {}
        places = {id(parameter): place for place, parameter in enumerate(parameters)}
        for layer in module.modules():
            named = dict(layer.named_parameters(recurse=False))
            ours = {name: places[id(p)] for name, p in named.items() if id(p) in places}
            if not ours or any(p.device.type != "cpu" for p in named.values()):
                continue
            keep = partial(self._keep, ours)
            if type(layer) is nn.Linear:
                is_large = is_mixed or layer.weight.numel() >= SMALLEST
                if is_large and "weight" in ours and "forward" not in vars(layer):
                    self._linear.append((layer, keep))
            elif isinstance(layer, GivesFactoredGradients) and _size(named) >= SMALLEST:
                self._givers.append((layer, keep))

    def __enter__(self) -> FactoredGradients:
        """Put the linear layers' own forward passes aside, and ask all layers for products."""
        # A graph of before, differentiated since, has left products of weights that have moved.
        self._kept.clear()
        for layer, keep in self._linear:
            layer.forward = partial(_forward, layer, keep)  # type: ignore[method-assign]
        for asked, keep in (*self._linear, *self._givers):
            cast("GivesFactoredGradients", asked).keep_factors = keep
        return self

    def __exit__(self, *exception: object) -> None:
        """Put the layers' own forward passes back."""
        for layer, _ in self._linear:
            del layer.forward, layer.keep_factors
        for giver, _ in self._givers:
            giver.keep_factors = None
        self._kept.clear()

    def _keep(self, places: dict[str, int], name: str, left: Tensor, right: Tensor) -> None:
        place = places[name]
        right = right.detach()
        storage = self._parameters[place].untyped_storage().data_ptr()
        if right.untyped_storage().data_ptr() == storage:
            # A parameter as input would have moved before its product is added to the weights.
            right = right.clone()
        self._kept.setdefault(place, []).append(FactoredGradient(left, right))

    def take(self, gradients: tuple[Tensor | None, ...]) -> list[Tensor | FactoredGradient | None]:
        """Put the products beside what ``torch.autograd.grad`` gave for ``parameters``."""
        taken: list[Tensor | FactoredGradient | None] = list(gradients)
        for place, products in self._kept.items():
            for product in products:
                before = taken[place]
                if before is None:
                    taken[place] = product
                elif isinstance(before, FactoredGradient):
                    left = torch.cat([before.left, product.left])
                    taken[place] = FactoredGradient(left, torch.cat([before.right, product.right]))
                else:
                    # In this order: what the weights are used for elsewhere may give it sparse.
                    taken[place] = product.dense() + before
        self._kept.clear()
        # Once, as clipping and the step would do it each.
        return [g.coalesce() if isinstance(g, Tensor) and g.is_sparse else g for g in taken]


def _size(named: dict[str, nn.Parameter]) -> int:
    return sum(parameter.numel() for parameter in named.values())


def _forward(layer: nn.Linear, keep: KeepFactors, inputs: Tensor) -> Tensor:
    # By rows: of inputs that are not contiguous, PyTorch adds the bias in a pass of its own.
    rows = inputs.reshape(-1, inputs.shape[-1])
    if is_mixed(rows, len(rows)) or not torch.is_grad_enabled():
        return functional.linear(inputs, layer.weight, layer.bias)
    with without_autocast(rows):
        outputs = cast("Tensor", _Linear.apply(rows, layer.weight, layer.bias, keep))
    # The view is taken here, not inside, so that a ReLU may write to it in place.
    return outputs.view(*inputs.shape[:-1], layer.out_features)


class _Linear(torch.autograd.Function):
    """A linear layer of rows; its backward pass keeps what makes up the gradient of its weights."""

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, keep: KeepFactors
    ) -> Tensor:
        inputs = inputs.to(weight.dtype)
        ctx.save_for_backward(inputs, weight)
        ctx.keep = keep
        return functional.linear(inputs, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        ctx.keep("weight", gradient, inputs)
        to_inputs = to_bias = None
        if ctx.needs_input_grad[0]:
            to_inputs = torch.mm(gradient, weight)
        if ctx.needs_input_grad[2]:
            to_bias = gradient.sum(0)
        return to_inputs, None, to_bias, None
