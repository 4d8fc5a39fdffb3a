"""Bugs that the record of one run cannot show: where the audit ends."""

from __future__ import annotations

from typing import Any

from pfl_bench import private_seed
from pfl_bench.private_seed import PrivateSeed
from tests.sabotage.clipping_bugs import move_by_bare_mean
from tests.sabotage.planting import Bug, Patch


def noise_named_by_seed(patch: Patch) -> None:
    def derive(resolved: Any, *_: Any, **__: Any) -> PrivateSeed:
        return PrivateSeed(resolved.config.seed, None, {})

    patch.setattr(private_seed, "derive", derive)


UNSEEN = (
    Bug(
        "noise_of_another_run",
        "two runs on the same data share their noise",
        "`private_seed.derive` is the seed alone",
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
        plant=move_by_bare_mean,
    ),
)
