"""Record of a run's versions, hardware, commit and data, as ``environment.json`` has it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from pfl_bench.client import machine
from pfl_bench.types import DataFacts

PACKAGES = (
    "pfl-bench", "torch", "torchvision", "opacus", "dp-accounting", "numpy", "h5py",
    "scikit-learn", "pydantic", "wandb",
)  # fmt: skip


def environment(
    facts: DataFacts,
    device: torch.device,
    initial_digest: str,
    engine: str | None,
    processes: str = "",
) -> dict[str, Any]:
    """Describe versions, hardware, commit and data.

    ``engine`` trains clients, None where there are none; ``processes`` is what several processes
    are called, empty for one.
    """
    hardware: dict[str, Any] = {
        "machine": platform.machine(),
        "processor": machine.processor_name(),
        "logical_cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "device": str(device),
        # As torch uses it: the variable ATEN_CPU_CAPABILITY lowers it.
        "cpu_capability": machine.cpu_capability(),
    }
    if device.type == "cuda":
        hardware["accelerator"] = torch.cuda.get_device_name(device)
        hardware["cuda"] = torch.version.cuda
        only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
        # Those that PyTorch cannot repeat bit for bit.
        hardware["nondeterministic_operations"] = "warned of" if only_warns else "refused"
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": package_versions(),
        "plugins": machine.plugin_digests(),
        "hardware": hardware,
        "git": git_state(),
        "data": {"source": facts.source, "variant": facts.variant, "checksum": facts.checksum},
        "model": {"initial_digest": initial_digest},
        "engine": {"name": engine},
        "processes": processes,
    }


def package_versions() -> dict[str, str | None]:
    """Versions of the packages that can change a result; None for one that is absent."""
    return machine.versions_of(PACKAGES)


def git_state() -> dict[str, Any] | None:
    """Commit of the checkout that this package runs from, or None for an installed package."""
    home = Path(__file__).resolve().parents[2]
    if not (home / ".git").exists():
        return None
    try:
        commit = _git(home, "rev-parse", "HEAD")
        changed = bool(_git(home, "status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit, "uncommitted_changes": changed}


def _git(folder: Path, *arguments: str) -> str:
    # A look that is killed leaves no lock in the checkout.
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()
