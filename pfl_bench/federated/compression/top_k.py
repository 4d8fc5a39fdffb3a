"""Top-k sparsification: a client sends the k elements of its update that are largest in magnitude.

The rest is left out: with P parameters what is lost has at most 1 - k / P of the squared norm. With
``error_feedback`` the client keeps it and adds it to its next update before that is compressed.

Bytes: k values of 32 bits, and their places: k numbers of ceil(log2 P) bits or a map of P bits,
whichever is shorter. Where that is not less than the update's 4 P bytes it is sent as it is. Of
elements that are equally large, those that come first are sent. An update that is not finite is
sent with its largest elements, which are not finite either; then no error is kept.

Error feedback costs a simulation 4 P bytes in memory (not the GPU's) and in each checkpoint for
every client that was ever drawn, and one process; what a client keeps no mechanism covers, so
private runs refuse it. Without it, the client clips what it sends: privacy is as without
compression.

Source: Aji and Heafield 2017 (sparsification); Stich et al. 2018, definition 2.1 (the bound) and
algorithm 1 (error feedback).
"""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from pfl_bench.config.training import Strict
from pfl_bench.federated.compression import Compression
from privacy.clipping import l2_norm

_VALUE_BITS = 32
# So that 0.07 of 100 elements are 7, although the product is a little more.
_ROUNDING = 1e-9


class Options(Strict):
    """Options of top-k sparsification; one of the first two is given.

    Attributes:
        fraction: Fraction of the elements that is sent, above 0, at most 1, rounded up.
        k: How many elements are sent; of a smaller model, all.
        error_feedback: Whether clients keep what was left out for their next update.
    """

    fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    k: Annotated[int, Field(ge=1)] | None = None
    error_feedback: bool = False

    @model_validator(mode="after")
    def _one_size(self) -> Options:
        if (self.fraction is None) == (self.k is None):
            raise ValueError("give either fraction, such as 0.01, or k, such as 1000")
        return self


def keep_largest(vector: Tensor, k: int, out: Tensor) -> None:
    """Copy the k >= 1 elements of largest magnitude to ``out``, and zeros in place of the others.

    Both are of shape (P,), float32, of memory apart; NaN counts as larger than all numbers.
    """
    # The bits of magnitudes are ordered as they are, NaN last; whole numbers are sorted faster.
    bits = vector.view(torch.int32) & 0x7FFF_FFFF
    if bits.device.type == "cpu":
        place = bits.numel() - k
        smallest = int(np.partition(bits.numpy(), place)[place])
    else:
        smallest = int(bits.topk(k).values[-1])
    larger = (bits > smallest).nonzero().squeeze(1)
    equal = (bits == smallest).nonzero().squeeze(1)[: k - larger.numel()]
    out.zero_()
    for places in (larger, equal):
        out[places] = vector[places]


class TopK(Compression):
    """See the module; ``k`` is from 1 to ``num_parameters``."""

    scratch = ("_sent",)

    def __init__(self, k: int, num_parameters: int, error_feedback: bool) -> None:
        places = min(k * math.ceil(math.log2(num_parameters)), num_parameters)
        super().__init__(num_parameters, math.ceil((k * _VALUE_BITS + places) / 8))
        self.keeps_state = error_feedback
        self._k = k
        self._sent: Tensor | None = None
        # On the CPU: of many clients, they are more than a GPU holds.
        self._errors: dict[int, Tensor] = {}

    def compress(self, update: Tensor, user: int, round_index: int) -> Tensor:
        """The largest elements of the update and of what was left out before, shape (P,)."""
        error = self._errors.get(user)
        if error is not None:
            update = update + error.to(update.device)
        if self._sent is None:
            self._sent = torch.empty_like(update)
        keep_largest(update, self._k, self._sent)
        if self.keeps_state and math.isfinite(l2_norm(self._sent)):
            self._errors[user] = (update - self._sent).cpu()
        return self._sent


def build(options: Options, num_parameters: int, seed: int) -> TopK:
    """Build the transform; nothing is drawn, so that the seed does not matter."""
    k = options.k
    if k is None:
        assert options.fraction is not None
        k = max(1, math.ceil(options.fraction * num_parameters - _ROUNDING))
    return TopK(min(k, num_parameters), num_parameters, options.error_feedback)
