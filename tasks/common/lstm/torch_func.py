"""Tensors that ``torch.func`` works on, as Opacus has it do."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def under_torch_func(tensors: Iterable[Tensor]) -> bool:
    """Whether one of the tensors, of any shapes, is inside a transform of ``torch.func``.

    Opacus takes gradients of single examples by ``vmap`` and ``grad``, which see through PyTorch's
    own operations but not through a ``torch.autograd.Function`` with passes written for one
    backward pass. PyTorch has no public question for it.
    """
    return any(map(torch._C._functorch.is_functorch_wrapped_tensor, tensors))
