"""Participants of rounds: cohorts drawn by a scheme of ``privacy.schemes``, or simulated devices.

The scheme that draws is what is accounted too. A shadow run (``pfl_bench.runs.shadows``) has some
of the users alone. The others are drawn as in any run, and left out afterwards: the mechanism is
the row's, on data without these users.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pfl_bench.rng import Purpose, stream
from pfl_bench.types import ConfigError, Participants, RoundStatistics
from privacy.amplification import Participation
from privacy.sampling_scheme import SamplingScheme

if TYPE_CHECKING:
    from pfl_bench.federated.parts import FederatedParts
    from pfl_bench.simulation.devices.devices import Devices


@dataclass(frozen=True, slots=True)
class Sampler:
    """Draws the cohorts of one run.

    Attributes:
        participation: How users are drawn, and from how many.
        groups: What the scheme draws once: shape (num_users,), int64; None for schemes without.
        members: Shape (num_users,): who is in the population of a shadow run; None for everybody.
    """

    participation: Participation
    groups: NDArray[np.int64] | None = None
    members: NDArray[np.bool_] | None = None

    def draw(self, rng: np.random.Generator, round_index: int = 1) -> NDArray[np.int64]:
        """Draw the users of a round (from 1): shape (cohort,), ascending, none twice."""
        users = self.participation
        drawn = users.scheme.draw(users, rng, round_index, self.groups)
        return drawn if self.members is None else drawn[self.members[drawn]]


def draw_members(seed: int, shadow: int, num_users: int) -> NDArray[np.bool_]:
    """Toss the coins of a shadow run: shape (num_users,), each True with probability 1/2."""
    return stream(seed, Purpose.SHADOW, shadow).random(num_users) < 0.5


def build_sampler(
    scheme: SamplingScheme,
    num_users: int,
    cohort_size: int,
    rng: np.random.Generator | None = None,
    members: NDArray[np.bool_] | None = None,
) -> Sampler:
    """Build the sampler of a run.

    Args:
        scheme: How users are drawn.
        num_users: Users in the training split.
        cohort_size: Expected users a round; all of them for a scheme that takes everybody.
        rng: Source of what the scheme draws once; None for a scheme that draws nothing so.
        members: Shape (num_users,): who is in the population of a shadow run; None for everybody.
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
    groups = None if rng is None else scheme.assign(participation, rng)
    return Sampler(participation, groups, members)


class SampledParticipants(Participants):
    """Participants that a sampler draws; they all finish, and each receives ``num_bytes``."""

    def __init__(self, sampler: Sampler, num_bytes: float) -> None:
        self._sampler = sampler
        self._num_bytes = num_bytes

    def draw(self, index: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Draw the round's users."""
        return self._sampler.draw(rng, index)

    def finish(
        self, index: int, users: NDArray[np.int64], counted: RoundStatistics
    ) -> dict[str, float]:
        """Those too whose update was lost have had the cost."""
        down = float(len(users) * self._num_bytes)
        return {"systems/bytes_down": down, "systems/bytes_up": counted.bytes_up}


def build_participants(
    parts: FederatedParts, devices: Devices | None, seed: int, folder: Path
) -> Participants:
    """Build what decides who takes part: drawn users, or simulated devices where there are any.

    Nothing of the run's folder is read or written yet.
    """
    options, shadow = parts.options, parts.options.shadow
    if devices is not None:
        if shadow is not None:
            raise ConfigError(
                "federated.shadow: leaves users out of cohorts that are drawn, but the section "
                "systems has them selected among devices; remove one of the two"
            )
        from pfl_bench.simulation.devices.cohorts import SimulatedParticipants

        return SimulatedParticipants(
            parts.resolved,
            devices,
            parts.split,
            parts.algorithm.local_training,
            parts.download_bytes,
            parts.upload_bytes,
            folder,
        )
    assert options.scheme.is_drawn  # the configuration was refused
    num_users = parts.split.num_users
    # By the run's own seed, which the attacker's evaluation knows without the model.
    own_seed = parts.resolved.config.seed
    sampler = build_sampler(
        options.scheme,
        num_users,
        options.cohort_size,
        stream(seed, Purpose.SAMPLING, 0),
        None if shadow is None else draw_members(own_seed, shadow, num_users),
    )
    return SampledParticipants(sampler, parts.download_bytes)
