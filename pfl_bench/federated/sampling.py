"""Draws the cohorts of a run by a scheme of ``privacy.schemes``, which is what is accounted too."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pfl_bench.types import ConfigError
from privacy.amplification import Participation
from privacy.sampling_scheme import SamplingScheme


@dataclass(frozen=True, slots=True)
class Sampler:
    """Draws the cohorts of one run.

    Attributes:
        participation: How users are drawn, and from how many.
        groups: What the scheme draws once: shape (num_users,), int64; None for schemes without.
    """

    participation: Participation
    groups: NDArray[np.int64] | None = None

    def draw(self, rng: np.random.Generator, round_index: int = 1) -> NDArray[np.int64]:
        """Draw the users of a round (from 1): shape (cohort,), ascending, none twice."""
        users = self.participation
        return users.scheme.draw(users, rng, round_index, self.groups)


def build_sampler(
    scheme: SamplingScheme,
    num_users: int,
    cohort_size: int,
    rng: np.random.Generator | None = None,
) -> Sampler:
    """Build the sampler of a run.

    Args:
        scheme: How users are drawn.
        num_users: Users in the training split.
        cohort_size: Expected users a round; all of them for a scheme that takes everybody.
        rng: Source of what the scheme draws once; None for a scheme that draws nothing so.

    Raises:
        ConfigError: The numbers do not fit the number of users, or the scheme.
    """
    separation = scheme.min_separation
    if not 1 <= cohort_size <= num_users:
        raise ConfigError(
            f"federated.cohort_size: {cohort_size} is outside 1..{num_users}, the users of the "
            "training split; lower it, or use data with more users."
        )
    if separation != 1 and not scheme.keeps_distance:
        raise ConfigError(
            f"federated.separation: {separation}, but federated.sampling '{scheme.name}' keeps no "
            "distance between two rounds of one user; set sampling: cyclic_poisson, or remove it."
        )
    if scheme.takes_everybody and cohort_size != num_users:
        raise ConfigError(
            f"federated.cohort_size: {cohort_size}, but federated.sampling '{scheme.name}' takes "
            f"all {num_users} users; set cohort_size={num_users} or sampling: poisson."
        )
    if cohort_size * separation > num_users:
        raise ConfigError(
            f"federated.separation: {separation} groups of {num_users} users have "
            f"{num_users / separation:.6g} each on average, fewer than federated.cohort_size "
            f"{cohort_size}; set separation to at most {num_users // cohort_size}."
        )
    participation = Participation(scheme, num_users, cohort_size)
    return Sampler(participation, None if rng is None else scheme.assign(participation, rng))
