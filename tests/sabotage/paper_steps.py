"""Bugs of the central step, and of what is released after it.

Sources: Reddi et al. 2021 (central optimizers); what is released beside the noised sum in practice.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from pfl_bench.federated.trainer import FederatedTrainer
from pfl_bench.federated.workers.messages import SharedTraining
from tests.sabotage.paper_planting import ROUNDS, PaperBug, Patch, registering, wrap

BUGS: list[PaperBug] = []
bug = registering(BUGS)


def _change_step(patch: Patch, change: Any) -> None:
    """Step along what ``change`` makes of the noised mean, the bare one, and the round."""
    now = SimpleNamespace(bare=None)

    def noting(real: Any) -> Any:
        def train(self: Any, *given: Any) -> Any:
            aggregate, counted = real(self, *given)
            now.bare = aggregate.total.clone() / self._cohort_size
            return aggregate, counted

        return train

    def stepping(real: Any) -> Any:
        def step(self: Any, mean_update: Any, index: int) -> float:
            rate: float = real(self, change(mean_update, now.bare, index), index)
            return rate

        return step

    wrap(patch, SharedTraining, "train", noting)
    wrap(patch, FederatedTrainer, "_take_central_step", stepping)


@bug("The central step goes a tenth of its way along the bare mean.")
def step_partly_bare(patch: Patch) -> None:
    _change_step(patch, lambda noised, bare, _: torch.lerp(noised, bare, 0.1))


@bug("The last round's step is along the bare mean; its ledger line holds the noised one.")
def step_bare_in_last_round(patch: Patch) -> None:
    _change_step(patch, lambda noised, bare, index: bare if index == ROUNDS else noised)


@bug("The noised mean is scaled to the length of the bare one.")
def step_of_bare_length(patch: Patch) -> None:
    _change_step(patch, lambda noised, bare, _: noised * (bare.norm() / noised.norm()))


@bug("Every fifth round's update is applied twice.")
def step_taken_twice(patch: Patch) -> None:
    _change_step(patch, lambda noised, _, index: noised * (1 + (index % 5 == 0)))


@bug("Elements whose noised mean has another sign than the bare one are left where they are.")
def step_masked_by_bare_sign(patch: Patch) -> None:
    _change_step(patch, lambda noised, bare, _: noised * (noised * bare >= 0))


@bug("Momentum is that of the bare means, beside a step along the noised one.")
def step_with_momentum_of_bare_means(patch: Patch) -> None:
    past = [torch.zeros(())]

    def pushed(noised: Any, bare: Any, _: int) -> Any:
        past[0] = 0.5 * past[0] + bare
        return noised + 0.1 * past[0]

    _change_step(patch, pushed)


@bug("The model that is released is that of the round of the lowest bare training loss.")
def released_model_chosen_by_training_loss(patch: Patch) -> None:
    best = SimpleNamespace(loss=float("inf"), model=None)

    def choosing(real: Any) -> Any:
        def advance(self: Any, index: int) -> dict[str, float]:
            before = self.central.clone()
            scalars: dict[str, float] = real(self, index)
            if scalars["train/loss"] < best.loss and index > 1:
                best.loss, best.model = scalars["train/loss"], before
            if index == ROUNDS:
                self.central.copy_(best.model)
            return scalars

        return advance

    wrap(patch, FederatedTrainer, "advance", choosing)
