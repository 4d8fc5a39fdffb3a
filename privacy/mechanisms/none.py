"""No privacy: the weighted mean of the updates, as they are.

Guarantee: none; nothing is clipped, noised or accounted. Updates that are not finite are skipped,
their weight with them, and counted, as the private mechanisms do.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from privacy.aggregate import Aggregate
from privacy.amplification import Composition, Participation
from privacy.clipping import ClipOutcome, add_scaled_, l2_norm
from privacy.description import FRESH, Description
from privacy.errors import PlanError, PrivacyError
from privacy.mechanism import NoiseScale, Release, Stateless, mean_of

DESCRIPTION = Description("nothing is noised", strategy=FRESH)


class Options(BaseModel):
    """There is nothing to set."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class NoPrivacy(Stateless):
    """Weighted mean; weights may be uniform or follow the number of examples."""

    name = "none"
    description = DESCRIPTION
    is_private = False
    clip_norm: float | None = None
    update_noise_multiplier = 0.0
    count_noise_stddev: float | None = None

    def clip_settings(self) -> dict[str, float | str]:
        """Settings of the clip: none."""
        return {"kind": "none"}

    def composition(
        self, participation: Participation, noise_multiplier: float, rounds: int
    ) -> Composition:
        """Refuse: there is nothing to compose."""
        raise PlanError("the mechanism none gives no privacy, so that nothing can be accounted")

    def accumulate(
        self,
        aggregate: Aggregate,
        update: Tensor,
        weight: float,
        rng: np.random.Generator | None = None,
    ) -> ClipOutcome:
        """Add ``weight * update`` to the sum; the weight must be finite and at least 0."""
        if not (math.isfinite(weight) and weight >= 0):
            raise PrivacyError(f"a client's weight is {weight!r}, but must be finite, at least 0")
        update = update.detach().to(torch.float32)
        if update.device != aggregate.total.device:
            update = update.cpu()  # a sum in float64 is on the CPU where MPS has none
        # Nothing rests on the last digits of this norm, and a finite sum of squares in float32 has
        # finite terms: less than half the time of the float64 that a clipped update needs.
        squared = float(torch.dot(update, update))
        norm = math.sqrt(squared) if math.isfinite(squared) else l2_norm(update)
        finite = math.isfinite(norm)
        if finite:
            add_scaled_(aggregate.total, update, weight)
        outcome = ClipOutcome(norm, finite, finite, clipped_norm=norm if finite else 0.0)
        aggregate.count(outcome, weight)
        return outcome

    def release(self, aggregate: Aggregate, rng: np.random.Generator) -> Release:
        """Divide the sum by the realised total weight; an empty cohort gives a zero update."""
        weight = aggregate.weight
        return Release(
            # Without a client the sum is zero already.
            mean_update=mean_of(aggregate.total, weight if weight > 0 else 1.0),
            clip_norm=None,
            update_noise_stddev=0.0,
        )


def build(options: Options, noise: NoiseScale) -> NoPrivacy:
    """Build the mechanism; noise is refused."""
    if noise.noise_multiplier != 0.0:
        raise PrivacyError(
            f"noise_multiplier is {noise.noise_multiplier!r} with the mechanism none, which adds "
            "no noise; choose the mechanism gaussian, or leave the noise out"
        )
    return NoPrivacy()
