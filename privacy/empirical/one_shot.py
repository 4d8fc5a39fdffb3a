"""Epsilon from one run in which all canaries took part, by the law that their cosines have.

Guarantee: a bound at the confidence asked for, if what it rests on holds.

What it rests on. *Estimate*: scores of canaries are normal, and so are those of directions that no
canary used; the epsilon of telling these two laws apart. It is an estimate, not a bound: it can be
above or below the truth. *Lower bound*: the same, and that a canary moves its score without
changing its spread, that scores of canaries depend on each other through their random directions
and the common length alone, and that all else in the release is independent of the directions
(which were drawn for this run). It bounds the mean shift in standard deviations, mu, at the
confidence, and reports the epsilon of mu-GDP. Unit: a canary, as a user; adjacency
add-or-remove-one, under selected zero-out. Without effect it is above 0 in no more than
1 - confidence of runs.

Null law: the cosine of a uniformly random direction with a vector that is independent of it has
mean 0, variance 1/P, and is close to normal for P of 100 and more. The largest of many rounds'
cosines has another law, which is fitted to held-out directions.

Source: Andrew et al. 2024, "One-shot empirical privacy estimation for federated learning" (ICLR),
algorithms 1 to 3 (estimates). The lower bound is ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privacy.empirical.gaussian_dp import Normal, epsilon_of_mu, epsilon_of_normals
from privacy.errors import PrivacyError

Array = NDArray[np.float64]

# Variance that the mean of canaries' cosines has beyond that of independent ones, in parts of
# mu**2 / P: 1 from pairs of canaries that lie along each other, 1/2 from the common length.
_SHARED = 1.5


@dataclass(frozen=True, slots=True)
class OneShotBound:
    """Bound that the cosines of canaries give.

    Attributes:
        estimate: Epsilon of the two fitted laws; not a bound.
        epsilon: Lower bound at the confidence asked for, at least 0.
        mu: Lower bound of the shift, in standard deviations of the null law.
        null: Law of the score of a direction that no canary used.
        canary: Law of the score of a canary.
    """

    estimate: float
    epsilon: float
    mu: float
    null: Normal
    canary: Normal

    def to_json_dict(self) -> dict[str, Any]:
        """As ``canaries.json`` has it."""
        return {
            "method": "one_shot",
            "estimate": self.estimate,
            "lower_bound": self.epsilon,
            "mu_lower_bound": self.mu,
            "null_law": self.null._asdict(),
            "canary_law": self.canary._asdict(),
        }


def audit_final(
    cosines: Array, num_parameters: int, delta: float, confidence: float = 0.95
) -> OneShotBound:
    """Bound epsilon by the cosines of canaries with how the model moved, shape (k,), k from 2 on.

    ``num_parameters`` is P, the length of the directions; the confidence is in [0.5, 1). A
    PrivacyError says that there are too few canaries, or that they do not vary.
    """
    from scipy.stats import t

    canary = _fit(cosines, "canaries")
    null = Normal(0.0, 1.0 / math.sqrt(num_parameters))
    mean, spread = canary.mean / null.stddev, canary.stddev / null.stddev
    error = math.sqrt(spread**2 / cosines.size + _SHARED * mean**2 / num_parameters)
    mu = mean - float(t.ppf(confidence, cosines.size - 1)) * error
    return _bound(max(0.0, mu), null, canary, delta)


def audit_held_out(
    scores: Array, held_out: Array, delta: float, confidence: float = 0.95
) -> OneShotBound:
    """Bound epsilon by scores whose null law is not known, such as the largest of many rounds.

    Half of the error that is allowed goes to the difference of the means (Welch's t), half to the
    spread of the null law (chi-squared).

    Scores of canaries, shape (k,), k of 2 or more, and of directions drawn like theirs that none
    used, shape (h,), h of 2 or more; the confidence is in [0.5, 1).
    """
    from scipy.stats import chi2, t

    canary, null = _fit(scores, "canaries"), _fit(held_out, "held-out directions")
    half = (1.0 + confidence) / 2.0
    parts = canary.stddev**2 / scores.size, null.stddev**2 / held_out.size
    degrees = sum(parts) ** 2 / (
        parts[0] ** 2 / (scores.size - 1) + parts[1] ** 2 / (held_out.size - 1)
    )
    shift = canary.mean - null.mean - float(t.ppf(half, degrees)) * math.sqrt(sum(parts))
    freedom = held_out.size - 1
    spread = null.stddev * math.sqrt(freedom / float(chi2.ppf(1.0 - half, freedom)))
    return _bound(max(0.0, shift / spread), null, canary, delta)


def _bound(mu: float, null: Normal, canary: Normal, delta: float) -> OneShotBound:
    estimate, epsilon = epsilon_of_normals(null, canary, delta), epsilon_of_mu(mu, delta)
    return OneShotBound(estimate, epsilon, mu, null, canary)


def _fit(scores: Array, what: str) -> Normal:
    if scores.ndim != 1 or scores.size < 2 or not np.isfinite(scores).all():
        raise PrivacyError(
            f"the scores of {what} have shape {scores.shape}; two finite ones or more are needed"
        )
    law = Normal(float(scores.mean()), float(scores.std(ddof=1)))
    if law.stddev == 0.0:
        raise PrivacyError(
            f"the scores of {what} are all {law.mean:g}: nothing was released along them, or the "
            "model did not move"
        )
    return law
