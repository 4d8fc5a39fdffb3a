"""Trade-off functions: the least false negatives of any test at each rate of false positives.

Guarantee: if a mechanism is f-DP, then for every set S of outputs and both orders of two
neighbouring inputs, P(S) <= 1 - f(Q(S)). A curve through finitely many pairs (epsilon, delta) that
a mechanism satisfies is a weaker claim than the mechanism's own, so refuting the curve refutes it.
Adjacency add-or-remove-one or zero-out: under both, an event is moved by the whole of its
sensitivity, and once. (Under replace-one, which moves it twice as far, nothing is said.)

Source: Dong, Roth, Su 2022, "Gaussian differential privacy", definition 2.1, proposition 2.12.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privacy.accountant import LARGEST_EPSILON, compute_epsilon, is_exact
from privacy.amplification import Composition
from privacy.empirical.gaussian_dp import delta_of_mu, epsilon_of_mu
from privacy.errors import PlanError

# Pessimistic rounding of the accountant pld adds less than this part of epsilon for 40,000 rounds
# (privacy.accountant), which a lower bound must not claim.
_PLD_SLACK = 0.002
_CURVE_POINTS = 400
# A claim beyond it allows any guess to be right, and its curve would fill the memory.
_LARGEST_CURVE = 300.0
_ADJACENCIES = ("add-or-remove-one", "zero-out")


@dataclass(frozen=True, slots=True)
class GaussianTradeOff:
    """mu-GDP: as hard as telling N(0, 1) from N(mu, 1).

    Attributes:
        mu: At least 0.
    """

    mu: float

    def least_false(self, true: float) -> float:
        """Least Q(S) of a set with P(S) >= ``true``, in [0, 1]: the inverse of x -> 1 - f(x).

        Phi(Phi^-1(true) - mu).
        """
        from scipy.special import ndtr, ndtri

        if true <= 0.0:
            return 0.0
        return float(ndtr(ndtri(min(true, 1.0)) - self.mu))

    def delta_at(self, epsilon: float) -> float:
        """Smallest delta at which the claim gives (epsilon, delta); ``epsilon`` at least 0."""
        return delta_of_mu(self.mu, epsilon) if self.mu > 0.0 else 0.0


class CurveTradeOff:
    """All of finitely many (epsilon, delta) at once, in both orders of the inputs.

    Attributes:
        epsilons: Shape (K,), at least 0.
        deltas: Shape (K,), in [0, 1].
    """

    def __init__(self, epsilons: NDArray[np.float64], deltas: NDArray[np.float64]) -> None:
        self.epsilons, self.deltas = epsilons, deltas
        self._shrink, self._grow = np.exp(-epsilons), np.exp(np.minimum(epsilons, 700.0))

    def least_false(self, true: float) -> float:
        """Least Q(S), as above.

        From P(S) <= e^eps Q(S) + delta, and the same of the complements the other way round.
        """
        of_set = float(np.max((true - self.deltas) * self._shrink))
        of_complement = float(np.max(1.0 - self.deltas - (1.0 - true) * self._grow))
        return max(of_set, of_complement, 0.0)

    def delta_at(self, epsilon: float) -> float:
        """Delta of the largest of the claim's epsilons that is at most ``epsilon``, at least 0."""
        known = self.deltas[self.epsilons <= epsilon]
        return float(known.min()) if known.size else 1.0


# What a claim allows a test to be.
TradeOff = GaussianTradeOff | CurveTradeOff


def is_gaussian(composition: Composition) -> bool:
    """Whether each event is a Gaussian, plain or sampled."""
    from dp_accounting import dp_event

    event = composition.event
    return isinstance(getattr(event, "event", event), dp_event.GaussianDpEvent)


# Of one noise and then another: a run, its audit and those of its other seeds ask the same.
@lru_cache(maxsize=256)
def trade_off_of(composition: Composition) -> TradeOff | None:
    """The trade-off function that composed equal events have, by their accounting.

    Exact for plain Gaussians, else a curve by PLD; None where PLD does not know the event, under
    replace-one, or where nothing is claimed (an epsilon of hundreds).
    """
    from dp_accounting import dp_event, pld
    from dp_accounting.privacy_accountant import UnsupportedEventError

    event, count = composition.event, composition.count
    if composition.adjacency not in _ADJACENCIES:
        return None
    if isinstance(event, dp_event.GaussianDpEvent):
        if event.noise_multiplier == 0.0:
            return None
        return GaussianTradeOff(math.sqrt(count) / event.noise_multiplier)
    # RDP is quick, but does not know every event that PLD knows (sampled Laplace noise).
    rough = "rdp" if is_gaussian(composition) else "pld"
    if compute_epsilon(event, count, 1e-9, rough, composition.adjacency) > _LARGEST_CURVE:
        return None
    # Coarser than for a claim: that makes the curve a little weaker, never wrong.
    interval = min(1e-3, 0.1 / math.sqrt(max(count, 1)))
    accountant = pld.PLDAccountant(value_discretization_interval=interval)
    try:
        accountant.compose(event, count)
    except UnsupportedEventError:
        return None
    furthest = float(accountant.get_epsilon(1e-12))
    if not math.isfinite(furthest):
        return None
    epsilons = np.linspace(0.0, max(furthest, 1e-6), _CURVE_POINTS)
    deltas: Any = accountant.get_delta(epsilons)
    return CurveTradeOff(epsilons, np.clip(np.asarray(deltas, dtype=np.float64), 0.0, 1.0))


def sure_epsilon(composition: Composition, delta: float) -> float | None:
    """Epsilon of composed equal events, not above the smallest that is true of them.

    Exact for plain Gaussians, else PLD's less its slack, 0 where that is beyond what it can
    compute; None under replace-one, or where PLD does not know the event (RDP would overstate
    epsilon, which a lower bound must not).
    """
    from dp_accounting import dp_event

    event, count = composition.event, composition.count
    if composition.adjacency not in _ADJACENCIES:
        return None
    if count == 0:
        return 0.0
    if isinstance(event, dp_event.GaussianDpEvent):
        if event.noise_multiplier == 0.0:
            return LARGEST_EPSILON
        return epsilon_of_mu(math.sqrt(count) / event.noise_multiplier, delta)
    if not is_exact(composition, delta):
        return None
    try:
        epsilon = compute_epsilon(event, count, delta, "pld", composition.adjacency)
    except PlanError:
        return None
    # Infinite is what accountants say of what they cannot compute, too: nothing is shown by it.
    return 0.0 if math.isinf(epsilon) else min(epsilon * (1.0 - _PLD_SLACK), LARGEST_EPSILON)
