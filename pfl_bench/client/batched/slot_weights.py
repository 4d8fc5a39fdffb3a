"""The weights of all slots: a tensor a parameter, its first axis the slot."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pfl_bench.client.flat_model import FlatModel, view_like


class SlotWeights:
    """A copy of a model's trainable parameters for each of L slots, or of what has their shapes.

    The slots in use are the first ones: ``move`` fills a gap.
    """

    def __init__(self, model: FlatModel, slots: int) -> None:
        self.slots = slots
        self._index = {id(parameter): at for at, parameter in enumerate(model.parameters)}
        self._slices = model.slices
        self._storage = [_storage(parameter, slots) for parameter in model.slices]
        self._leaves: dict[int, list[Tensor]] = {}

    def place(self, parameter: Tensor) -> int | None:
        """Place of a trainable parameter among all; None for one that is not trained."""
        return self._index.get(id(parameter))

    def active(self, count: int) -> list[Tensor]:
        """Weights of the first slots, of each parameter (count, *its shape), no gradients."""
        return [storage[:count] for storage in self._storage]

    def leaves(self, count: int) -> list[Tensor]:
        """The same memory as ``active``, of the same shapes, requiring gradients."""
        if count not in self._leaves:
            self._leaves[count] = [w.detach().requires_grad_() for w in self.active(count)]
        return self._leaves[count]

    def views(self, vector: Tensor) -> list[Tensor]:
        """The parameters in a flat vector, of shape (P,) and contiguous, as its views."""
        return [view_like(parameter, vector) for parameter in self._slices]

    def load(self, slot: int, central: Sequence[Tensor]) -> None:
        """Reset a slot to central parameters, given as ``views``."""
        torch._foreach_copy_([storage[slot] for storage in self._storage], list(central))

    def clear(self, slot: int) -> None:
        """Reset a slot to zero."""
        torch._foreach_zero_([storage[slot] for storage in self._storage])

    def move(self, source: int, target: int) -> None:
        """Copy a slot's weights to another slot."""
        for storage in self._storage:
            storage[target].copy_(storage[source])

    def update(self, slot: int, central: Sequence[Tensor], out: Sequence[Tensor]) -> None:
        """Write a slot's local minus central parameters to ``out``; both as ``views``."""
        for storage, start, update in zip(self._storage, central, out, strict=True):
            torch.sub(storage[slot], start, out=update)


def _storage(parameter: Tensor, slots: int) -> Tensor:
    """Memory of a parameter's slots; kernels of images have their channels last."""
    if parameter.ndim != 4:
        return parameter.new_empty(slots, *parameter.shape)
    outputs, inputs, height, width = parameter.shape
    return parameter.new_empty(slots, outputs, height, width, inputs).permute(0, 1, 4, 2, 3)
