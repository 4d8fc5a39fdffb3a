"""The terms of a local step that are no gradient of the loss: proximal term and weight decay.

Both engines take them from here, of one client's weights or of several clients' at once. The order
of a step is that of ``pfl_bench.types.LocalTraining``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pfl_bench.types import LocalTraining


def apply_proximal_and_decay_(
    weights: Tensor, central: Tensor, local: LocalTraining, rate: float
) -> None:
    """Take their part of a step without momentum, in place.

    The local weights are of shape (..., *that of ``central``), which the proximal term draws to.
    """
    to_central, to_zero = rate * local.proximal_weight, rate * local.weight_decay
    if to_zero:
        # Both of the weights as they are, not the second of moved ones; and added, because a factor
        # so close to 1 would be rounded by itself.
        weights.add_(weights, alpha=-(to_central + to_zero))
        if to_central:
            weights.add_(central, alpha=to_central)
    elif to_central:
        weights.lerp_(central.expand_as(weights), to_central)


def add_to_momentum_(
    velocity: Tensor,
    weights: Tensor,
    central: Tensor,
    local: LocalTraining,
    scratch: Tensor | None = None,
) -> None:
    """Add them to what momentum is made of, in place.

    ``velocity`` and ``weights`` are of shape (..., *that of ``central``), which the proximal term
    draws to. ``scratch``, as large, is overwritten; None to take memory anew.
    """
    if local.proximal_weight:
        away = torch.sub(weights, central, out=scratch)
        velocity.add_(away, alpha=local.proximal_weight)
    if local.weight_decay:
        velocity.add_(weights, alpha=local.weight_decay)
