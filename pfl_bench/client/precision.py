"""The device of a run and its arithmetic: float32, TF32 on a GPU, or bfloat16 beside float32.

Mixed precision is ``torch.autocast``: products and convolutions take bfloat16, while parameters,
losses, local steps, updates, clipping, sums and noise are float32. Where autocast would cast more
than it saves, layers keep to float32: see ``is_mixed``.
"""

from __future__ import annotations

import os
import platform
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor

from pfl_bench.types import ConfigError

# On a CPU a linear layer of so few rows is bound by its weights' way through memory. Casting them
# takes as long as the product in float32: 0.33 ms of 0.37 for 9216 x 128 weights and ten rows,
# 1.7 of 2.0 for 3136 x 2048.
FEW_ROWS = 32


def is_mixed(inputs: Tensor, rows: int) -> bool:
    """Whether a linear layer's product is to be in the type of autocast.

    ``inputs``, of any shape, say on which device. ``rows`` are those that one set of weights is
    multiplied with.
    """
    kind = inputs.device.type
    return torch.is_autocast_enabled(kind) and not (kind == "cpu" and rows <= FEW_ROWS)


def without_autocast(inputs: Tensor) -> AbstractContextManager[Any]:
    """Float32 for what is computed inside, where autocast is on for the device of ``inputs``.

    These are of any shape.
    """
    kind = inputs.device.type
    if not torch.is_autocast_enabled(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)


def resolve_device(name: str, is_private: bool = False) -> torch.device:
    """Find the device that a configuration asks for; one that is not there is a ConfigError.

    Where it ``is_private``, PyTorch refuses operations that it cannot repeat on CUDA, and not only
    warns of them: a private run's audit computes rounds again.
    """
    mps = torch.backends.mps.is_available()
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else ("mps" if mps else "cpu")
    if (name == "cuda" and not torch.cuda.is_available()) or (name == "mps" and not mps):
        raise ConfigError(
            f"device: '{name}' is not available on this machine; use device=cpu or device=auto"
        )
    if name == "cuda":
        # Reruns are to be bit-identical.
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=not is_private)
        # Else each ``empty`` launches a kernel that fills it. No memory is read before it is
        # written: ``tests/equivalence/test_uninitialised_memory.py``.
        cast("Any", torch.utils.deterministic).fill_uninitialized_memory = False
    return torch.device(name)


def use(precision: str, device: torch.device) -> None:
    """Set what PyTorch makes of float32 products and convolutions on a GPU, for the process.

    "float32" is then exactly that; of the others a device may have none, which is a ConfigError.
    """
    if precision == "tf32":
        _check_tf32(device)
    mixed_on_mps = precision == "bfloat16" and device.type == "mps"
    # Apple's Metal has it from macOS 14 on; before, autocast would switch itself off.
    if mixed_on_mps and not torch.backends.mps.is_macos_or_newer(14, 0):
        raise ConfigError(
            "precision: bfloat16 on device mps needs macOS 14 or newer; set precision: float32"
        )
    if device.type == "cuda":
        _allow_tf32(precision == "tf32")


def _check_tf32(device: torch.device) -> None:
    mend = "set precision: float32 (or bfloat16, for mixed precision)"
    if device.type != "cuda":
        raise ConfigError(
            f"precision: tf32 is a format of NVIDIA GPUs, but the run's device is {device.type}; "
            f"{mend}"
        )
    major, minor = torch.cuda.get_device_capability(device)
    if major < 8 or torch.version.cuda is None:
        raise ConfigError(
            "precision: tf32 needs an NVIDIA GPU of compute capability 8.0 (Ampere) or newer, but "
            f"{torch.cuda.get_device_name(device)} has {major}.{minor}; {mend}"
        )


def _allow_tf32(allowed: bool) -> None:
    cuda, cudnn = cast("Any", torch.backends.cuda), cast("Any", torch.backends.cudnn)
    # The old switches come first. Where PyTorch has new ones too (2.9 and newer), it raises when an
    # old one is read, by ``cudnn.flags()`` for example, and says other than the new.
    cuda.matmul.allow_tf32 = allowed
    cudnn.allow_tf32 = allowed
    if hasattr(torch.backends, "fp32_precision"):
        word = "tf32" if allowed else "ieee"
        for part in (cuda.matmul, cudnn.conv, cudnn.rnn):
            part.fp32_precision = word


def new_loss_sum(device: torch.device) -> Tensor:
    """A scalar 0 to add losses up in: float64, but float32 on Apple's Metal, which has no other."""
    dtype = torch.float32 if device.type == "mps" else torch.float64
    return torch.zeros((), dtype=dtype, device=device)


def slow_notice(precision: str, device: torch.device) -> str | None:
    """Notice for a device that computes bfloat16 without units for it; None for others."""
    if precision != "bfloat16":
        return None
    if device.type == "cpu" and not cpu_has_bfloat16():
        return (
            "precision: this processor has no bfloat16 units (AVX512-BF16, AMX or ARM's BF16): the "
            "run goes on, but slower than in float32; set precision: float32 unless you mean to "
            "study rounding"
        )
    if device.type == "cuda" and torch.cuda.get_device_capability(device)[0] < 8:
        return (
            f"precision: {torch.cuda.get_device_name(device)} has no bfloat16 units and emulates "
            "them: the run goes on, but slower than in float32; set precision: float32"
        )
    return None


def cpu_has_bfloat16() -> bool:
    """Whether this processor computes in bfloat16 by instructions of its own."""
    cpu = cast("Any", torch.cpu)
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    if any(getattr(cpu, name)() for name in names if hasattr(cpu, name)):
        return True
    if platform.machine() not in ("arm64", "aarch64"):
        return False
    # Of ARM's instructions, oneDNN alone tells.
    asked = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return bool(asked is not None and asked())
