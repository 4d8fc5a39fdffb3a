"""The Gaussian mechanism with a fixed clipping bound.

Guarantee: unit user; each user moves the sum by at most ``clip_norm`` in L2 norm (added or
removed; twice that if replaced), and the sum gets Gaussian noise of standard deviation
``z * C_sm / C_lg * clip_norm`` in each element, once a round, an empty cohort included. The sum is
divided by the configured cohort size. For a deployment with cohort C_lg = C_sm that is the
Gaussian mechanism with multiplier z; this very run has the multiplier ``z * C_sm / C_lg``.

Source: McMahan et al. 2018, "Learning differentially private recurrent language models",
algorithm 1 (flat clipping, fixed-denominator estimator).
"""

from __future__ import annotations

from privacy.aggregate import Aggregate
from privacy.description import GAUSSIAN
from privacy.mechanism import NoiseScale, NormalSource, Release, noised_mean
from privacy.noise.clipped_sum import ClipOptions, FreshGaussian

DESCRIPTION = GAUSSIAN


class Options(ClipOptions):
    """Settings of the Gaussian mechanism: the bound."""


class Gaussian(FreshGaussian):
    """Clip to a fixed bound, sum, noise once, divide by the configured cohort size."""

    name = "gaussian"
    description = DESCRIPTION

    def release(self, aggregate: Aggregate, rng: NormalSource) -> Release:
        """Noise the sum by P normal draws, once, and divide it by the configured cohort size."""
        stddev = self._noise.noise_multiplier * self._noise.ratio * self._clip_norm
        mean = noised_mean(aggregate.total, stddev, self._noise.cohort_size, rng)
        return Release(mean, self._clip_norm, stddev)


def build(options: Options, noise: NoiseScale) -> Gaussian:
    """Build the mechanism."""
    return Gaussian(options.clip_norm, noise)
