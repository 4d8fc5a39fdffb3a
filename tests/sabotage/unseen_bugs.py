"""Bugs that the record of one run cannot show: where the audit ends."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pfl_bench import cohort_training, federated
from pfl_bench.config_file import ResolvedConfig
from privacy.clipping import ClipOutcome
from tests.sabotage.planting import Bug, Patch


def noise_named_by_seed(patch: Patch) -> None:
    patch.setattr(ResolvedConfig, "private_seed", lambda self, *_: self.config.seed)


def second_release(patch: Patch) -> None:
    """The updates' bare mean moves the model, too, after the noised one was recorded."""
    updates: list[Tensor] = []
    take_in = cohort_training.Intake.take_in
    step = federated.FederatedTrainer._take_central_step

    def collect(self: Any, aggregate: Any, update: Tensor, *rest: Any) -> ClipOutcome:
        updates.append(update.clone())
        return take_in(self, aggregate, update, *rest)

    def corrected(self: Any, mean_update: Tensor, index: int) -> float:
        correction = torch.stack(updates).mean(dim=0)
        updates.clear()
        return step(self, mean_update + 0.1 * correction, index)

    patch.setattr(cohort_training.Intake, "take_in", collect)
    patch.setattr(federated.FederatedTrainer, "_take_central_step", corrected)


UNSEEN = (
    Bug(
        "noise_of_another_run",
        "two runs on the same data share their noise",
        "`ResolvedConfig.private_seed` is the seed alone",
        unseen="each run by itself is sound; both ledgers together show it, in the first elements "
        "of each round's noise",
        plant=noise_named_by_seed,
    ),
    Bug(
        "second_release",
        "the updates' mean moves the model a second time, without noise",
        "`FederatedTrainer._take_central_step` adds it",
        unseen="the record is of what the mechanism releases; what the central step makes of other "
        "sources is not in it",
        plant=second_release,
    ),
)
