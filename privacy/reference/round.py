"""One private round: cohort, clients, clip, sum, noise, mean, central step.

Every line of ``recompute`` is a line of the algorithm (McMahan et al. 2018, algorithm 1). The sum
and what is added to it are float64; the central parameters are float32 between rounds, as clients
receive them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privacy.reference import cohort
from privacy.reference.central import Optimizer, rate
from privacy.reference.client import Learner, Trained, train
from privacy.reference.devices import Devices
from privacy.reference.noise import Gaussian
from privacy.reference.streams import NOISE, stream


@dataclass(frozen=True)
class Rule:
    """What is the same in each round.

    Attributes:
        options: ``pfl_bench.config.training.FederatedOptions``, of which fields are read.
        seed: The private seed, of cohorts and noise.
        num_users: Users of the training split.
        learner: Data, model and loss.
        correction: The algorithm's hook: what it adds to the gradients of a user's steps.
        send: Its hook, and that of compression: what is sent for what a user trained in a round.
        gradient: Its hook: the central gradient of a mean update.
    """

    options: Any
    seed: int
    num_users: int
    learner: Learner
    correction: Callable[[int], Tensor | None]
    send: Callable[[int, Trained, int], Tensor]
    gradient: Callable[[Tensor], Tensor]


@dataclass
class State:
    """What changes from round to round.

    Attributes:
        central: Shape (P,), float32.
        mechanism: Has the bound.
        optimizer: Has the moments.
        devices: Have the clock; None where users are drawn.
    """

    central: Tensor
    mechanism: Gaussian
    optimizer: Optimizer
    devices: Devices | None = None


@dataclass(frozen=True)
class Contribution:
    """What one client brought into the sum.

    Attributes:
        user: Whose.
        num_examples: Examples that it trained on, once each.
        num_steps: Its steps.
        loss: Their mean loss.
        norm: Norm of what was sent, before it was clipped; NaN or infinite if it was not finite,
            and then it contributed nothing.
        clipped: Norm after.
        traces: A few numbers of the contribution, by which it is told from others.
    """

    user: int
    num_examples: int
    num_steps: int
    loss: float
    norm: float
    clipped: float
    traces: NDArray[np.float64]

    @property
    def is_finite(self) -> bool:
        """Whether it counts."""
        return bool(np.isfinite(self.norm))


@dataclass
class Round:
    """A round, computed again.

    Attributes:
        number: From 1.
        users: Shape (n,): the cohort, ascending.
        bound: The clipping bound.
        stddev: Standard deviation of an element's noise.
        count_stddev: That of the noise on the count; None where no count is released.
        contributions: Of each user, in this order.
        total: Shape (P,), float64: the sum of the clipped updates.
        noise: Shape (P,), float64: what is added to it.
        fraction: Noisy fraction of updates within the bound; None where none is released.
        rate: Learning rate of the central step.
        before: Shape (P,), float32: central parameters before the step.
        central: Shape (P,), float32: those after it.
    """

    number: int
    users: NDArray[np.int64]
    bound: float
    count_stddev: float | None
    before: Tensor
    total: Tensor
    contributions: list[Contribution] = field(default_factory=list)
    noise: Tensor = field(default_factory=lambda: torch.empty(0))
    fraction: float | None = None
    rate: float = 0.0
    central: Tensor = field(default_factory=lambda: torch.empty(0))
    stddev: float = 0.0
    margin: float = math.inf
    follows: float = 0.0


def recompute(
    number: int,
    rule: Rule,
    state: State,
    trace: Callable[[Tensor], NDArray[np.float64]],
    go_on: Callable[[], None],
) -> Round:
    """Compute a round; the state is then that of the next one.

    Args:
        number: From 1.
        rule: What is the same in each round.
        state: Of this round.
        trace: A few numbers of a vector of shape (P,), by which a contribution is told from others.
        go_on: Called before each client; may raise to give up.
    """
    options, mechanism, central = rule.options, state.mechanism, state.central
    mechanism.begin(number)
    if state.devices is not None:
        users = state.devices.draw(number, rule.seed)
    else:
        users = cohort.draw(
            options.sampling, rule.seed, number, rule.num_users, options.cohort_size,
            options.separation,
        )  # fmt: skip
    made = Round(
        number, users, mechanism.bound, mechanism.count_stddev, central,
        torch.zeros(central.numel(), dtype=torch.float64), follows=mechanism.follows,
    )  # fmt: skip
    local, rounds = rule.learner.local, options.num_rounds
    local_rate = rate(local.learning_rate, options.local_schedule, number, rounds)
    bits = 0.0
    for user in users.tolist():
        go_on()
        trained = train(rule.learner, central, user, number, local_rate, rule.correction(user))
        sent = rule.send(user, trained, number)
        norm, contribution = mechanism.norm(sent), mechanism.clip(sent)
        if np.isfinite(norm):
            made.total += contribution
            bits += 0.5 if norm <= made.bound else -0.5
        mechanism.report(user, contribution if np.isfinite(norm) else torch.zeros_like(made.total))
        made.contributions.append(
            Contribution(
                user, trained.num_examples, trained.num_steps, trained.loss,
                norm, mechanism.norm(contribution), trace(contribution),
            )
        )  # fmt: skip
    rng = stream(rule.seed, NOISE, number)
    made.noise, made.stddev, made.margin = mechanism.noise(rng), mechanism.stddev, mechanism.margin
    made.fraction = mechanism.move(bits, rng)
    mean = (made.total + made.noise) / options.cohort_size
    made.rate = rate(
        options.central_learning_rate, options.central_schedule, number, options.num_rounds
    )
    gradient = rule.gradient(mean.float())
    made.central = state.optimizer.step(central, gradient, made.rate).float()
    state.central = made.central
    return made
