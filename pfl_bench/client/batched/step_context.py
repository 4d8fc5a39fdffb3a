"""Context that a step's layers share: slots, weights, and the gradients that layers left."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pfl_bench.client.batched.gradients import Dense, Gradients, Products, Rows
from pfl_bench.client.batched.slot_masks import SlotMasks
from pfl_bench.client.batched.slot_weights import SlotWeights


class StepContext:
    """One step of the first slots.

    Attributes:
        weights: Of all slots.
        count: Slots that take part, L.
        sizes: Real examples of each slot's batch; rows behind them are padding.
        masks: What each slot's dropout is drawn from; None for none.
    """

    def __init__(self, weights: SlotWeights) -> None:
        self.weights = weights
        self.count = 0
        self.sizes: Sequence[int] = ()
        self.masks: SlotMasks | None = None
        self._kept: list[tuple[int, Products | Rows]] = []

    def begin(self, sizes: Sequence[int], masks: SlotMasks | None) -> list[Tensor]:
        """Begin a step; gives the weights that gradients are wanted of, slots first."""
        self.count, self.sizes, self.masks = len(sizes), sizes, masks
        self._kept.clear()
        return self.weights.leaves(self.count)

    def of(self, parameter: Tensor) -> Tensor:
        """A parameter of each slot, shape (L, *its shape); the same for all if it is frozen."""
        place = self.weights.place(parameter)
        if place is None:
            return parameter.detach().expand(self.count, *parameter.shape)
        return self.weights.leaves(self.count)[place]

    def keep(self, parameter: Tensor, gradient: Products | Rows) -> None:
        """Keep a gradient that autograd does not see; of shape (L, *the parameter's shape)."""
        place = self.weights.place(parameter)
        if place is not None:
            self._kept.append((place, gradient))

    def take(self, found: Sequence[Tensor | None]) -> list[Gradients | None]:
        """Put what was kept beside what autograd found, of shape (L, *the parameter's shape)."""
        taken: list[Gradients | None] = [None if f is None else Dense(f) for f in found]
        for place, gradient in self._kept:
            before = taken[place]
            if before is None:
                taken[place] = gradient
            else:
                # Weights that are used twice.
                total = self._dense(place, before) + self._dense(place, gradient)
                taken[place] = Dense(total)
        self._kept.clear()
        return taken

    def _dense(self, place: int, gradient: Gradients) -> Tensor:
        if isinstance(gradient, Dense):
            return gradient.values
        zeros = torch.zeros_like(
            self.weights.active(self.count)[place], memory_format=torch.contiguous_format
        )
        gradient.add_to(zeros, 1.0)
        return zeros
