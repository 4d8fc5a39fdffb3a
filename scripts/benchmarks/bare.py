"""A round as one writes it by hand: a loop over users and batches, nothing logged or accounted."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.local_training import Material
from benchmarks.workload import CLIP_NORM, Job


class BareSide:
    """The loop, on tensors in memory.

    Args:
        material: What it trains.
    """

    def __init__(self, material: Material) -> None:
        self._material, self._job = material, material.job
        self._module = material.module()
        self._parameters = [p for p in self._module.parameters() if p.requires_grad]
        self._central = [p.detach().clone() for p in self._parameters]

    def prepare(self, index: int) -> None:
        self._material.clients.prepare(index)

    def round(self, index: int) -> None:
        job: Job = self._job
        total = [torch.zeros_like(p) for p in self._central]
        cohort = self._material.clients.users_of_round(index)
        for user in cohort:
            with torch.no_grad():
                for parameter, start in zip(self._parameters, self._central, strict=True):
                    parameter.copy_(start)
            self._material.train(self._module, user, index)
            with torch.no_grad():
                pairs = zip(self._parameters, self._central, strict=True)
                update = [p - start for p, start in pairs]
                scale = 1.0
                if job.private:
                    norm = torch.stack([u.norm() for u in update]).norm()
                    scale = min(1.0, CLIP_NORM / float(norm))
                for accumulated, part in zip(total, update, strict=True):
                    accumulated.add_(part, alpha=scale)
        self._step(total, job.load.cohort_size if job.private else len(cohort), index)

    @torch.no_grad()
    def _step(self, total: list[Tensor], cohort_size: int, index: int) -> None:
        rng = self._material.clients.noise_of_round(index)
        for start, part in zip(self._central, total, strict=True):
            if self._job.private:
                noise = rng.standard_normal(part.numel())
                noise *= self._job.load.noise_multiplier * CLIP_NORM
                part.add_(torch.from_numpy(noise).float().view(part.shape).to(part.device))
            start.add_(part, alpha=1 / cohort_size)

    def vector(self) -> Tensor:
        return torch.cat([p.reshape(-1) for p in self._central]).cpu()
