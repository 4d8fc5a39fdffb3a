"""The central steps of all rounds, coordinate by coordinate, by the reference's optimizers.

Guarantee: none of its own. ``steps_of`` gives the step of each round from the recorded parameters
before it and the recorded releases, with the optimizer's state built up from the first round. The
gradient of a round is the release with its sign changed, or what the algorithm's own function makes
of the release where there is one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from privacy.reference.central import Optimizer

Array = NDArray[np.float64]

# Nearer than this times the root of the rounds, relative, rounding decides the sign by which Yogi's
# second moment moves: the rounding of each round adds up like a random walk.
_UNDECIDED = 1e-6


@dataclass(frozen=True, slots=True)
class CentralOptimizer:
    """The central step as configured."""

    options: Any  # ``pfl_bench.config.training.OptimizerOptions``, of which fields are read
    rate: Callable[[int], float]  # the learning rate of a round, from 1
    # An algorithm's own function, from the coordinates of all releases, shape (T, k), to those of
    # the gradients; None for the releases with their sign changed.
    gradient: Callable[[Array], Array] | None = None

    def rates(self, rounds: int) -> Array:
        """Learning rates of the first rounds, shape (T,)."""
        return np.array([self.rate(number) for number in range(1, rounds + 1)])

    @property
    def is_linear(self) -> bool:
        """Whether a step is linear in parameters and releases, so that projections follow it."""
        return self.options.name == "sgd" and self.gradient is None


def steps_of(optimizer: CentralOptimizer, before: Array, release: Array) -> tuple[Array, Array]:
    """Steps: what each adds, and its scale, which is its size if no terms cancelled.

    ``before`` and ``release`` are coordinates (or, for sgd, projections) of the parameters before
    each step and of the releases. All have shape (T, k); NaN where a step cannot be told.
    """
    own = -release if optimizer.gradient is None else optimizer.gradient(release)
    options, width = optimizer.options, before.shape[1]
    steps, sizes = Optimizer(options, width), Optimizer(options, width)
    decay, zero = 0.0 if options.name == "adamw" else options.weight_decay, torch.zeros(width)
    step, scale = np.empty_like(before), np.empty_like(before)
    for t, (x, g, rate) in enumerate(
        zip(torch.from_numpy(before), torch.from_numpy(own), optimizer.rates(len(own)), strict=True)
    ):
        whole = g + decay * x
        if options.name == "yogi":
            near = (steps.second - whole**2).abs() < _UNDECIDED * (t + 1.0) ** 0.5 * whole**2
            steps.second[near] = torch.nan
        step[t] = steps.step(x, g, rate) - x
        scale[t] = -sizes.step(zero, whole.abs(), rate)
    return step, scale
