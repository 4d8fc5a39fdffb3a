"""The small network ends in the maximum, by an operation whose gradient a GPU can repeat."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tasks.common.vision.normalization import GlobalMaxPool


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("ties", [False, True])
def test_its_maximum_and_gradient_are_those_of_adaptive_pooling_bit_for_bit(
    layout: torch.memory_format, ties: bool
) -> None:
    inputs = torch.randn(5, 8, 6, 7, generator=torch.Generator().manual_seed(1))
    inputs = (inputs.round().relu() if ties else inputs).contiguous(memory_format=layout)
    sent = torch.randn(5, 8, generator=torch.Generator().manual_seed(2))
    found = []
    for pool in (GlobalMaxPool(), nn.AdaptiveMaxPool2d(1)):
        leaf = inputs.clone().requires_grad_()
        outputs = pool(leaf).flatten(1)
        outputs.backward(sent)
        assert leaf.grad is not None
        found.append((outputs.detach(), leaf.grad.contiguous()))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
