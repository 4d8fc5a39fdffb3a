"""FLAIR's clients and model, for sides that are not ours, in this process or in another."""

from __future__ import annotations

import copy
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.flair_bare import Batches, train_locally
from pfl_bench.config.loading import resolve
from pfl_bench.federated.parts import build_forward, build_model, build_task


@dataclass(frozen=True)
class FlairJob:
    """A workload of FLAIR as it is measured; a side in another process is told it whole.

    Attributes:
        tree: The configuration of our side.
        threads: Threads of torch in each process.
        processes: Processes of a side that has several.
        cohort_seed: Seed of cohorts and noise, which our first side has derived for all others.
    """

    tree: dict[str, Any]
    threads: int
    cohort_seed: int
    processes: int = 1

    @property
    def private(self) -> bool:
        """Whether updates are clipped and noise is added."""
        return "privacy" in self.tree

    @property
    def cohort_size(self) -> int:
        """Expected clients a round."""
        size: int = self.tree["federated"]["cohort_size"]
        return size

    @property
    def noise(self) -> tuple[float, float]:
        """Bound of an update, and noise in its multiples: a small cohort has that of a large."""
        privacy = self.tree["privacy"]
        scale = self.cohort_size / privacy["noise_cohort_size"]
        return privacy["mechanism"]["clip_norm"], scale * privacy["noise_multiplier"]

    def write(self, path: Path) -> None:
        """Write it for another process."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")


class FlairMaterial:
    """Material of a side that is not ours; see ``workload.Material``.

    Attributes:
        job: What is measured.
        clients: The batches.
        num_users: Users of the training split.
    """

    def __init__(self, job: FlairJob) -> None:
        self.job = job
        resolved = resolve(job.tree, Path("bench"), ())
        device = torch.device(job.tree["device"])
        task = build_task(resolved, device)
        self._model = build_model(resolved, task, device)
        split = task.split("train")
        self.num_users = split.num_users
        forward = build_forward(resolved, task, self._model)
        self.clients = Batches(split, forward, device, job.cohort_seed, job.tree)

    def module(self) -> nn.Module:
        """The model with our initial weights, and their layout in memory."""
        return copy.deepcopy(self._model.module)

    def train(self, module: nn.Module, user: int, index: int) -> None:
        """Train one client in round ``index``: its images are read, decoded and cropped."""
        module.train()
        train_locally(module, self.clients.client(user, index), self.job.tree)
