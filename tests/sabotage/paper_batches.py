"""Bugs of the batches of example-level DP-SGD, and of their accounting.

Sources: Abadi et al. 2016; Chua et al. 2024 (shuffled batches accounted as Poisson).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from pfl_bench.rng import Purpose, stream
from pfl_bench.trainers.central import CentralTrainer
from privacy.sampling_scheme import Participation
from privacy.schemes.poisson import Poisson
from tests.sabotage.paper_planting import PaperBug, Patch, registering, wrap
from tests.sabotage.paper_records import account

BUGS: list[PaperBug] = []
bug = registering(BUGS, setting="central_dp")
stated = registering(BUGS, setting="central_dp", effects=("statement",))


def _draw(patch: Patch, change: Any) -> None:
    """Change an epoch's batches: ``change`` of the trainer, the generator and the batches."""

    def drawing(real: Any) -> Any:
        def drawn(self: Any, rng: Any) -> Any:
            return change(self, rng, real(self, rng))

        return drawn

    wrap(patch, CentralTrainer, "_drawn", drawing)


@bug("Batches are cut from a shuffled order, and accounted as Poisson samples.")
def dp_sgd_shuffles(patch: Patch) -> None:
    def cut(trainer: Any, rng: Any, batches: Any) -> Any:
        order = rng.permutation(trainer._split.num_examples)
        return (np.sort(order[32 * k : 32 * (k + 1)]) for k in range(sum(1 for _ in batches)))

    _draw(patch, cut)


@bug("Each epoch has the batches of the first one.")
def dp_sgd_same_batches_in_each_epoch(patch: Patch) -> None:
    def first(real: Any) -> Any:
        return lambda self, rng: real(self, stream(self._batch_seed, Purpose.CENTRAL_BATCHES, 1))

    wrap(patch, CentralTrainer, "_drawn", first)


@bug("The first hundred examples are drawn at twice the rate that is accounted.")
def dp_sgd_favours_some_examples(patch: Patch) -> None:
    def more(_: Any, rng: Any, batches: Any) -> Any:
        return (np.union1d(one, np.flatnonzero(rng.random(100) < 32 / 1199)) for one in batches)

    _draw(patch, more)


@bug("The first example of each batch is in it twice.")
def dp_sgd_takes_example_twice(patch: Patch) -> None:
    _draw(patch, lambda _, __, batches: (np.append(one, one[:1]) for one in batches))


@stated("Epsilon is that of all epochs but the last one.")
def dp_sgd_last_epoch_not_counted(patch: Patch) -> None:
    account(patch, lambda setting, steps: (setting, max(0, steps - 37)))


@stated("Epsilon is that of batches of half the size.")
def dp_sgd_accounts_smaller_batches(patch: Patch) -> None:
    def halved(setting: Any, steps: int) -> Any:
        examples = setting.participation
        half = Participation(Poisson(), examples.population_size, examples.cohort_size / 2)
        return replace(setting, participation=half), steps

    account(patch, halved)


@stated("Shuffled batches are accounted as Poisson samples.",
        changes={"central__sampling": "shuffled"})  # fmt: skip
def dp_sgd_accounts_shuffles_as_poisson(patch: Patch) -> None:
    def amplified(setting: Any, steps: int) -> Any:
        examples = setting.participation
        drawn = Participation(Poisson(), examples.population_size, examples.cohort_size)
        return replace(setting, participation=drawn), steps

    account(patch, amplified)
