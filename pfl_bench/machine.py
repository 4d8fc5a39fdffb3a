"""What decides the last bits of a sum beside the configuration: code, versions, processor."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("pfl_bench", "privacy", "tasks")
# Libraries that compute, decode or calibrate what a run releases; those absent are None.
LIBRARIES = (
    "torch",
    "torchvision",
    "opacus",
    "dp-accounting",
    "numpy",
    "scipy",
    "scikit-learn",
    "h5py",
    "pillow",
    "transformers",
    "sentencepiece",
)
# Environment variables by which libraries choose other instructions or another order of sums.
SWITCHES = (
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "DNNL_MAX_CPU_ISA",
    "MKL_CBWR",
    "MKL_DEBUG_CPU_TYPE",
    "MKL_ENABLE_INSTRUCTIONS",
    "NVIDIA_TF32_OVERRIDE",
    "ONEDNN_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
)


@functools.cache
def code_digest() -> str:
    """Digest of the code that decides updates, "sha256:<hex>".

    It covers every module of the three packages, wherever their parts lie: engines, algorithms,
    mechanisms and all tasks. It does not cover what else a plug-in imports.
    """
    digest = hashlib.sha256()
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        folders = [] if spec is None else list(spec.submodule_search_locations or [])
        for folder in map(Path, folders):
            for path in sorted(folder.rglob("*.py")):
                name = f"{package}/{path.relative_to(folder).as_posix()}"
                content = hashlib.sha256(path.read_bytes()).hexdigest()
                digest.update(f"{name} {content}\n".encode())
    return f"sha256:{digest.hexdigest()}"


def library_versions() -> dict[str, str | None]:
    """Versions of Python and of the libraries that compute; None for one that is absent."""
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    # Builds of one version differ in their libraries, such as "2.9.0+cpu".
    versions["torch"] = str(torch.__version__)
    return versions


def processor_name() -> str:
    """Name of the processor, as far as the platform tells."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor()


def cpu_capability() -> str:
    """Instruction set that torch's own kernels take, such as "AVX512"."""
    return str(torch.backends.cpu.get_cpu_capability())


def identity(device: torch.device) -> dict[str, Any]:
    """All of this module together; two processes compute the same bits where it is the same.

    Args:
        device: Where the model lives.
    """
    return {
        "code": code_digest(),
        "versions": library_versions(),
        "arithmetic": arithmetic(device),
    }


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Say what differs, such as "versions.torch 2.8.0 -> 2.9.0".

    Args:
        before: Names and values, or further mappings of them.
        now: Likewise.
    """
    changed = []
    for name in sorted(set(before) | set(now)):
        old, new = before.get(name), now.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            changed += [f"{name}.{text}" for text in differences(old, new)]
        elif old != new:
            changed.append(f"{name} {old} -> {new}")
    return changed


def arithmetic(device: torch.device) -> dict[str, Any]:
    """Describe what computes: processor, its instructions, the accelerator, and switches.

    Args:
        device: Where the model lives.
    """
    found: dict[str, Any] = {
        "machine": platform.machine(),
        "processor": processor_name(),
        "cpu_capability": cpu_capability(),
        "threads": torch.get_num_threads(),
        "switches": {name: os.environ[name] for name in SWITCHES if name in os.environ},
        "device": device.type,
    }
    if device.type == "cuda":
        found["accelerator"] = torch.cuda.get_device_name(device)
        found["cuda"] = torch.version.cuda
        found["cudnn"] = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return found
