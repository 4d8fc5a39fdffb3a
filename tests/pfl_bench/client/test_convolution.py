"""The two ways in which slots' images are convolved: one slot after another, and unfolded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pfl_bench.client.batched import convolution

SLOTS, IMAGES = 3, 4
LAYERS: dict[str, dict[str, Any]] = {
    "plain": {"kernel_size": 3},
    "padded": {"kernel_size": 5, "padding": 2},
    "strided": {"kernel_size": 3, "stride": 2, "padding": 1, "bias": False},
    "dilated": {"kernel_size": (3, 2), "stride": (2, 1), "padding": (0, 1), "dilation": (2, 1)},
    "one by one": {"kernel_size": 1, "stride": 2},
}


def _passes(way: Any, layer: nn.Conv2d) -> list[Tensor]:
    """Outputs of a way, and its gradients: of images, kernels and, where it has one, the bias."""
    draw = torch.Generator().manual_seed(0)
    shape = layer.weight.shape
    memory = torch.randn(SLOTS, shape[0], *shape[2:], shape[1], generator=draw)
    given = [
        torch.randn(SLOTS * IMAGES, shape[1], 9, 11, generator=draw),
        memory.permute(0, 1, 4, 2, 3),  # channels last
    ]
    if layer.bias is not None:
        given.append(torch.randn(SLOTS, shape[0], generator=draw))
    leaves = [tensor.requires_grad_() for tensor in given]
    bias = leaves[2] if layer.bias is not None else None
    outputs = way.apply(leaves[0], leaves[1], bias, layer, torch.float32)
    slopes = torch.randn(outputs.shape, generator=draw)
    return [outputs, *torch.autograd.grad(outputs, leaves, slopes)]


@pytest.mark.parametrize("patch_bytes", [1 << 28, 1])
@pytest.mark.parametrize("name", LAYERS)
def test_unfolded_patches_give_what_the_library_gives(
    name: str, patch_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convolution, "PATCH_BYTES", patch_bytes)
    layer = nn.Conv2d(4, 5, **LAYERS[name])
    found = _passes(convolution._Unfolded, layer)
    for ours, theirs in zip(found, _passes(convolution._Convolution, layer), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    # In the layout of the slots' weights, to which they are added.
    assert found[2].permute(0, 1, 3, 4, 2).is_contiguous()


def test_slots_whose_images_fill_a_gpu_are_convolved_one_by_one() -> None:
    def way(layer: nn.Conv2d, side: int, images: int, slots: int = 8, device: str = "meta") -> Any:
        shape = slots * images, layer.in_channels, side, side
        return convolution._way(layer, torch.empty(shape, device=device), slots)

    block = nn.Conv2d(64, 64, 3, padding=1)
    assert way(block, 56, 16) is convolution._Convolution
    assert way(block, 56, 2) is convolution._Unfolded
    assert way(nn.Conv2d(512, 512, 3, padding=1), 7, 16) is convolution._Unfolded
    assert way(block, 8, 2, device="cpu") is convolution._Convolution
    # One slot, groups of the layer's own, and padding by name are the library's.
    assert way(block, 8, 2, slots=1) is None
    assert way(nn.Conv2d(64, 64, 3, groups=64), 8, 2) is None
    assert way(nn.Conv2d(64, 64, 3, padding="same"), 8, 2) is None


def test_the_first_layer_has_no_gradient_of_its_images() -> None:
    layer = nn.Conv2d(1, 2, 3)
    weight = torch.randn(2, 2, 1, 3, 3, requires_grad=True)
    images = torch.randn(4, 1, 6, 6)
    outputs = convolution._Unfolded.apply(images, weight, None, layer, torch.float32)
    outputs.sum().backward()
    assert images.grad is None
    assert weight.grad is not None
