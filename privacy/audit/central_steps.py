"""Central optimizers in numpy, coordinate by coordinate, independent of those that runs use.

Guarantee: none of its own. ``steps_of`` gives the step of each round from the recorded parameters
before it and the recorded releases, with the optimizer's state built up from the first round. The
gradient of a round is the release with its sign changed, or what the algorithm's own function makes
of the release where there is one.

Source: torch.optim's documentation (SGD, Adam, AdamW, Adagrad); Zaheer et al. 2018 and Reddi et al.
2021, algorithm 2 (Yogi); Kingma and Ba 2015, section 2 (epsilon hat).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Yogi's second moment starts there.
_YOGI_START = 1e-6
# Nearer than this times the root of the rounds, relative, rounding decides the sign by which Yogi's
# second moment moves: the rounding of each round adds up like a random walk.
_UNDECIDED = 1e-6


@dataclass(frozen=True, slots=True)
class CentralOptimizer:
    """The central step as configured."""

    name: str  # "sgd", "adam", "adamw", "adagrad" or "yogi"
    momentum: float  # of sgd
    beta1: float  # of adam, adamw, yogi
    beta2: float  # of adam, adamw, yogi
    epsilon: float  # of all but sgd
    epsilon_hat: bool  # whether epsilon is added before the bias is corrected (adam)
    weight_decay: float  # penalty; decoupled for adamw
    rates: Array  # shape (T,): the learning rate of each round
    # An algorithm's own function, from the coordinates of all releases, shape (T, k), to those of
    # the gradients; None for the releases with their sign changed.
    gradient: Callable[[Array], Array] | None = None

    @property
    def is_linear(self) -> bool:
        """Whether a step is linear in parameters and releases, so that projections follow it."""
        return self.name == "sgd" and self.gradient is None


def steps_of(optimizer: CentralOptimizer, before: Array, release: Array) -> tuple[Array, Array]:
    """Steps: what each adds, and its scale, which is its size if no terms cancelled.

    ``before`` and ``release`` are coordinates (or, for sgd, projections) of the parameters before
    each step and of the releases. All have shape (T, k); NaN where a step cannot be told.
    """
    decay = optimizer.weight_decay
    own = -release if optimizer.gradient is None else optimizer.gradient(release)
    gradient = own + (0.0 if optimizer.name == "adamw" else decay) * before
    rates = optimizer.rates[: len(before), None]
    if optimizer.name == "sgd":
        return (
            -rates * _moving(gradient, optimizer.momentum, 1.0),
            rates * _moving(np.abs(gradient), optimizer.momentum, 1.0),
        )
    if optimizer.name == "adagrad":
        scale = rates / (np.sqrt(np.cumsum(gradient**2, axis=0)) + optimizer.epsilon)
        return -scale * gradient, scale * np.abs(gradient)
    first = _moving(gradient, optimizer.beta1, 1.0 - optimizer.beta1)
    size = _moving(np.abs(gradient), optimizer.beta1, 1.0 - optimizer.beta1)
    if optimizer.name == "yogi":
        scale = rates / (np.sqrt(_yogi_seconds(gradient, optimizer.beta2)) + optimizer.epsilon)
        return -scale * first, scale * size
    number = np.arange(1.0, len(before) + 1.0)[:, None]
    first_bias, second_bias = 1.0 - optimizer.beta1**number, 1.0 - optimizer.beta2**number
    second = _moving(gradient**2, optimizer.beta2, 1.0 - optimizer.beta2)
    epsilon = optimizer.epsilon / (np.sqrt(second_bias) if optimizer.epsilon_hat else 1.0)
    scale = rates / first_bias / (np.sqrt(second / second_bias) + epsilon)
    step = -scale * first
    if optimizer.name == "adamw":
        step = step - rates * decay * before
    return step, scale * size


def _moving(values: Array, keep: float, weight: float) -> Array:
    """Averages a_t = keep a_(t-1) + weight v_t, from 0; shape (T, k)."""
    from scipy import signal

    return np.asarray(signal.lfilter([weight], [1.0, -keep], values, axis=0))


def _yogi_seconds(gradient: Array, beta2: float) -> Array:
    """Second moments; NaN from where rounding decides by which sign one moves."""
    squares, made = gradient**2, np.empty_like(gradient)
    second = np.full(gradient.shape[1:], _YOGI_START)
    for index, square in enumerate(squares):
        difference = square - second
        second = second + (1.0 - beta2) * np.sign(difference) * square
        near = _UNDECIDED * np.sqrt(index + 1.0) * square
        second[np.abs(difference) < near] = np.nan
        made[index] = second
    return made
