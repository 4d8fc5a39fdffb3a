"""Planted bugs of the central step: the model moves along something else than the releases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pfl_bench.federated import trainer as federated
from pfl_bench.federated.privacy_session import PrivateRounds
from pfl_bench.federated.trainer import FederatedTrainer
from privacy.mechanism import Release
from tests.helpers import change_checkpoint
from tests.sabotage.clipping_bugs import move_by_bare_mean
from tests.sabotage.planting import COHORT, Bug, Patch, Plant

ADAM = {"federated__central_optimizer": {"name": "adam", "epsilon": 0.01}}
MOMENTUM = {"federated__central_optimizer": {"name": "sgd", "momentum": 0.9}}


def stepping(change: Any) -> Plant:
    """Plant another vector into the central step: of the release, and of the sum before noise."""

    def plant(patch: Patch) -> None:
        record, step = PrivateRounds.record, FederatedTrainer._take_central_step
        clean: list[Tensor] = []

        def remember(self: Any, index: int, users: Any, release: Release, *of: Any) -> None:
            clean[:] = [of[0].total / COHORT]
            record(self, index, users, release, *of)

        def wrong(self: Any, mean_update: Tensor, index: int) -> float:
            return step(self, change(mean_update, clean[0]), index)

        patch.setattr(PrivateRounds, "record", remember)
        patch.setattr(FederatedTrainer, "_take_central_step", wrong)

    return plant


def bare_sum(release: Tensor, clean: Tensor) -> Tensor:
    return clean


def bare_sum_of_last_layer(release: Tensor, clean: Tensor) -> Tensor:
    return torch.cat([release[:-10], clean[-10:]])


def evaluate_without_noise(patch: Patch) -> None:
    """The evaluated model is one that was trained beside the private one, without noise."""
    plain: list[Tensor] = []
    record = PrivateRounds.record

    def remember(self: Any, index: int, users: Any, release: Release, *of: Any) -> None:
        plain[:] = [(plain or [self._initial.clone()])[0] + of[0].total / COHORT]
        record(self, index, users, release, *of)

    patch.setattr(PrivateRounds, "record", remember)
    patch.setattr(
        federated.FederatedTrainer,
        "load_central",
        lambda self: self._parts.model.vector.copy_(plain[0]),
    )


def train_between_rounds(patch: Patch) -> None:
    """A hundredth is added to the central parameters before every round but the first."""
    advance = FederatedTrainer.advance

    def wrong(self: Any, index: int) -> dict[str, float]:
        if index > 1:
            self.central.mul_(1.01)
        return advance(self, index)

    patch.setattr(FederatedTrainer, "advance", wrong)


def other_final_model(folder: Path) -> None:
    def move(state: dict[str, Any]) -> None:
        state["trainer"]["central"] += 0.01

    change_checkpoint(max((folder / "checkpoints").glob("step-*.pt")), move)


CENTRAL_BUGS = (
    Bug(
        "second_release",
        "the updates' mean moves the model a second time, without noise",
        "`FederatedTrainer._take_central_step` adds it",
        expects=("central_step",),
        plant=move_by_bare_mean,
    ),
    Bug(
        "bare_sum_steps",
        "the release is recorded, but the central step goes along the sum without noise",
        "`FederatedTrainer._take_central_step` is given the mean before the noise",
        expects=("central_step",),
        plant=stepping(bare_sum),
    ),
    Bug(
        "bare_sum_steps_momentum",
        "the same under momentum",
        "and `central_optimizer` has momentum",
        expects=("central_step",),
        plant=stepping(bare_sum),
        changes=MOMENTUM,
    ),
    Bug(
        "bare_sum_steps_adam",
        "the same under Adam",
        "and `central_optimizer` is Adam",
        expects=("central_step",),
        plant=stepping(bare_sum),
        changes=ADAM,
    ),
    Bug(
        "bare_sum_of_last_layer",
        "the central step takes the last layer's bias from the sum without noise",
        "`FederatedTrainer._take_central_step` is given a mixed vector",
        expects=("central_step",),
        plant=stepping(bare_sum_of_last_layer),
    ),
    Bug(
        "moved_between_rounds",
        "the central parameters move between two rounds",
        "`FederatedTrainer.advance` scales them first",
        expects=("central_step",),
        plant=train_between_rounds,
    ),
    Bug(
        "evaluated_without_noise",
        "the model that is evaluated was trained beside the private one, without noise",
        "`FederatedTrainer.load_central` loads it",
        expects=("central_chain",),
        plant=evaluate_without_noise,
    ),
    Bug(
        "final_model_exchanged",
        "the last checkpoint holds another model",
        "the file is edited",
        expects=("central_step", "central_chain"),
        after=other_final_model,
    ),
)
