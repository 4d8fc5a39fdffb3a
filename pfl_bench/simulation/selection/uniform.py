"""Uniform selection among all users, available or not: who is not available is lost.

With devices that are always available, no over-commitment and no deadline it is ``fixed_size``
sampling, draw for draw.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pfl_bench.config.training import NoOptions
from pfl_bench.simulation.selectors import Ids, Selector, Users

Options = NoOptions


@dataclass(frozen=True, slots=True)
class Uniform(Selector):
    """Everybody with the same probability."""

    only_available: bool

    def select(self, candidates: Ids, number: int, index: int, rng: np.random.Generator) -> Ids:
        """Choose uniformly, without replacement."""
        size = min(number, len(candidates))
        return candidates[rng.choice(len(candidates), size=size, replace=False, shuffle=False)]


def build(options: Options, users: Users) -> Uniform:
    """Build the selection among all users."""
    return Uniform(only_available=False)
