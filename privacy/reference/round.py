"""One private round: cohort, clients, clip, sum, noise, mean, central step.

Every line of ``recompute`` is a line of the algorithm (McMahan et al. 2018, algorithm 1). The sum
and what is added to it are float64; the central parameters are float32 between rounds, as clients
receive them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privacy.reference import cohort
from privacy.reference.central import Optimizer, rate
from privacy.reference.client import Learner, Trained, train
from privacy.reference.correlated import Correlated
from privacy.reference.devices import Devices
from privacy.reference.noise import AdaptiveGaussian, Gaussian, Laplace
from privacy.reference.reports import LocalGaussian, PrivUnit
from privacy.reference.streams import NOISE, stream

# A few numbers of a vector of shape (P,), by which a contribution is told from others.
Trace = Callable[[Tensor], NDArray[np.float64]]
MECHANISMS: dict[str, type[Gaussian]] = {
    "gaussian": Gaussian,
    "adaptive_gaussian": AdaptiveGaussian,
    "laplace": Laplace,
    "tree_aggregation": Correlated,
    "banded_matrix_factorization": Correlated,
    "banded_inverse_square_root": Correlated,
    "column_normalized_banded": Correlated,
    "buffered_toeplitz": Correlated,
    "local_gaussian": LocalGaussian,
    "privunit": PrivUnit,
}


@dataclass(frozen=True)
class Rule:
    """Parts of a run that are the same in each round."""

    options: Any  # ``pfl_bench.config.training.FederatedOptions``, of which fields are read
    seed: int  # the private one
    num_users: int  # of the training split
    learner: Learner
    # The algorithm's hooks: what it adds to the gradients of a user's steps; what is sent for what
    # a user trained in a round (and compressed); the central gradient of a mean update.
    correction: Callable[[int], Tensor | None]
    send: Callable[[int, Trained, int], Tensor]
    gradient: Callable[[Tensor], Tensor]
    # The same by a copy of the algorithm, of which nothing stays; None for a plain step.
    trial: Callable[[Tensor], Tensor] | None = None
    canaries: Any = None  # options of an auditor's canaries; None for none
    # From a round to the part of the local rate that it uses, where an algorithm of the user's own
    # says so; None for the options' schedule.
    schedule: Callable[[int], float] | None = None


@dataclass
class State:
    """State from round to round: the bound in ``mechanism``, moments in ``optimizer``."""

    central: Tensor  # shape (P,), float32
    mechanism: Gaussian
    optimizer: Optimizer
    counts: NDArray[np.int64]  # shape (N,): rounds that each user was in
    last: NDArray[np.int64]  # shape (N,): the last of them; 0 for none
    devices: Devices | None = None  # with the clock; None where users are drawn


@dataclass(frozen=True)
class Contribution:
    """Contribution of one client to the sum."""

    user: int  # those of canaries come after all users
    trained: Trained | None  # without the update; None for a canary
    norm: float  # of what was sent; not finite if that was not, and then it contributed nothing
    clipped: float  # norm after
    traces: NDArray[np.float64]


@dataclass
class Round:
    """A round, computed again; each vector has shape (P,)."""

    users: NDArray[np.int64]  # shape (n,): the cohort, ascending
    mechanism: Gaussian  # in its state after the round
    bound: float
    before: Tensor  # central parameters before the step, float32
    total: Tensor  # sum of the clipped updates, float64
    reports: Tensor | None = None  # the sum of what users sent, where canaries send too
    length: float = 0.0  # its norm, as the bound has it
    contributions: list[Contribution] = field(default_factory=list)  # of each user, in this order
    noise: Tensor = field(default_factory=lambda: torch.empty(0))  # what is added to it, float64
    stddev: float = 0.0  # of an element's noise
    fraction: float | None = None  # noisy, of updates within the bound
    gradient: Tensor = field(default_factory=lambda: torch.empty(0))  # of the central step, float32
    rate: float = 0.0  # of the central step
    central: Tensor = field(default_factory=lambda: torch.empty(0))  # after the step, float32
    # Distance of the first client's update from the same, computed once more after all others'.
    again: float = 0.0
    # How far the central gradient of the same sum under other noise goes with this round's noise:
    # a standard normal number, unless the algorithm knows the noise.
    knows: float = 0.0


def recompute(
    number: int, rule: Rule, state: State, trace: Trace, go_on: Callable[[], None]
) -> Round:
    """Compute a round, from 1, and move the state on; ``go_on`` may raise to give up."""
    o, mechanism, central = rule.options, state.mechanism, state.central
    mechanism.begin(number)
    chance, most = o.cohort_size * o.separation / rule.num_users, None
    if state.devices is None:
        sizes = (rule.num_users, o.cohort_size, o.separation)
        users = cohort.draw(o.sampling, rule.seed, number, *sizes)
    else:
        users = state.devices.draw(number, rule.seed, state.counts, state.last)
        chance, most = 1.0, o.max_participations
    state.counts[users] += 1
    state.last[users] = number
    total = torch.zeros(len(central), dtype=torch.float64)
    made = Round(users, mechanism, mechanism.bound, central, total)
    bits = 0.0

    def add(user: int, trained: Trained | None, sent: Tensor) -> None:
        nonlocal bits
        sent = sent.double()
        norm = mechanism.norm(sent)
        contribution = mechanism.clip(sent, norm)
        if np.isfinite(norm):
            made.total += contribution
            bits += 0.5 if norm <= made.bound else -0.5
        mechanism.report(user, contribution if np.isfinite(norm) else torch.zeros_like(made.total))
        clipped, traces = mechanism.norm(contribution), trace(contribution)
        # Not the update: memory is that of one client, whatever the cohort.
        trained = trained and replace(trained, update=torch.empty(0))
        made.contributions.append(Contribution(user, trained, norm, clipped, traces))

    local, first = rule.learner.local, central
    local_rate = rate(local.learning_rate, o.local_schedule, number, o.num_rounds)
    if rule.schedule is not None:
        local_rate = local.learning_rate * rule.schedule(number)

    def work(user: int) -> tuple[Trained, Tensor]:
        correction = rule.correction(user)
        trained = train(rule.learner, central, user, number, local_rate, correction, go_on)
        return trained, rule.send(user, trained, number)

    for user in users.tolist():
        go_on()
        trained, update = work(user)
        first = update.clone() if user == users[0] else first
        add(user, trained, update)
    if len(users):
        # Data, model, loss and hooks are the run's: what they remember would tie clients together.
        last = work(int(users[0]))[1]
        # One that is not finite is compared too: infinity less itself is no number.
        made.again = float((last.nan_to_num().double() - first.nan_to_num().double()).norm())
    if rule.canaries is not None:
        made.reports = made.total + mechanism.reports
        turn = (number, o.separation, most, chance)
        sent = cohort.canaries(rule.canaries, rule.seed, turn, len(central), made.bound)
        for index, update in enumerate(sent):
            add(rule.num_users + index, None, update)
    made.length = mechanism.norm(made.total)
    rng = stream(rule.seed, NOISE, number)
    made.noise, made.stddev = mechanism.noise(rng), mechanism.stddev
    made.fraction = mechanism.move(bits, rng)
    mean = (made.total + made.noise) / o.cohort_size
    if rule.trial is not None and mechanism.is_fresh:
        # Independent elements, each moved on by one, are as another draw.
        other = rule.trial(((made.total + made.noise.roll(1)) / o.cohort_size).float()).double()
        along = torch.nn.functional.cosine_similarity(other, made.noise, dim=0)
        made.knows = float(along) * math.sqrt(len(central))
    made.rate = rate(o.central_learning_rate, o.central_schedule, number, o.num_rounds)
    made.gradient = rule.gradient(mean.float())
    state.central = made.central = state.optimizer.step(central, made.gradient, made.rate).float()
    return made
