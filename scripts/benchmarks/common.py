"""Shared by the benchmarks: sides that take turns, our own side, and the machine they ran on."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from pfl_bench.client.machine import processor_name, versions_of
from pfl_bench.client.precision import resolve_device
from pfl_bench.config.loading import resolve
from pfl_bench.federated.parts import (
    FederatedParts,
    build_model,
    build_task,
)
from pfl_bench.federated.trainer import FederatedTrainer
from pfl_bench.federated.workers.start import start_workers
from pfl_bench.runs.environment import PACKAGES, git_state

# What arithmetic the processor has units for.
_UNITS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")


class Side(Protocol):
    """One way to compute a federated round."""

    def prepare(self, index: int) -> None:
        """Have ready what round ``index`` may find in memory; not timed."""

    def round(self, index: int) -> None:
        """Compute round ``index``, 1-based."""

    def vector(self) -> Tensor:
        """The central parameters, shape (P,)."""


class OurSide:
    """The real federated trainer, reading its clients from the store.

    Args:
        tree: Its configuration, as a YAML file would hold it.
        folder: The run's folder, which holds a private run's ledger.
        notice: Called with what a person must know.

    Attributes:
        task: The data.
        model: The clients' working copy.
        trainer: The trainer.
        cohort_seed: Seed of cohorts and noise, of a private run that of all runs of its nonce.
        scalars: Those of the last round.
    """

    def __init__(
        self,
        tree: dict[str, Any],
        folder: Path,
        notice: Callable[[str], None] = lambda text: None,
    ) -> None:
        resolved = resolve(tree, Path("bench"), ())
        self.device = resolve_device(resolved.config.device)
        self.task = build_task(resolved, self.device)
        self.model = build_model(resolved, self.task, self.device)
        self.split = self.task.split("train")
        # Worker processes, where the configuration asks for them.
        self._group = start_workers(resolved, self.device)
        self.trainer = FederatedTrainer(
            FederatedParts.build(resolved, self.task, self.model),
            folder,
            notice,
            self._group,
        )
        self.trainer.begin(0)
        self.cohort_seed = self.trainer._cohort_seed
        self.scalars: Mapping[str, float] = {}

    def prepare(self, index: int) -> None:
        """Nothing: it reads its clients in the round."""

    def round(self, index: int) -> None:
        self.scalars = self.trainer.advance(index)

    def vector(self) -> Tensor:
        # Through the parameters: the trainer's own vector may order a weight's elements otherwise.
        self.trainer.load_central()
        return torch.cat([p.detach().reshape(-1) for p in self.model.parameters]).cpu()

    def close(self) -> None:
        """Close the ledger and let the workers end."""
        self.trainer.close()
        self._group.close()


@dataclass
class Seconds:
    """Seconds of each round: on the clock, and of the processors (all threads, waiting included).

    The processors' is of this process alone, and means nothing for a side in others.
    """

    wall: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    def add(self, work: Callable[[], None], device: torch.device) -> None:
        """Time a piece of work."""
        _finish(device)
        wall, processor = time.perf_counter(), time.process_time()
        work()
        _finish(device)
        self.wall.append(time.perf_counter() - wall)
        self.processor.append(time.process_time() - processor)


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def in_turn(sides: Mapping[str, Side], index: int) -> list[str]:
    """The sides' names; another begins each round: what one leaves in the caches favours none."""
    names, turn = [*sides], index % len(sides)
    return names[turn:] + names[:turn]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, smallest and largest."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


@contextlib.contextmanager
def torch_defaults() -> Iterator[None]:
    """Defaults of torch for a process: our device settings repeat bit for bit."""
    cudnn = torch.backends.cudnn
    kept = cudnn.deterministic, cudnn.allow_tf32
    deterministic = torch.are_deterministic_algorithms_enabled()
    cudnn.deterministic, cudnn.allow_tf32 = False, True
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        cudnn.deterministic, cudnn.allow_tf32 = kept
        torch.use_deterministic_algorithms(deterministic, warn_only=True)


class Machine:
    """The machine that the benchmark ran on, and its load when it began."""

    def __init__(self) -> None:
        self._load_before = _load()

    def describe(self) -> dict[str, Any]:
        """Hardware, versions, commit, command, and the load of a minute before and after."""
        versions = versions_of(PACKAGES)
        for peer in ("pfl", "flwr", "ray"):
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                versions[peer] = importlib.metadata.version(peer)
        flags = _processor_flags()
        return {
            "command": ["python", "scripts/bench.py", *sys.argv[0].split()[1:], *sys.argv[1:]],
            "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
            "processor": processor_name(),
            "units": [unit for unit in _UNITS if unit in flags],
            "cores": len(os.sched_getaffinity(0)),
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
            "checkout": git_state(),
            "versions": {name: version for name, version in versions.items() if version},
            "load_before": self._load_before,
            "load_after": _load(),
        }


def _load() -> float:
    return round(os.getloadavg()[0], 2)


def _processor_flags() -> set[str]:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("flags"):
                return set(line.partition(":")[2].split())
    return set()


def write_json(path: Path, report: Mapping[str, Any]) -> None:
    """Write what was measured."""
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
