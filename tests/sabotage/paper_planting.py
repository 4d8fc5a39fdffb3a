"""What the bugs of ``paper_bugs`` share: their form, how they are run, and how they are planted.

They are written from the papers and from the code that trains, without a look at the audit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.federated.cohort import UpdateAggregator
from pfl_bench.federated.trainer import FederatedTrainer
from pfl_bench.runs.runner import run
from pfl_bench.trainers.central import CentralTrainer
from privacy.mechanism import mean_of
from privacy.mechanisms import gaussian
from tests.helpers import make_config
from tests.sabotage import planting
from tests.sabotage.planting import SMALL

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]
Noise = NDArray[np.float64]
Effect = Literal["model", "statement", "ledger", "selection", "checkpoint"]

USERS, COHORT = 300, 50
ROUNDS, HALF = 20, 10
PRIVATE: dict[str, Any] = {
    **SMALL,
    "task__num_users": USERS,
    "federated__cohort_size": COHORT,
    "privacy__population_size": USERS,
    "federated__num_rounds": ROUNDS,
    "checkpoint__every": HALF,
}
SELECTED = {**planting.SELECTED, "federated__max_participations": 5}
TREE = {
    **planting.TREE,
    "privacy__mechanism": {**planting.TREE["privacy__mechanism"], "restart_every": ROUNDS // 3},
}
SMALLER_COHORT = {**planting.SMALLER_COHORT, "privacy__noise_cohort_size": 2 * COHORT}
CENTRAL_DP: dict[str, Any] = {"evaluation__every": 1000, "evaluation__splits": []}
MICRO = {"central__physical_batch_size": 8}
EPOCHS = 4


@dataclass(frozen=True)
class PaperBug:
    """One privacy bug, planted into a small private run of the real code.

    Attributes:
        name: Machine name, unique.
        description: What is wrong, in one sentence.
        plant: Changes the code that runs.
        changes: Of the configuration of the small run.
        effects: What comes out otherwise than in the sound run. Of all but "ledger" and
            "checkpoint" (what that holds beside the model), what is not named comes out alike.
        setting: "private_federated" or "central_dp".
        interrupt_after: Round (epoch) after which the run is interrupted, and then resumed.
        store: Writes the task's data, if they are not there, and gives their path; None for none.
        own: Whether it is in a user's own code, which the audit has too.
    """

    name: str
    description: str
    plant: Plant
    changes: Mapping[str, Any] = field(default_factory=dict)
    effects: tuple[Effect, ...] = ("model",)
    setting: str = "private_federated"
    interrupt_after: int | None = None
    store: Callable[[], str] | None = None
    own: bool = False

    @property
    def config(self) -> ResolvedConfig:
        """The small run that the bug is planted into."""
        small = PRIVATE if self.setting == "private_federated" else CENTRAL_DP
        data = {} if self.store is None else {"task__data": self.store()}
        return make_config(self.setting, **{**small, **self.changes, **data})


def registering(
    bugs: list[Any], make: Callable[..., Any] = PaperBug, **defaults: Any
) -> Callable[..., Callable[[Plant], Plant]]:
    """A decorator that makes a bug of a function, by whose name it goes.

    Args:
        bugs: Takes it in.
        make: What a bug is made by, of name, description, plant and attributes.
        **defaults: Attributes of all bugs.
    """

    def bug(description: str, **attributes: Any) -> Callable[[Plant], Plant]:
        def register(plant: Plant) -> Plant:
            given = {**defaults, **attributes}
            bugs.append(make(plant.__name__, description, plant, **given))
            return plant

        return register

    return bug


def drive(bug: PaperBug, folder: Path, planted: bool = True) -> dict[str, Any]:
    """Run as the bug asks for, interrupted and resumed if it says so.

    Args:
        bug: What to plant.
        folder: Of the run; need not exist.
        planted: Whether to plant it; without, the sound run.

    Returns:
        The run's summary.
    """
    config = bug.config
    with Patch.context() as patch:
        if planted:
            bug.plant(patch)
        if bug.interrupt_after is None:
            return run(config, folder)
        _interrupt(config, folder, bug.interrupt_after)
        return run(config, folder, resume=True)


def _interrupt(config: ResolvedConfig, folder: Path, after: int) -> None:
    def stopping(real: Any) -> Any:
        def advance(self: Any, index: int) -> dict[str, float]:
            if index > after:
                raise KeyboardInterrupt
            scalars: dict[str, float] = real(self, index)
            return scalars

        return advance

    with Patch.context() as patch:
        for trainer in (FederatedTrainer, CentralTrainer):
            wrap(patch, trainer, "advance", stopping)
        with pytest.raises(KeyboardInterrupt):
            run(config, folder)


def wrap(patch: Patch, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Put in the place of a function what ``make`` gives for it."""
    patch.setattr(owner, name, make(getattr(owner, name)))


def change_noise(patch: Patch, change: Callable[[Noise, Noise, int], Noise]) -> None:
    """Change the noise of the Gaussian mechanism, which goes on to claim what it would have been.

    Args:
        patch: Undone by the caller.
        change: Of the round's noise, the bare sum, both of shape (P,), and how many releases came
            before, to the noise that is added.
    """
    rounds = counter()

    def noised_mean(total: Any, stddev: float, cohort_size: float, rng: Any) -> torch.Tensor:
        noise = stddev * rng.standard_normal(total.numel())
        changed = change(noise, total.double().numpy(), rounds())
        return mean_of(total, cohort_size, changed.astype(np.float32))

    patch.setattr(gaussian, "noised_mean", noised_mean)


def counter() -> Callable[[], int]:
    """Gives 0, 1, 2, ..."""
    calls = iter(range(1 << 30))
    return lambda: next(calls)


def follow_clients(patch: Patch) -> SimpleNamespace:
    """Tell plants which client is taken in: ``index`` is the round, ``client`` the user.

    Args:
        patch: Undone by the caller.
    """
    now = SimpleNamespace(index=0, client=-1)

    def knowing(real: Any) -> Any:
        def add(self: Any, aggregate: Any, update: Any, weight: float, index: int, client: int):
            now.index, now.client = index, client
            return real(self, aggregate, update, weight, index, client)

        return add

    wrap(patch, UpdateAggregator, "add", knowing)
    return now
