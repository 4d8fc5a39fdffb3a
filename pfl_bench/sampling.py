"""Client samplers; each knows what its randomness is worth.

A sampler and the accountant must agree: what is drawn here is what ``privacy.amplification``
accounts for under the same scheme name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pfl_bench.types import ConfigError, Sampler

Scheme = Literal["poisson", "fixed_size", "full"]


@dataclass(frozen=True, slots=True)
class PoissonSampler:
    """Each user takes part with probability ``cohort_size / num_users``, independent of all else.

    The realised cohort varies around ``cohort_size`` and may be empty.
    """

    num_users: int
    cohort_size: int
    scheme: Scheme = "poisson"

    def draw(self, rng: np.random.Generator) -> NDArray[np.int64]:
        """Draw one round's users, sorted, none twice; may be empty."""
        # A binomial number of distinct users, uniformly chosen, is the same law as N coins, and
        # costs the cohort's size rather than the population's.
        size = int(rng.binomial(self.num_users, self.cohort_size / self.num_users))
        return _distinct(rng, self.num_users, size)


@dataclass(frozen=True, slots=True)
class FixedSizeSampler:
    """Exactly ``cohort_size`` distinct users, uniformly without replacement."""

    num_users: int
    cohort_size: int
    scheme: Scheme = "fixed_size"

    def draw(self, rng: np.random.Generator) -> NDArray[np.int64]:
        """Draw one round's users, sorted, none twice."""
        return _distinct(rng, self.num_users, self.cohort_size)


@dataclass(frozen=True, slots=True)
class FullParticipation:
    """Every user, every round."""

    num_users: int
    cohort_size: int
    scheme: Scheme = "full"

    def draw(self, rng: np.random.Generator) -> NDArray[np.int64]:
        """All users; ``rng`` is not used."""
        return np.arange(self.num_users, dtype=np.int64)


def _distinct(rng: np.random.Generator, population: int, size: int) -> NDArray[np.int64]:
    chosen = rng.choice(population, size=size, replace=False, shuffle=False)
    return np.sort(chosen.astype(np.int64, copy=False))


def build_sampler(scheme: Scheme, num_users: int, cohort_size: int) -> Sampler:
    """Build the sampler of a scheme.

    Args:
        scheme: "poisson", "fixed_size" or "full".
        num_users: Users in the training split.
        cohort_size: Expected users a round; for "full" it must be ``num_users``.

    Raises:
        ConfigError: ``cohort_size`` does not fit the number of users.
    """
    if not 1 <= cohort_size <= num_users:
        raise ConfigError(
            f"federated.cohort_size: {cohort_size} is outside 1..{num_users}, the users of the "
            "training split; lower it, or use data with more users."
        )
    if scheme == "full":
        if cohort_size != num_users:
            raise ConfigError(
                f"federated.cohort_size: {cohort_size}, but federated.sampling 'full' takes all "
                f"{num_users} users; set cohort_size={num_users} or sampling: poisson."
            )
        return FullParticipation(num_users, cohort_size)
    if scheme == "poisson":
        return PoissonSampler(num_users, cohort_size)
    return FixedSizeSampler(num_users, cohort_size)
