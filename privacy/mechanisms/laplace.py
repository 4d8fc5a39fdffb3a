"""The Laplace mechanism on the sum, with a fixed L1 bound.

Guarantee: unit user; each user moves the sum by at most ``clip_norm`` in L1 norm (added or
removed), and the sum gets Laplace noise of scale ``z * C_sm / C_lg * clip_norm`` in each element
(standard deviation sqrt(2) times that), once a round, an empty cohort included. The sum is divided
by the configured cohort size. z is the *scale* in multiples of clip_norm, as accountants of
Laplace noise take it: a round without sampling is pure (1 / z)-DP.

- full: T Laplace mechanisms of multiplier z; adjacency add-or-remove-one.
- poisson, cyclic_poisson: each is sampled by Poisson, in as many rounds as one user can be
  eligible for; same adjacency.
- selected: Laplace mechanisms of multiplier z, as many as one user can be in; adjacency zero-out.
- fixed_size: refused. No accountant here has Laplace noise under sampling without replacement, and
  its Poisson or unsampled cousin would be a claim about another algorithm.

Why one dimension stands for P: accountants compose two Laplace laws whose means are clip_norm
apart, but a user may move several elements. Take shifts a >= b > 0, in multiples of the scale, of
two elements, and t >= 0. The loss of b's element is at most b, so the pair's hockey-stick
divergence, the mean of max(0, 1 - exp((t - a - loss) / 2)) over that loss, is at most
max(0, 1 - exp((t - a - b) / 2)), which is the divergence of one element shifted by a + b (a's
threshold ``t - loss`` is never below -a, where that formula ends). Laplace laws being symmetric,
the same holds for t < 0, and so element by element for all of them.

Source: Dwork et al. 2006 (Laplace noise and L1 sensitivity); Zhu et al. 2022, theorems 10 and 11
(a pair that dominates another still does when both are composed or sampled by Poisson).
"""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from privacy.aggregate import Aggregate
from privacy.amplification import Composition, Participation, check_composition_numbers
from privacy.clipping import ClipOutcome, add_clipped_l1_
from privacy.description import FRESH, OF_THE_BOUND, Description
from privacy.errors import PlanError
from privacy.mechanism import NoiseScale, Release, check_unit_weight, mean_of
from privacy.noise.clipped_sum import ClipOptions, ClippedSum

DESCRIPTION = Description(
    "each round's sum of clipped updates gets Laplace noise, once, in every element; its scale is "
    f"{OF_THE_BOUND}, which bounds the L1 norm",
    law="laplace",
    stddev=math.sqrt(2.0),
    strategy=FRESH,
    norm="l1",
)


class Options(ClipOptions):
    """Settings of the Laplace mechanism.

    Attributes:
        clip_norm: L1 bound of a user's update. The L1 norm of P elements is up to sqrt(P) times
            their L2 norm, and about sqrt(2 P / pi) times it where they look normal.
    """


class Laplace(ClippedSum):
    """Clip in L1, sum, noise once, divide by the configured cohort size."""

    name = "laplace"
    description = DESCRIPTION

    def clip_settings(self) -> dict[str, float | str]:
        """Settings of the clip: a fixed L1 bound."""
        return {"kind": "fixed", "norm": "l1", "clip_norm": self._clip_norm}

    def composition(
        self, participation: Participation, noise_multiplier: float, rounds: int
    ) -> Composition:
        """Laplace mechanisms, sampled by Poisson where users are.

        The accountant pld knows both; rdp knows unsampled ones alone, and prv neither.

        Cohorts of a fixed size are refused.
        """
        check_composition_numbers(noise_multiplier, rounds)
        if participation.adjacency == "replace-one":
            raise PlanError(
                "the laplace mechanism cannot be accounted under fixed-size sampling: no "
                "accountant here has Laplace noise sampled without replacement, and accounting it "
                "as Poisson would be a claim about another algorithm; sample by poisson, or take "
                "the mechanism gaussian"
            )
        from dp_accounting import dp_event

        event = participation.sampled(dp_event.LaplaceDpEvent(noise_multiplier))
        count = participation.most_participations(int(rounds))
        return Composition(event, count, participation.adjacency)

    def accumulate(
        self,
        aggregate: Aggregate,
        update: Tensor,
        weight: float,
        rng: np.random.Generator | None = None,
    ) -> ClipOutcome:
        """Clip one update into the sum; the norms that are kept are L1."""
        check_unit_weight(self.name, weight)
        outcome = add_clipped_l1_(aggregate.total, update, self._clip_norm)
        aggregate.count(outcome)
        return outcome

    def release(self, aggregate: Aggregate, rng: np.random.Generator) -> Release:
        """Noise the sum by P Laplace draws, once, and divide it by the configured cohort size."""
        scale = self._noise.noise_multiplier * self._noise.ratio * self._clip_norm
        noise = rng.laplace(0.0, scale, aggregate.total.numel()) if scale > 0.0 else None
        return Release(
            mean_update=mean_of(aggregate.total, self._noise.cohort_size, noise),
            clip_norm=self._clip_norm,
            update_noise_stddev=math.sqrt(2.0) * scale,
        )


def build(options: Options, noise: NoiseScale) -> Laplace:
    """Build the mechanism."""
    return Laplace(options.clip_norm, noise)
