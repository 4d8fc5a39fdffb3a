"""Streams of the slots' dropout masks: of each client its own, whoever trains beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

# Odd numbers of 64 bits, as int64, of Weyl sequences over masks and elements; and those of the
# finalizer of SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number
# generators"). Sums and products of int64 wrap around.
_MASK, _ELEMENT = -7046029254386353131, 1609587929392839161
_FIRST, _SECOND = -4658895280553007687, -7723592293110705685


class SlotMasks:
    """Streams of L slots: generators on a CPU, and keys on another device.

    Attributes:
        generators: Of each slot, on a CPU.
    """

    def __init__(self, slots: int, device: torch.device) -> None:
        self.generators: list[torch.Generator] = []
        self._keys = torch.zeros(slots, dtype=torch.int64, device=device)
        if device.type == "cpu":
            self.generators = [torch.Generator().manual_seed(0) for _ in range(slots)]

    def begin(self, slot: int, seed: int) -> None:
        """Begin a client's stream in a slot."""
        if self.generators:
            self.generators[slot].manual_seed(seed)
        else:
            self._keys[slot].fill_(seed)

    def move(self, source: int, target: int) -> None:
        """Move a stream to another slot, whose own has ended."""
        drawn = self.generators
        if drawn:
            drawn[source], drawn[target] = drawn[target], drawn[source]
        else:
            self._keys[target] = self._keys[source]

    def kept(self, count: int, shape: Sequence[int], probability: float) -> Tensor:
        """Next mask of the first slots, True where an element is kept; by keys alone.

        A hash of the client's key, which each mask moves on, decides on an element. It is the same
        on every device, and with any padding behind a slot's examples. Nothing is drawn from a
        generator, so that a step can be recorded.

        Args:
            count: Slots.
            shape: (count * n, ...): n examples of the first slot, then of the next.
            probability: Of dropping an element.
        """
        elements = torch.arange(math.prod(shape) // count, device=self._keys.device)
        keys = _finalized(self._keys[:count])
        self._keys += _MASK
        # 24 bits, as many as a float32 has.
        bits = _finalized(keys.unsqueeze(1) + elements * _ELEMENT) >> 40 & 0xFFFFFF
        return (bits < round((1.0 - probability) * (1 << 24))).view(tuple(shape))


def _finalized(bits: Tensor) -> Tensor:
    """Mix the 64 bits of each element; ``>>`` alone would repeat the sign."""
    bits = (bits ^ (bits >> 30 & 0x3FFFFFFFF)) * _FIRST
    bits = (bits ^ (bits >> 27 & 0x1FFFFFFFFF)) * _SECOND
    return bits ^ (bits >> 31 & 0x1FFFFFFFF)
