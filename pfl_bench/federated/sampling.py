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

Scheme = Literal["poisson", "fixed_size", "full", "cyclic_poisson"]


@dataclass(frozen=True, slots=True)
class PoissonSampler:
    """Each user takes part with probability ``cohort_size / num_users``, independent of all else.

    The realised cohort varies around ``cohort_size`` and may be empty.
    """

    num_users: int
    cohort_size: int
    scheme: Scheme = "poisson"

    def draw(self, rng: np.random.Generator, round_index: int = 1) -> NDArray[np.int64]:
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

    def draw(self, rng: np.random.Generator, round_index: int = 1) -> NDArray[np.int64]:
        """Draw one round's users, sorted, none twice."""
        return _distinct(rng, self.num_users, self.cohort_size)


@dataclass(frozen=True, slots=True)
class FullParticipation:
    """Every user, every round."""

    num_users: int
    cohort_size: int
    scheme: Scheme = "full"

    def draw(self, rng: np.random.Generator, round_index: int = 1) -> NDArray[np.int64]:
        """All users; ``rng`` and ``round_index`` are not used."""
        return np.arange(self.num_users, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class CyclicPoissonSampler:
    """Groups of users take turns; a group's users take part independently in its rounds.

    Attributes:
        num_users: Users of all groups together.
        cohort_size: Expected users a round.
        groups: Shape (num_users,), int64: each user's group, drawn independently of the others'.
        separation: Number of groups: two rounds of one user are so many apart, or a multiple.
    """

    num_users: int
    cohort_size: int
    groups: NDArray[np.int64]
    separation: int
    scheme: Scheme = "cyclic_poisson"

    def draw(self, rng: np.random.Generator, round_index: int = 1) -> NDArray[np.int64]:
        """Draw the users of a round (from 1), sorted, none twice; may be empty."""
        eligible = np.flatnonzero(self.groups == (round_index - 1) % self.separation)
        # Of the number of all users, not of the group's own, which is random: the probability is
        # then the same whoever else there is.
        probability = self.cohort_size * self.separation / self.num_users
        size = int(rng.binomial(len(eligible), probability))
        return eligible[_distinct(rng, len(eligible), size)]


def _distinct(rng: np.random.Generator, population: int, size: int) -> NDArray[np.int64]:
    chosen = rng.choice(population, size=size, replace=False, shuffle=False)
    return np.sort(chosen.astype(np.int64, copy=False))


def build_sampler(
    scheme: Scheme,
    num_users: int,
    cohort_size: int,
    separation: int = 1,
    rng: np.random.Generator | None = None,
) -> Sampler:
    """Build the sampler of a scheme.

    Args:
        scheme: "poisson", "fixed_size", "full" or "cyclic_poisson".
        num_users: Users in the training split.
        cohort_size: Expected users a round; for "full" it must be ``num_users``.
        separation: Groups of "cyclic_poisson"; must be 1 for the others.
        rng: Deals the users to those groups.

    Raises:
        ConfigError: The numbers do not fit the number of users, or the scheme.
    """
    if not 1 <= cohort_size <= num_users:
        raise ConfigError(
            f"federated.cohort_size: {cohort_size} is outside 1..{num_users}, the users of the "
            "training split; lower it, or use data with more users."
        )
    if separation != 1 and scheme != "cyclic_poisson":
        raise ConfigError(
            f"federated.separation: {separation}, but federated.sampling '{scheme}' keeps no "
            "distance between two rounds of one user; set sampling: cyclic_poisson, or remove it."
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
    if scheme == "cyclic_poisson":
        if cohort_size * separation > num_users:
            raise ConfigError(
                f"federated.separation: {separation} groups of {num_users} users have "
                f"{num_users / separation:.6g} each on average, fewer than federated.cohort_size "
                f"{cohort_size}; set separation to at most {num_users // cohort_size}."
            )
        assert rng is not None
        groups = rng.integers(separation, size=num_users)
        return CyclicPoissonSampler(num_users, cohort_size, groups, separation)
    return FixedSizeSampler(num_users, cohort_size)
