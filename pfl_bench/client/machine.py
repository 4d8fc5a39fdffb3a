"""Code, versions and processor: they decide a sum's last bits beside the configuration."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib.util
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from pfl_bench import plugins
from pfl_bench.types import ConfigError

PACKAGES = ("pfl_bench", "privacy", "tasks")
# Libraries that compute, decode or calibrate what a run releases; those absent are None.
LIBRARIES = (
    "torch", "torchvision", "opacus", "dp-accounting", "numpy", "scipy", "scikit-learn", "h5py",
    "pillow", "transformers", "sentencepiece",
)  # fmt: skip
# Environment variables by which libraries choose other instructions or another order of sums begin
# so; of those, the ones that end so only print, or set threads, which are recorded by themselves.
SWITCHES = (
    "ATEN_", "DNNL_", "GLIBC_TUNABLES", "KMP_DETERMINISTIC_REDUCTION", "MKL_", "NPY_", "ONEDNN_",
    "OPENBLAS_", "PYTORCH_MPS_", "TORCH_MKLDNN_",
)  # fmt: skip
CUDA_SWITCHES = ("CUBLAS", "CUDNN_", "DISABLE_ADDMM_CUDA_LT", "NVIDIA_TF32_OVERRIDE", "TORCH_")
_NO_SWITCHES = ("_VERBOSE", "_NUM_THREADS")
# Of /proc/cpuinfo: what libraries choose their kernels by. Virtual machines often hide the name.
_OF_PROCESSOR = (
    "model name", "cpu family", "model", "stepping", "cache size", "CPU implementer", "CPU part",
    "CPU variant", "Features",
)  # fmt: skip
_FLAGS = ("avx", "fma", "amx", "sse", "f16c")


def code_digest() -> str:
    """Digest of the code that decides updates, "sha256:<hex>".

    It covers every module of the three packages, wherever their parts lie: engines, algorithms,
    mechanisms and all tasks; and the user's plug-ins (``plugins.user_files``). It does not cover
    what else a plug-in imports.
    """
    return _digest_of_code(tuple(plugins.__path__))


@functools.cache
def _digest_of_code(user_folders: tuple[str, ...]) -> str:
    """Digest of the code with ``user_folders``: of files as they are loaded, not later."""
    digest = hashlib.sha256()
    found: set[str] = set()
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            for place, path in plugins.python_files(Path(folder)):
                content = hashlib.sha256(path.read_bytes()).hexdigest()
                digest.update(f"{package}/{place} {content}\n".encode())
                found.add(package)
    for name, content in _digests_of_plugins(user_folders).items():
        digest.update(f"{name} {content}\n".encode())
    if found != set(PACKAGES):
        raise ConfigError(
            "privacy: the source files of pfl_bench, privacy and tasks cannot be read, and the "
            "seed of a private run's noise is derived from them; install pfl-bench from its wheel "
            "or its checkout, as folders of .py files"
        )
    return f"sha256:{digest.hexdigest()}"


def plugin_digests() -> dict[str, str]:
    """Digests "sha256:<hex>" of the user's plug-ins, by the name of their folder or package.

    Each is of the content and the relative path of all files in ``plugins.user_files``: the same
    folder elsewhere is the same code. It does not cover what else a plug-in imports.
    """
    return dict(_digests_of_plugins(tuple(plugins.__path__)))


@functools.cache
def _digests_of_plugins(user_folders: tuple[str, ...]) -> dict[str, str]:
    """Digests of plug-ins in ``user_folders`` and of packages: as they are loaded, not later."""
    files = _files_of_plugins()
    return {name: _digest_of_files(files[name].values()) for name in sorted(files)}


def _files_of_plugins() -> dict[str, dict[Path, str]]:
    """Lines of the digests, by plug-in and file; the newest file of each plug-in is first."""
    found: dict[str, dict[Path, str]] = {}
    for origin, files in plugins.user_files().items():
        # Two folders may have one name.
        lines = found.setdefault(Path(origin).name, {})
        for place, path in sorted(files, key=lambda file: -file[1].stat().st_mtime):
            lines[path] = f"{place} {hashlib.sha256(path.read_bytes()).hexdigest()}\n"
    return found


def _digest_of_files(lines: Iterable[str]) -> str:
    return f"sha256:{hashlib.sha256(''.join(sorted(lines)).encode()).hexdigest()}"


def files_added(name: str, digest: str) -> list[str]:
    """Files without which a plug-in's digest is an earlier one: any file, or the newest several.

    Empty where that is not so, as where a file has changed.
    """
    lines = _files_of_plugins().get(name, {})
    newest = list(lines)
    for added in (*([path] for path in newest), *(newest[:n] for n in range(2, len(newest)))):
        if _digest_of_files(lines[path] for path in newest if path not in added) == digest:
            return sorted(map(str, added))
    return []


def versions_of(names: Sequence[str]) -> dict[str, str | None]:
    """Versions of distributions; None for one that is absent."""
    return {name: _version_of(name) for name in names}


# A process keeps the libraries that it began with.
@functools.cache
def _version_of(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def library_versions() -> dict[str, str | None]:
    """Versions of Python and of the libraries that compute; None for one that is absent."""
    versions = {"python": platform.python_version(), **versions_of(LIBRARIES)}
    # Builds of one version differ in their libraries, such as "2.9.0+cpu".
    versions["torch"] = str(torch.__version__)
    return versions


def processor_name() -> str:
    """Name of the processor, as far as the platform tells."""
    for line in _cpuinfo():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _cpuinfo() -> list[str]:
    """Lines of /proc/cpuinfo; none on a system without it."""
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def processor_details() -> dict[str, str]:
    """Properties by which libraries choose their kernels, as far as the platform gives them."""
    details = {"system": platform.system(), "libc": " ".join(platform.libc_ver())}
    if platform.system() == "Darwin":
        return details | {"macos": platform.mac_ver()[0], "name": platform.processor()}
    for line in _cpuinfo():
        if not line.strip():
            break  # the first of the cores
        key, _, value = (part.strip() for part in line.partition(":"))
        if key in _OF_PROCESSOR:
            details[key] = value
        elif key == "flags":
            # Not all: a new kernel of the system lists more of them.
            details[key] = " ".join(flag for flag in value.split() if flag.startswith(_FLAGS))
    return details


def cpu_capability() -> str:
    """Instruction set that torch's own kernels take, such as "AVX512"."""
    return str(torch.backends.cpu.get_cpu_capability())


