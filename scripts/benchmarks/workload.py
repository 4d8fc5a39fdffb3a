"""Workload of a round's benchmark: a model of a task, and the clients that every side trains."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

CLIP_NORM, SEED = 0.4, 0


@dataclass(frozen=True)
class Workload:
    """A model of a task, and how its clients train.

    Attributes:
        task: Name of the task.
        model: Name of the model.
        cohort_size: Clients a round.
        batch_size: Examples a step.
        learning_rate: Local rate: small, so that rounding does not grow over a client's steps.
        gradient_clip: Bound of the gradient's global norm; None for none.
        has_dropout: Whether the model drops anything in training.
        noise_multiplier: Of private rounds. Noise for a cohort of ten drives an LSTM's gates into
            saturation within rounds, and numbers too small for a processor's fast path follow: a
            smaller one keeps the model one that a training has.
        plain: How the other sides write the model: "same" modules, or "lstm" of PyTorch's own
            layers, with outputs at each step or at the "last_step".
    """

    task: str
    model: str
    cohort_size: int
    batch_size: int
    learning_rate: float
    gradient_clip: float | None = None
    has_dropout: bool = False
    noise_multiplier: float = 1.0
    plain: str = "same"


@dataclass(frozen=True)
class Job:
    """A workload as it is measured; a side in another process is told it whole.

    Attributes:
        store: The prepared data.
        load: What is trained.
        private: Whether updates are clipped and noise is added.
        precision: "float32" or "bfloat16" (mixed).
        threads: Threads of torch in each process.
        processes: Processes of a side that has several.
        engine: Of our side.
        cohort_seed: Seed of cohorts and noise, which our first side has derived for all others.
        device: "cpu" or "cuda".
        slots: Of our vectorized side; None for what the engine takes itself.
    """

    store: str
    load: Workload
    private: bool
    precision: str = "float32"
    threads: int = 1
    processes: int = 1
    engine: str = "sequential"
    cohort_seed: int = SEED
    device: str = "cpu"
    slots: int | None = None

    @property
    def cohort_size(self) -> int:
        """Expected clients a round."""
        return self.load.cohort_size

    @property
    def noise(self) -> tuple[float, float]:
        """Bound of an update, and noise in its multiples."""
        return CLIP_NORM, self.load.noise_multiplier

    def write(self, path: Path) -> None:
        """Write it for another process."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Job:
        """Read what ``write`` wrote."""
        values = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{**values, "load": Workload(**values["load"])})


def configuration(job: Job) -> dict[str, Any]:
    """A run of our own that does what the other sides do."""
    load = job.load
    tree: dict[str, Any] = {
        "version": 1,
        "name": "bench",
        "seed": SEED,
        "device": job.device,
        "precision": job.precision,
        "num_threads": job.threads,
        "task": {"name": load.task, "data": job.store},
        "model": {"name": load.model},
        "federated": {
            "num_rounds": 1000,
            "cohort_size": load.cohort_size,
            "sampling": "poisson" if job.private else "fixed_size",
            "local_batch_size": load.batch_size,
            "local_learning_rate": load.learning_rate,
            "local_gradient_clip_global_norm": load.gradient_clip,
            "engine": job.engine,
            "engine_lanes": job.slots if job.engine == "vectorized" else None,
            "workers": job.processes,
        },
        "evaluation": {"final_splits": []},
    }
    if job.private:
        tree["privacy"] = {
            "mechanism": {"name": "gaussian", "clip_norm": CLIP_NORM},
            "population_size": 1_000_000,
            "hypothetical_population": True,
            "noise_multiplier": load.noise_multiplier,
            # The same cohorts whatever the code, so that two versions can be compared.
            "nonce": "bench",
        }
    return tree


def flat(module: nn.Module) -> Tensor:
    """The trained parameters, shape (P,), on the CPU."""
    return torch.cat([p.detach().reshape(-1) for p in module.parameters() if p.requires_grad]).cpu()
