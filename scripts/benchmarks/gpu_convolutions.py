"""Ways to convolve slots' images, forward and backward, as a step's CUDA graph has them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pfl_bench.client.batched.convolution import _Convolution, _grouped, _Unfolded

# Channels, side of the images, outputs, kernel, padding, stride.
LAYERS = {
    "small CNN 1": (1, 28, 32, 3, 0, 1),
    "small CNN 2": (32, 26, 64, 3, 0, 1),
    "LEAF CNN 2": (32, 14, 64, 5, 2, 1),
    "ResNet-18 stem": (3, 224, 64, 7, 3, 2),
    "ResNet-18 block 1": (64, 56, 64, 3, 1, 1),
    "ResNet-18 block 2": (128, 28, 128, 3, 1, 1),
    "ResNet-18 block 3": (256, 14, 256, 3, 1, 1),
    "ResNet-18 block 4": (512, 7, 512, 3, 1, 1),
}
# Slots, and images of each.
BATCHES = ((64, 10), (16, 2), (16, 16))
KINDS = {
    "float32": (torch.float32, False),
    "tf32": (torch.float32, True),
    "bfloat16": (torch.bfloat16, False),
}
REPEATS = 5
TOLERANCE = 0.02


def compare(device: str, folder: Path) -> dict[str, Any]:
    """Milliseconds of each way by layer, slots, images and precision.

    Raises:
        SystemExit: A way gives other gradients of the kernels than the grouped convolution.
    """
    ways: dict[str, Callable[..., Any]] = {
        "grouped": _as_one,
        "slot by slot": _Convolution.apply,
        "unfolded": _Unfolded.apply,
    }
    torch.backends.cudnn.deterministic = True
    found: dict[str, Any] = {}
    for kind, (dtype, tf32) in KINDS.items():
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        for name, shape in LAYERS.items():
            for slots, images in BATCHES:
                if name.startswith("ResNet") == (slots == BATCHES[0][0]):
                    continue
                case = f"{name}, {slots} x {images}, {kind}"
                times, norms = {}, []
                for way, convolve in ways.items():
                    step = _step(convolve, shape, slots, images, dtype, device)
                    times[way], norm = _milliseconds(step)
                    norms.append(norm)
                if max(norms) - min(norms) > TOLERANCE * max(norms):
                    raise SystemExit(f"{case}: the ways' gradients have norms {norms}")
                found[case] = times
    return found


def _step(
    convolve: Callable[..., Any],
    shape: tuple[int, ...],
    slots: int,
    images: int,
    dtype: torch.dtype,
    device: str,
) -> Callable[[], tuple[Tensor, ...]]:
    """Forward and backward pass of random images, kernels and biases: gradients, kernels' first."""
    channels, side, outputs, kernel, padding, stride = shape
    layer = nn.Conv2d(channels, outputs, kernel, stride, padding)
    draw = torch.Generator(device).manual_seed(0)
    memory = (slots, outputs, kernel, kernel, channels)
    weight = torch.randn(memory, generator=draw, device=device).mul_(0.05)
    weight = weight.permute(0, 1, 4, 2, 3).requires_grad_()
    bias = torch.randn(slots, outputs, generator=draw, device=device).requires_grad_()
    given = torch.randn(
        slots * images, channels, side, side, generator=draw, device=device, dtype=dtype
    ).contiguous(memory_format=torch.channels_last)
    leaves = [weight, bias]
    # The first layer's images have no gradients.
    if channels > 3:
        leaves.append(given.requires_grad_())

    def step() -> tuple[Tensor, ...]:
        result = convolve(given, weight, bias, layer, dtype)
        return torch.autograd.grad(result, leaves, torch.ones_like(result))

    return step


def _as_one(
    given: Tensor, weight: Tensor, bias: Tensor, layer: nn.Conv2d, dtype: torch.dtype
) -> Tensor:
    return _grouped(layer, given, weight.to(dtype), bias.to(dtype))


def _milliseconds(step: Callable[[], tuple[Tensor, ...]]) -> tuple[float, float]:
    """Time of a replay, and the norm of the kernels' gradients."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        norm = float(step()[0].float().norm())
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    graph.replay()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(REPEATS):
        graph.replay()
    torch.cuda.synchronize()
    return round(1e3 * (time.perf_counter() - began) / REPEATS, 3), norm