def identity(device: torch.device) -> dict[str, Any]:
    """All of this module together; two processes compute the same bits where it is the same."""
    return {
        "code": code_digest(),
        "versions": library_versions(),
        "arithmetic": arithmetic(device),
    }


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Say what differs between nested mappings, such as "versions.torch 2.8.0 -> 2.9.0"."""
    changed = []
    for name in sorted(set(before) | set(now)):
        old, new = before.get(name), now.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            changed += [f"{name}.{text}" for text in differences(old, new)]
        elif old != new:
            changed.append(f"{name} {old} -> {new}")
    return changed


def keep_freed_memory() -> None:
    """Let the C library (glibc; others go on as they are) keep large blocks that were freed.

    It gives them back to the system, which clears each page of the next one: two thirds of the time
    of gradients of single examples, whose blocks come and go.
    """
    m_trim_threshold, m_mmap_threshold = -1, -3  # of malloc.h
    with contextlib.suppress(AttributeError, OSError, TypeError):
        library = ctypes.CDLL(None)
        library.mallopt(m_mmap_threshold, 1 << 30)
        library.mallopt(m_trim_threshold, (1 << 31) - 1)


def arithmetic(device: torch.device) -> dict[str, Any]:
    """Describe what computes: processor, its instructions, the accelerator, and switches."""
    found: dict[str, Any] = {
        "machine": platform.machine(),
        "processor": processor_details(),
        "cpu_capability": cpu_capability(),
        "threads": torch.get_num_threads(),
        "switches": _switches(SWITCHES + (CUDA_SWITCHES if device.type == "cuda" else ())),
        "device": device.type,
    }
    if device.type == "cuda":
        found["accelerator"] = torch.cuda.get_device_name(device)
        found["cuda"] = torch.version.cuda
        found["cudnn"] = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return found


def _switches(prefixes: tuple[str, ...]) -> dict[str, str]:
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(prefixes) and not name.endswith(_NO_SWITCHES)
    }
