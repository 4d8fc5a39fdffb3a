"""Privacy loss of a Gaussian on a Poisson cohort that is cut at a cap.

Guarantee: that of ``privacy.schemes.truncated_poisson``, which has the proof: the distribution here
dominates a round, in each of the two directions of adding and removing a user.
"""

from __future__ import annotations

from typing import Any

from privacy.accountants.poisson import sampled_pld


def crowding(population: int, rate: float, cap: int) -> tuple[float, float]:
    """Probabilities that a user meets a full cohort, and that the user then takes another's place.

    t, the probability that B or more of the other users have a head; and the probability of the
    user to be let in, given that (0 where t is 0). The population N is that of the larger data set,
    ``rate`` the probability q of a head, in (0, 1], ``cap`` the most users B of a round, from 1 to
    N.
    """
    from scipy.stats import binom

    full = float(binom.sf(cap - 1, population - 1, rate))
    if full == 0.0:
        return 0.0, 0.0
    # Of more than B heads of all, each has one of the B places with the same probability.
    placed = cap / population * float(binom.sf(cap, population, rate))
    return full, min(1.0, placed / full)


def truncated_pld(event: Any, interval: float) -> Any:
    """A ``dp_accounting`` ``PrivacyLossDistribution`` of a round, with pessimistic rounding.

    Of a ``TruncatedSubsampledGaussianDpEvent``, on a grid of losses ``interval`` apart.
    """
    rate, noise = event.sampling_probability, event.noise_multiplier
    roomy = sampled_pld(noise, rate, interval)
    full, placed = crowding(event.dataset_size, rate, event.truncated_batch_size)
    if placed == 0.0:
        return roomy
    crowded = sampled_pld(noise / 2.0, placed, interval)
    return crowded.compute_mixture(roomy, full)


def untruncated(event: Any) -> Any:
    """A Poisson-sampled Gaussian that dominates a round: two bounds at the full probability.

    Both parts of the mixture have at most that sensitivity and at most that probability.

    Of a ``dp_accounting`` ``TruncatedSubsampledGaussianDpEvent``.
    """
    from dp_accounting import dp_event

    inner = dp_event.GaussianDpEvent(event.noise_multiplier / 2.0)
    return dp_event.PoissonSampledDpEvent(event.sampling_probability, inner)
