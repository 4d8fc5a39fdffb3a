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
from pfl_bench.federated.parts import RunParts
from pfl_bench.types import Trainer

# Packages that can change a result; an absent one has no version.
PACKAGES = (
    "pfl-bench", "torch", "torchvision", "opacus", "dp-accounting", "numpy", "h5py",
    "scikit-learn", "pydantic", "wandb",
)  # fmt: skip


def environment(parts: RunParts, trainer: Trainer, processes: str) -> dict[str, Any]:
    """Describe versions, hardware, commit and data, with the private seed if there is one.

    ``processes`` is what several processes are called, empty for one.
    """
    facts, seed = parts.task.facts, trainer.private_seed
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": machine.versions_of(PACKAGES),
        "plugins": machine.plugin_digests(),
        "hardware": hardware(parts.model.device),
        "git": git_state(),
        "data": {"source": facts.source, "variant": facts.variant, "checksum": facts.checksum},
        "model": {"initial_digest": parts.model.initial_digest},
        "engine": {"name": trainer.engine},
        "processes": processes,
        **({} if seed is None else {"private_seed": seed.to_json_dict()}),
    }


def hardware(device: torch.device) -> dict[str, Any]:
    """Describe the machine, and the device that computes."""
    found: dict[str, Any] = {
        "machine": platform.machine(),
        "processor": machine.processor_name(),
        "logical_cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "device": str(device),
        # As torch uses it: the variable ATEN_CPU_CAPABILITY lowers it.
        "cpu_capability": machine.cpu_capability(),
    }
    if device.type == "cuda":
        found["accelerator"] = torch.cuda.get_device_name(device)
        found["cuda"] = torch.version.cuda
        only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
        # Those that PyTorch cannot repeat bit for bit.
        found["nondeterministic_operations"] = "warned of" if only_warns else "refused"
    return found


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
