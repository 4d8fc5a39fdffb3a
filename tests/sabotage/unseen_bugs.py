"""Bugs that the record of one run cannot show: where the audit ends."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pfl_bench.config_file import ResolvedConfig
from tests.sabotage.clipping_bugs import move_by_bare_mean
from tests.sabotage.noise_bugs import noise_of, normal
from tests.sabotage.planting import Bug, Patch


def noise_named_by_seed(patch: Patch) -> None:
    patch.setattr(ResolvedConfig, "private_seed", lambda self, *_: self.config.seed)


def without_a_direction(total: Tensor, stddev: float, rng: np.random.Generator) -> Tensor:
    noise = normal(total, stddev, rng)
    unit = normal(total, 1.0, np.random.default_rng(7))
    unit /= unit.norm()
    return noise - torch.dot(noise, unit) * unit


UNSEEN = (
    Bug(
        "noise_without_a_direction",
        "noise in all directions but one that is always the same, across all elements",
        "in `noised_mean`",
        unseen="one direction of many is a small part of every number that is recorded; only who "
        "knows which one it is could project the noise on it",
        plant=noise_of(without_a_direction),
    ),
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
        plant=move_by_bare_mean,
    ),
)
