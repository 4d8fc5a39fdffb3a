"""The Gaussian mechanism whose clipping bound follows a quantile of the update norms.

Guarantee: unit user. A round releases two sums: of the clipped updates (a user moves it by at most
``clip_norm``) and of the centred bits "my update was within the bound" (a user moves it by 1/2),
with noise of standard deviation ``z_update * clip_norm`` and ``s_b``. Together they are one
Gaussian mechanism of multiplier z, because ``z**-2 = z_update**-2 + (2 s_b)**-2``: the quantile
query is paid for, and the accountant sees z alone. The next bound is computed from released
numbers only. With a simulated cohort, both noises are scaled by ``C_sm / C_lg``, so this very
run has the multiplier ``z * C_sm / C_lg``.

Source: Andrew et al. 2021, "Differentially private learning with adaptive clipping", algorithm 1
and theorem 1; s_b = cohort / 20 by default.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from privacy.aggregate import Aggregate
from privacy.clipping import MAX_CLIP_NORM, MIN_CLIP_NORM
from privacy.description import GAUSSIAN
from privacy.errors import PlanError, PrivacyError
from privacy.mechanism import NoiseScale, NormalSource, Release, check_state_keys, noised_mean
from privacy.noise.clipped_sum import ClipOptions, FreshGaussian

DESCRIPTION = replace(
    GAUSSIAN,
    words="each round's sum of clipped updates and its count of unclipped ones get Gaussian noise, "
    "once; both are paid from the one noise multiplier {z}, and the bound moves by the noisy count "
    "alone",
    draws_count=True,
)


class Options(ClipOptions):
    """Settings of adaptive clipping.

    Attributes:
        clip_norm: L2 bound of the first round.
        quantile: Fraction of updates that should be within the bound, in (0, 1).
        clip_learning_rate: Step of log(clip_norm) per unit of error of the fraction.
        count_noise_stddev: s_b, standard deviation of the noise on the deployment's sum of centred
            bits; None for noise_cohort_size / 20.
    """

    quantile: Annotated[float, Field(gt=0.0, lt=1.0)]
    clip_learning_rate: Annotated[float, Field(gt=0.0, le=10.0)] = 0.2
    count_noise_stddev: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] | None = None


def split_noise(noise_multiplier: float, count_noise_stddev: float) -> float:
    """Noise multiplier that is left for the update once the count is paid.

    z is the effective multiplier of both together, 0 for no noise; the count's noise is on a sum
    that a user moves by 1/2. The answer, ``(z**-2 - (2 s_b)**-2) ** -0.5``, is at least z, and 0 if
    z is.

    Raises:
        PlanError: ``2 s_b <= z``: the count alone would cost as much as, or more than, z allows.

    Source: Andrew et al. 2021, theorem 1.
    """
    z, twice = noise_multiplier, 2.0 * count_noise_stddev
    if z == 0.0:
        return 0.0
    if twice <= z:
        enough = math.ceil(100.0 * z) / 100.0
        raise PlanError(
            f"privacy.mechanism.count_noise_stddev is {count_noise_stddev:.6g} (by default "
            f"privacy.noise_cohort_size / 20) with noise_multiplier {z:.6g} (as given, or as "
            "privacy.epsilon and federated.num_rounds need it): the noisy count alone would spend "
            "more than the whole budget, and no noise on the update can make up for it. Set "
            f"privacy.mechanism.count_noise_stddev={enough:.10g} (it must be above {z / 2:.6g}; "
            "the update's noise rises by 16 % at most), or fewer federated.num_rounds or a larger "
            "privacy.epsilon: with this count noise, noise_multiplier must be below "
            f"{twice:.6g}"
        )
    # The textbook form, written so that a ratio z / (2 s_b) near 0 or 1 loses no digits.
    return z / math.sqrt((1.0 - z / twice) * (1.0 + z / twice))


class AdaptiveGaussian(FreshGaussian):
    """Clip to a moving bound, noise the sum and the count, move the bound.

    Count noise that is too small for the multiplier is refused.
    """

    name = "adaptive_gaussian"
    description = DESCRIPTION

    def __init__(self, options: Options, noise: NoiseScale) -> None:
        super().__init__(options.clip_norm, noise)
        self._options = options
        count_noise = options.count_noise_stddev
        if count_noise is None:
            count_noise = noise.noise_cohort_size / 20.0
        self._update_noise_multiplier = split_noise(noise.noise_multiplier, count_noise)
        self._count_noise_stddev = count_noise if noise.noise_multiplier > 0.0 else 0.0

    @property
    def update_noise_multiplier(self) -> float:
        """Multiplier that is left of z for the update."""
        return self._update_noise_multiplier

    @property
    def count_noise_stddev(self) -> float | None:
        """The deployment's noise on the sum of centred bits."""
        return self._count_noise_stddev

    def clip_settings(self) -> dict[str, float | str]:
        """Settings of the clip: a bound that follows a quantile of the norms of updates."""
        return {
            "kind": "adaptive",
            "initial_clip_norm": self._options.clip_norm,
            "quantile": self._options.quantile,
            "clip_learning_rate": self._options.clip_learning_rate,
        }

    def release(self, aggregate: Aggregate, rng: NormalSource) -> Release:
        """Noise the sum and the count once, then move the bound.

        The stream gives P normal draws for the update, then one for the count (none at z = 0).
        """
        clip_norm, ratio = self._clip_norm, self._noise.ratio
        update_stddev = self._update_noise_multiplier * ratio * clip_norm
        count_stddev = self._count_noise_stddev * ratio
        mean = noised_mean(aggregate.total, update_stddev, self._noise.cohort_size, rng)
        noisy_bits = aggregate.bit_sum
        if count_stddev > 0.0:
            noisy_bits += count_stddev * float(rng.standard_normal())
        fraction = noisy_bits / self._noise.cohort_size + 0.5
        step = self._options.clip_learning_rate * (fraction - self._options.quantile)
        # Moved in the logarithm and kept within what clipping allows, which only updates that are
        # all zero, or a wild count noise, can reach.
        moved = math.log(clip_norm) - step
        low, high = math.log(MIN_CLIP_NORM), math.log(MAX_CLIP_NORM)
        self._clip_norm = min(
            max(math.exp(min(max(moved, low), high)), MIN_CLIP_NORM), MAX_CLIP_NORM
        )
        return Release(
            mean_update=mean,
            clip_norm=clip_norm,
            update_noise_stddev=update_stddev,
            count_noise_stddev=count_stddev,
            noisy_fraction_unclipped=fraction,
        )

    def follow(self, clip_norm: float) -> None:
        """Take over the bound of the coming round from the process that moves it."""
        AdaptiveGaussian.load_state_dict(self, {"clip_norm": clip_norm})

    def state_dict(self) -> dict[str, float]:
        """The bound of the coming round."""
        return {"clip_norm": self._clip_norm}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Restore the bound of the coming round."""
        check_state_keys(self.name, state, {"clip_norm"})
        clip_norm = float(state["clip_norm"])
        if not MIN_CLIP_NORM <= clip_norm <= MAX_CLIP_NORM:
            raise PrivacyError(
                f"the saved clip_norm is {clip_norm!r}, but must be between {MIN_CLIP_NORM:.3g} "
                f"and {MAX_CLIP_NORM:.3g}; the checkpoint is damaged, start the run anew"
            )
        self._clip_norm = clip_norm


build = AdaptiveGaussian
