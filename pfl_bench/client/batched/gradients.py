"""Gradients of several clients at once, and their steps of SGD.

Three forms, each of which a step adds to the weights without making it another: dense, a product
of two matrices (of a linear layer; see ``pfl_bench.client.factored_gradients``), and rows (of an
embedding).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pfl_bench.client.flat_model import clip_factors
from pfl_bench.client.step_terms import add_to_momentum_, apply_proximal_and_decay_
from pfl_bench.types import LocalTraining


@dataclass(slots=True)
class Dense:
    """A gradient a slot, of shape (L, ...), times factors of shape (L,) unless they are None."""

    values: Tensor
    factors: Tensor | None = None

    def squared_norms(self) -> Tensor:
        """Sum of squares of each slot's elements, shape (L,), not yet multiplied."""
        norms: Tensor = torch.linalg.vector_norm(self.values, dim=self._axes())
        return norms.square()

    def scale(self, factors: Tensor) -> None:
        """Multiply each slot's gradient by its factor; ``factors`` has shape (L,)."""
        self.factors = factors

    def add_to(self, weights: Tensor, alpha: float) -> None:
        """Add ``alpha`` times the gradients to ``weights``, shape (L, ...), in place."""
        if self.factors is None:
            weights.add_(self.values, alpha=alpha)
        else:
            factors = self.factors.view(-1, *[1] * (self.values.ndim - 1))
            weights.addcmul_(self.values, factors, value=alpha)

    def _axes(self) -> tuple[int, ...]:
        return tuple(range(1, self.values.ndim))


@dataclass(slots=True)
class Products:
    """The matrix ``left.T @ right`` of each slot.

    Attributes:
        left: Shape (L, n, rows).
        right: Shape (L, n, columns).
    """

    left: Tensor
    right: Tensor

    def squared_norms(self) -> Tensor:
        """Sum of squares of each slot's elements, shape (L,)."""
        _, count, rows = self.left.shape
        columns = self.right.shape[2]
        # Whether the sum can be trusted is asked below: an accelerator would have to be waited for.
        if self.left.device.type == "cpu" and count * (rows + columns) <= rows * columns:
            # |L'R|^2 = trace(R'L L'R) = sum of (L L') * (R R'), elementwise
            terms = torch.bmm(self.left, self.left.transpose(1, 2))
            terms *= torch.bmm(self.right, self.right.transpose(1, 2))
            squared = terms.sum((1, 2))
            # Where rows nearly cancel, or a square overflows, its digits are wrong.
            exact = (squared > 1e-4 * terms.abs_().sum((1, 2))) & squared.isfinite()
            if exact.all():
                return squared
        return torch.bmm(self.left.transpose(1, 2), self.right).square_().sum((1, 2))

    def scale(self, factors: Tensor) -> None:
        """Multiply each slot's gradient by its factor; ``factors`` has shape (L,)."""
        if self.left.numel() < self.right.numel():
            self.left = self.left * factors.view(-1, 1, 1)
        else:
            self.right = self.right * factors.view(-1, 1, 1)

    def add_to(self, weights: Tensor, alpha: float) -> None:
        """Add ``alpha`` times the gradients to ``weights``, (L, rows, columns), in place."""
        torch.baddbmm(weights, self.left.transpose(1, 2), self.right, alpha=alpha, out=weights)


@dataclass(slots=True)
class Rows:
    """Rows of each slot's table; one that occurs twice counts with the sum.

    Attributes:
        places: Shape (n,), int64: slot * rows of a table + row.
        values: Shape (n, columns).
        slots: L.
        table: Rows of a table.
    """

    places: Tensor
    values: Tensor
    slots: int
    table: int

    def squared_norms(self) -> Tensor:
        """Sum of squares of each slot's elements, shape (L,)."""
        # Numbers of the distinct places. ``torch.unique`` would tell the host how many they are.
        places, order = self.places.sort()
        is_new = torch.cat([torch.zeros_like(places[:1]), (places[1:] != places[:-1]).long()])
        where = torch.empty_like(order).scatter_(0, order, is_new.cumsum(0))
        squares = torch.zeros_like(self.values).index_add_(0, where, self.values).square().sum(1)
        # Of numbers that are not taken, all squares are 0.
        slot = torch.zeros_like(where).scatter_(0, where, self._slot())
        return squares.new_zeros(self.slots).index_add_(0, slot, squares)

    def scale(self, factors: Tensor) -> None:
        """Multiply each slot's gradient by its factor; ``factors`` has shape (L,)."""
        self.values = self.values * factors[self._slot()].unsqueeze(1)

    def add_to(self, weights: Tensor, alpha: float) -> None:
        """Add ``alpha`` times the gradients to ``weights``, (L, table, columns), in place."""
        weights.flatten(0, 1).index_add_(0, self.places, self.values, alpha=alpha)

    def _slot(self) -> Tensor:
        """The slot of each place, shape (n,)."""
        return torch.div(self.places, self.table, rounding_mode="floor")


Gradients = Dense | Products | Rows


def descend(
    weights: Sequence[Tensor],
    gradients: Sequence[Gradients | None],
    central: Sequence[Tensor],
    local: LocalTraining,
    rate: float,
    velocity: Sequence[Tensor] | None = None,
) -> None:
    """Take each slot's local step in place; its order is that of ``LocalTraining``.

    Args:
        weights: Of each parameter, shape (L, *its shape), without gradients.
        gradients: Of each parameter; None where it took no part in the loss.
        central: Of each parameter, its shape: what the proximal term draws to.
        local: Clipping, proximal weight, weight decay and momentum.
        rate: Of the round.
        velocity: What momentum keeps of each parameter, the shapes of ``weights``, moved in place;
            None without momentum.
    """
    found = [gradient for gradient in gradients if gradient is not None]
    if local.gradient_clip_norm is not None:
        for gradient in found:
            _scale(gradient, clip_factors(_norms([gradient]), local.gradient_clip_norm))
    elif local.gradient_clip_global_norm is not None:
        factors = clip_factors(_norms(found), local.gradient_clip_global_norm)
        for gradient in found:
            _scale(gradient, factors)
    for place, (weight, start, step) in enumerate(zip(weights, central, gradients, strict=True)):
        if velocity is None:
            apply_proximal_and_decay_(weight, start, local, rate)
            if step is not None:
                step.add_to(weight, -rate)
            continue
        moving = velocity[place].mul_(local.momentum)
        add_to_momentum_(moving, weight, start, local)
        if step is not None:
            step.add_to(moving, 1.0)
        weight.add_(moving, alpha=-rate)


def _norms(gradients: Sequence[Gradients]) -> Tensor:
    """L2 norm of all together in each slot, shape (L,)."""
    return torch.stack([gradient.squared_norms() for gradient in gradients]).sum(0).sqrt()


def _scale(gradient: Gradients, factors: Tensor) -> None:
    # On a CPU, asking costs nothing and scaling by 1 does. (A NaN is not 1.)
    if factors.device.type != "cpu" or not bool((factors == 1).all()):
        gradient.scale(factors)
