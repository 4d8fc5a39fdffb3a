"""Bugs that the record of one run cannot show: where the audit ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pfl_bench.engine.sequential import SequentialEngine
from tests.sabotage.noise_bugs import noise_of, normal
from tests.sabotage.planting import Bug, Patch


def train_on_from_the_last(patch: Patch) -> None:
    """A client begins where the client before it has ended, and sends the way of both."""
    real = SequentialEngine._train_client
    last: dict[str, Any] = {}

    def train(self: SequentialEngine, user: int, examples: Any, index: int, central: Tensor) -> Any:
        start = last["end"] if last.get("round") == index else central
        result = real(self, user, examples, index, start)
        last.update(round=index, end=self._model.vector.detach().clone())
        result.update.add_(start - central)
        return result

    patch.setattr(SequentialEngine, "_train_client", train)


def without_a_direction(total: Tensor, stddev: float, rng: np.random.Generator) -> Tensor:
    noise = normal(total, stddev, rng)
    unit = normal(total, 1.0, np.random.default_rng(7))
    unit /= unit.norm()
    return noise - torch.dot(noise, unit) * unit


UNSEEN = (
    Bug(
        "client_trains_on",
        "a client trains on from the client before, so that one user moves others' updates",
        "`SequentialEngine._train_client` begins elsewhere",
        unseen="the record begins where an update is taken in: what an update was computed from, "
        "only training it again would show",
        plant=train_on_from_the_last,
    ),
    Bug(
        "noise_without_a_direction",
        "noise in all directions but one that is always the same, across all elements",
        "in `noised_mean`",
        unseen="one direction of many is a small part of every number that is recorded; only who "
        "knows which one it is could project the noise on it",
        plant=noise_of(without_a_direction),
    ),
)
