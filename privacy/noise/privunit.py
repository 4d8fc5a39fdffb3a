"""PrivUnit: a unit vector in, a random vector of fixed length out, unbiased and pure-DP.

Guarantee: for any two unit vectors, the densities of what comes out differ by at most a factor of
e**epsilon, everywhere; no delta. Between unit vectors u the law of the direction V on the sphere
is one of two levels: with probability ``choice_probability`` V is uniform on the cap
{<V, u> >= threshold}, else uniform on the rest. So the densities' largest ratio is exactly

    e**epsilon = (choice / (1 - choice)) * ((1 - cap) / cap),

with ``cap`` the cap's share of the sphere, and epsilon = epsilon_choice + epsilon_cap is what the
two factors spend. The share is computed exactly (an incomplete Beta function), not bounded as in
the paper's theorem, and the threshold is the best one, so that the output is as short as this
family allows.

The mean of V is ``mean_length * u``; V / mean_length is unbiased. As ``choice`` follows from
epsilon and the threshold c, mean_length is
A(c) (e**epsilon - 1) / (1 + cap(c) (e**epsilon - 1)) with A(c) = E[max over the cap of <V, u>] =
(1 - c**2)**((P - 1) / 2) / ((P - 1) B(1/2, (P - 1) / 2)). Its derivative in c has the sign of
mean_length - c: at the best threshold they are equal, which is where the search ends.

Source: Bhowmick et al. 2018, "Protection against reconstruction and its applications in private
federated learning", algorithm 1 (PrivUnit); Asi et al. 2022, "Optimal algorithms for mean
estimation under local differential privacy" (the best split is optimal among all unbiased ones).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privacy.errors import PrivacyError

# Beyond it the cap's share leaves double precision; such a report protects nobody anyway.
LARGEST_REPORT_EPSILON = 500.0
# Of a cap; a smaller one has no exact share in double precision.
_LARGEST_THRESHOLD = 1.0 - 1e-6


@dataclass(frozen=True, slots=True)
class CapDesign:
    """The two-level law of one report.

    Attributes:
        dimension: P, at least 2.
        epsilon: What a report spends, positive.
        threshold: Least inner product of the cap, in [0, 1).
        log_cap: Logarithm of the cap's share of the sphere.
        choice_probability: Probability of drawing from the cap.
        mean_length: Length of the mean of the drawn direction, in (0, 1); reports have the length
            1 / mean_length.
    """

    dimension: int
    epsilon: float
    threshold: float
    log_cap: float
    choice_probability: float
    mean_length: float

    @property
    def epsilon_choice(self) -> float:
        """Epsilon of choosing between the cap and the rest."""
        return self.epsilon - self.epsilon_cap

    @property
    def epsilon_cap(self) -> float:
        """Epsilon of drawing from the chosen one: log((1 - cap) / cap)."""
        return math.log1p(-math.exp(self.log_cap)) - self.log_cap


def log_cap_share(threshold: float, dimension: int) -> float:
    """Logarithm of the share of the unit sphere where <v, u> >= threshold.

    The threshold is in [0, 1], the dimension P at least 2. At most log(1/2); -inf where the share
    is below the smallest double.

    Source: <v, u>**2 has the law Beta(1/2, (P - 1) / 2) for v uniform on the sphere.
    """
    from scipy.special import betaincc

    share = 0.5 * float(betaincc(0.5, (dimension - 1) / 2.0, threshold**2))
    return math.log(share) if share > 0.0 else -math.inf


def log_mean_length(threshold: float, dimension: int, epsilon: float) -> float:
    """Logarithm of the length of the mean direction when all of epsilon is spent.

    The threshold is in [0, 1), the dimension P at least 2.
    """
    from scipy.special import betaln

    half = (dimension - 1) / 2.0
    log_lift = half * math.log1p(-(threshold**2)) - math.log(2.0 * half) - float(betaln(0.5, half))
    log_ratio = epsilon + math.log(-math.expm1(-epsilon))
    spread = float(np.logaddexp(0.0, log_cap_share(threshold, dimension) + log_ratio))
    return log_lift + log_ratio - spread


@lru_cache(maxsize=64)
def design(epsilon: float, dimension: int) -> CapDesign:
    """The cap that makes reports of an epsilon and a dimension shortest."""
    from scipy.optimize import brentq

    if not 0.0 < epsilon <= LARGEST_REPORT_EPSILON:
        raise PrivacyError(
            f"a PrivUnit report was given epsilon {epsilon!r}, but it must be positive and at most "
            f"{LARGEST_REPORT_EPSILON:g}; beyond that a report hides nothing. Usual values are "
            "from 1 to 20"
        )
    if dimension < 2:
        raise PrivacyError(
            f"PrivUnit was given vectors of {dimension} elements, but a sphere has directions from "
            "2 on; train a model with more parameters"
        )

    def excess(threshold: float) -> float:
        # exp underflows to 0 only where the threshold is far beyond the best one.
        return math.exp(log_mean_length(threshold, dimension, epsilon)) - threshold

    if excess(_LARGEST_THRESHOLD) > 0.0:
        raise PrivacyError(
            f"a PrivUnit report of {dimension} elements was given epsilon {epsilon:g}, with which "
            "it would be all but the direction itself; lower epsilon (raise noise_multiplier)"
        )
    threshold = float(brentq(excess, 0.0, _LARGEST_THRESHOLD, xtol=1e-14, rtol=1e-12))
    log_cap = log_cap_share(threshold, dimension)
    # choice / (1 - choice) = e**epsilon * cap / (1 - cap).
    logit = epsilon + log_cap - math.log1p(-math.exp(log_cap))
    return CapDesign(
        dimension=dimension,
        epsilon=epsilon,
        threshold=threshold,
        log_cap=log_cap,
        choice_probability=1.0 / (1.0 + math.exp(-logit)),
        mean_length=math.exp(log_mean_length(threshold, dimension, epsilon)),
    )


def draw_inner_product(plan: CapDesign, rng: np.random.Generator) -> float:
    """Draw <V, u>: first cap or rest, then its exact law there, by inverting the Beta law.

    Two uniform draws give a number in [threshold, 1] with ``choice_probability``, else in [-1,
    threshold).
    """
    from scipy.special import betainccinv

    half = (plan.dimension - 1) / 2.0
    cap = math.exp(plan.log_cap)
    in_cap = rng.random() < plan.choice_probability
    uniform = 1.0 - rng.random()  # in (0, 1]
    # The share of the sphere beyond the inner product that is drawn.
    share = cap * uniform if in_cap else cap + (1.0 - cap) * uniform
    if share <= 0.5:
        inner = math.sqrt(float(betainccinv(0.5, half, 2.0 * share)))
    else:
        inner = -math.sqrt(float(betainccinv(0.5, half, 2.0 * (1.0 - share))))
    # The inversion rounds; what was drawn from the cap stays in it, and the rest outside.
    if in_cap:
        return max(inner, plan.threshold)
    return min(inner, math.nextafter(plan.threshold, -1.0))


def randomize(
    direction: NDArray[np.float64] | None, plan: CapDesign, rng: np.random.Generator
) -> NDArray[Any]:
    """Draw a report about a direction, shape (P,), of length 1.

    Without a direction it is uniform on the sphere, which is what hides that there is none. ``rng``
    gives two uniform draws (none without a direction), then P normal ones. The report has shape
    (P,), float64, and length 1 / mean_length; its mean is ``direction`` (0 without one).

    Guarantee: the densities of two reports differ by at most a factor of e**epsilon.
    """
    inner = draw_inner_product(plan, rng) if direction is not None else 0.0
    noise = rng.standard_normal(plan.dimension)
    if direction is not None:
        noise -= float(noise @ direction) * direction
    noise *= math.sqrt((1.0 - inner) * (1.0 + inner)) / float(np.linalg.norm(noise))
    if direction is not None:
        noise += inner * direction
    noise /= plan.mean_length
    return noise
