"""What the benchmarks share: sides that take turns, our own side, and the report."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from pfl_bench.building import build_model, build_task, resolve_device
from pfl_bench.config_file import resolve
from pfl_bench.federated import FederatedTrainer
from pfl_bench.run_folder import package_versions, processor_name


class Side(Protocol):
    """One way to compute a federated round."""

    def round(self, index: int) -> None:
        """Compute round ``index``, 1-based."""

    def vector(self) -> Tensor:
        """The central parameters, shape (P,)."""


class OurSide:
    """The real federated trainer, reading its clients from the store.

    Args:
        tree: Its configuration, as a YAML file would hold it.
        folder: The run's folder, which holds a private run's ledger.

    Attributes:
        task: The data.
        model: The clients' working copy.
        trainer: The trainer.
        cohort_seed: Seed of cohorts and noise, which a private run derives from all it knows.
        scalars: Those of the last round.
    """

    def __init__(self, tree: dict[str, Any], folder: Path) -> None:
        resolved = resolve(tree, Path("bench"), ())
        self.device = resolve_device(resolved.config.device)
        self.task = build_task(resolved, self.device)
        self.model = build_model(resolved, self.task, self.device)
        self.trainer = FederatedTrainer(resolved, self.task, self.model, folder, lambda text: None)
        self.trainer.begin(0)
        self.split = self.task.split("train")
        self.cohort_seed = resolved.config.seed
        if resolved.config.setting == "private_federated":
            digest = self.model.initial_digest
            self.cohort_seed = resolved.private_seed(
                self.task.facts.checksum, digest, self.model.device.type
            )
        self.scalars: Mapping[str, float] = {}

    def round(self, index: int) -> None:
        self.scalars = self.trainer.advance(index)

    def vector(self) -> Tensor:
        # Through the parameters: the trainer's own vector may order a weight's elements otherwise.
        self.trainer.load_central()
        return torch.cat([p.detach().reshape(-1) for p in self.model.parameters])


@dataclass
class Seconds:
    """What each round took: on the clock, and of the processors (all threads, waiting included)."""

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


def spread(values: list[float]) -> dict[str, float]:
    """Median, smallest and largest."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def summarise(
    name: str, private: bool, seconds: Mapping[str, Seconds], agreement: Mapping[str, float]
) -> dict[str, Any]:
    """Medians and the ratios to the bare loop, round by round on the same users."""
    result: dict[str, Any] = {"workload": name, "private": private, "agreement": agreement}
    bare = seconds["bare"].wall
    for side, taken in seconds.items():
        values = taken.wall
        ratios = [own / other for own, other in zip(values, bare, strict=True)]
        result[side] = {
            "median_seconds": statistics.median(values),
            "ratio_to_bare": statistics.median(ratios),
            "ratio_min": min(ratios),
            "ratio_max": max(ratios),
        }
    return result


def table(results: list[dict[str, Any]]) -> str:
    """The results as Markdown."""
    lines = [
        "| workload | private | side | s a round (median) | ratio to bare loop: median (min-max) |",
        "|---|---|---|---|---|",
    ]
    for result in results:
        for side in ("bare", "pfl-bench", "pfl"):
            if side in result:
                row = result[side]
                extremes = f"{row['ratio_min']:.2f}-{row['ratio_max']:.2f}"
                lines.append(
                    f"| {result['workload']} | {'yes' if result['private'] else 'no'} | {side} "
                    f"| {row['median_seconds']:.3f} | {row['ratio_to_bare']:.3f} ({extremes}) |"
                )
    return "\n".join(lines)


def write_report(path: Path, repeats: int, results: Any) -> None:
    """Write what was measured, where and by which versions."""
    versions = package_versions()
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        versions["pfl"] = importlib.metadata.version("pfl")
    report = {
        "command": sys.argv,
        "threads": torch.get_num_threads(),
        "processor": processor_name(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "versions": versions,
        "repeats": repeats,
        "results": results,
    }
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
