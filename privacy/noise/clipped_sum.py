"""Base of mechanisms that clip every update to a bound, sum, and noise the sum or each update.

Guarantee: unit user; each user moves the sum by at most the bound, in the mechanism's norm (L2
unless it says otherwise). How much noise that takes is each mechanism's own to say.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from privacy.aggregate import Aggregate
from privacy.amplification import Composition, Participation, sampled_gaussian
from privacy.clipping import MAX_CLIP_NORM, MIN_CLIP_NORM, ClipOutcome, add_clipped_
from privacy.description import Description
from privacy.mechanism import NoiseScale, ReplayedNoise, RoundStreams, Stateless, check_unit_weight


class ClipOptions(BaseModel):
    """Settings of a mechanism that clips to a bound.

    Attributes:
        clip_norm: Bound of a user's update, in the mechanism's norm (L2 unless it says otherwise).
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    clip_norm: Annotated[float, Field(ge=MIN_CLIP_NORM, le=MAX_CLIP_NORM)]


def accumulate_clipped(
    mechanism: str, aggregate: Aggregate, update: Tensor, weight: float, clip_norm: float
) -> ClipOutcome:
    """Clip one update of shape (P,) into the sum by its L2 norm, and keep the counts."""
    check_unit_weight(mechanism, weight)
    outcome = add_clipped_(aggregate.total, update, clip_norm)
    aggregate.count(outcome)
    return outcome


class ClippedSum(Stateless):
    """Base of mechanisms that clip to a bound, fixed unless a subclass moves it, and sum.

    A subclass gives ``name``, ``description``, ``composition`` and ``release``.
    """

    description: Description
    is_private = True
    begins_with_normals = False

    def __init__(self, clip_norm: float, noise: NoiseScale) -> None:
        self._clip_norm = clip_norm
        self._noise = noise

    @property
    def clip_norm(self) -> float | None:
        """The bound of the coming round."""
        return self._clip_norm

    @property
    def update_noise_multiplier(self) -> float:
        """Noise on the sum of updates, in multiples of clip_norm: all of z."""
        return self._noise.noise_multiplier

    @property
    def count_noise_stddev(self) -> float | None:
        """No count is released."""
        return None

    def clip_settings(self) -> dict[str, float | str]:
        """Settings of the clip: a fixed bound."""
        return {"kind": "fixed", "clip_norm": self._clip_norm}

    def accumulate(
        self,
        aggregate: Aggregate,
        update: Tensor,
        weight: float,
        rng: np.random.Generator | None = None,
    ) -> ClipOutcome:
        """Clip one update into the sum; the norms that are kept are those of the bound."""
        return accumulate_clipped(self.name, aggregate, update, weight, self._clip_norm)


class FreshGaussian(ClippedSum):
    """Base of those whose sum gets Gaussian noise, drawn anew in each round, all of z.

    The P normals of ``release`` are the first draws of the round's stream.
    """

    begins_with_normals = True

    def composition(
        self, participation: Participation, noise_multiplier: float, rounds: int
    ) -> Composition:
        """Sampled Gaussians: noise is drawn anew in each round."""
        return sampled_gaussian(participation, noise_multiplier, rounds)

    def replay_noise(self, streams: RoundStreams) -> ReplayedNoise:
        """Draw the first standard normals of a round again."""
        return ReplayedNoise(streams.rng.standard_normal(streams.wanted))
