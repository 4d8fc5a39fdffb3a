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
        like: Another side of ours whose cohorts and noise it takes, as no two private runs may.

    Attributes:
        task: The data.
        model: The clients' working copy.
        trainer: The trainer.
        cohort_seed: Seed of cohorts and noise, which a private run derives from all it knows.
        scalars: Those of the last round.
    """

    def __init__(self, tree: dict[str, Any], folder: Path, like: OurSide | None = None) -> None:
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
        if like is not None:
            self.cohort_seed = self.trainer._cohort_seed = like.cohort_seed
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
    """Medians, and speeds relative to the others, round by round on the same users.

    Processor time too: it is all that tells something where others use the machine.
    """
    result: dict[str, Any] = {"workload": name, "private": private, "agreement": agreement}
    for side, taken in seconds.items():
        result[side] = {"median_seconds": statistics.median(taken.wall)}
        for other in ("bare", "pfl"):
            if other not in seconds:
                continue
            for clock in ("wall", "processor"):
                theirs, own = getattr(seconds[other], clock), getattr(taken, clock)
                ratios = [their / mine for their, mine in zip(theirs, own, strict=True)]
                result[side][f"speed_to_{other}_{clock}"] = spread(ratios)
    return result


def table(results: list[dict[str, Any]]) -> str:
    """The results as Markdown."""
    lines = [
        "| workload | private | side | s a round (median) | of the bare loop's speed: median "
        "(min-max) | of pfl's | of pfl's, processor time |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in results:
        for side, row in result.items():
            if not isinstance(row, dict) or "median_seconds" not in row:
                continue
            speeds = [
                _shown(row.get(f"speed_to_{other}"))
                for other in ("bare_wall", "pfl_wall", "pfl_processor")
            ]
            lines.append(
                f"| {result['workload']} | {'yes' if result['private'] else 'no'} | {side} "
                f"| {row['median_seconds']:.3f} | {' | '.join(speeds)} |"
            )
    return "\n".join(lines)


def _shown(speed: Mapping[str, float] | None) -> str:
    if speed is None:
        return "-"
    return f"{speed['median']:.2f} ({speed['min']:.2f}-{speed['max']:.2f})"


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
