"""Bugs of the noise that the centre adds, fresh in each round.

Sources: McMahan et al. 2018, algorithm 1; Dwork et al. 2006 (Laplace noise).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from pfl_bench.federated import round as federated_round
from pfl_bench.federated.trainer import FederatedTrainer
from pfl_bench.rng import Purpose
from privacy.mechanism import mean_of
from privacy.mechanisms import gaussian
from privacy.mechanisms.gaussian import Gaussian
from privacy.mechanisms.laplace import Laplace
from privacy.noise import clipped_sum
from tests.sabotage.paper_planting import (
    COHORT,
    HALF,
    SMALLER_COHORT,
    Noise,
    PaperBug,
    Patch,
    change_noise,
    counter,
    registering,
    wrap,
)
from tests.sabotage.planting import LAPLACE

BUGS: list[PaperBug] = []
bug = registering(BUGS)
_BIAS = 10


@bug("The last layer's bias gets half the noise.")
def noise_half_on_bias(patch: Patch) -> None:
    change_noise(patch, lambda noise, _, __: np.append(noise[:-_BIAS], noise[-_BIAS:] / 2))


@bug("Every seventh round is released without noise.")
def noise_missing_every_seventh_round(patch: Patch) -> None:
    change_noise(patch, lambda noise, _, past: noise * (past % 7 != 6))


@bug("Noise is cut off at three standard deviations.")
def noise_cut_at_three_deviations(patch: Patch) -> None:
    bound = 3.0 * 0.6
    change_noise(patch, lambda noise, _, __: np.clip(noise, -bound, bound))


@bug("Noise has a uniform law of the right variance.")
def noise_uniform(patch: Patch) -> None:
    def uniform(noise: Noise, _: Noise, __: int) -> Noise:
        ranks = noise.argsort().argsort()
        return 0.6 * math.sqrt(3.0) * ((2 * ranks + 1) / len(noise) - 1.0)

    change_noise(patch, uniform)


@bug("The second half of the noise is the first half with its sign turned.")
def noise_antithetic(patch: Patch) -> None:
    def mirrored(noise: Noise, _: Noise, __: int) -> Noise:
        half = noise[: len(noise) // 2]
        return np.append(half, -half)

    change_noise(patch, mirrored)


@bug("Noise is centred, so that the sum over all parameters is released bare.")
def noise_centred(patch: Patch) -> None:
    change_noise(patch, lambda noise, _, __: noise - noise.mean())


@bug("Noise is scaled to exactly its expected length.")
def noise_of_fixed_length(patch: Patch) -> None:
    def scaled(noise: Noise, _: Noise, __: int) -> Noise:
        return noise * (0.6 * math.sqrt(len(noise)) / np.linalg.norm(noise))

    change_noise(patch, scaled)


@bug("Noise along the sum is taken out, for the sake of utility.")
def noise_orthogonal_to_sum(patch: Patch) -> None:
    def projected(noise: Noise, total: Noise, _: int) -> Noise:
        return noise - total * (noise @ total) / max(total @ total, 1e-12)

    change_noise(patch, projected)


@bug("Noise is less where the sum is small: it is scaled by the sum's own length.")
def noise_follows_length_of_sum(patch: Patch) -> None:
    def scaled(noise: Noise, total: Noise, _: int) -> Noise:
        return noise * min(1.0, float(np.linalg.norm(total)) / 12.0)

    change_noise(patch, scaled)


@bug(
    "Three fifths of a round's noise are the noise of the round before; each round's law is right."
)
def noise_autoregressive(patch: Patch) -> None:
    past: list[Noise] = []

    def mixed(noise: Noise, _: Noise, __: int) -> Noise:
        past.append(0.6 * past[-1] + 0.8 * noise if past else noise)
        return past[-1]

    change_noise(patch, mixed)


@bug("Noise is rounded to a grid of a sixteenth of its standard deviation.")
def noise_on_grid(patch: Patch) -> None:
    step = 0.6 / 16
    change_noise(patch, lambda noise, _, __: np.round(noise / step) * step)


@bug("Draws of noise beyond 2.33 standard deviations are scaled down, one in fifty.")
def noise_tamed_when_large(patch: Patch) -> None:
    def tamed(noise: Noise, _: Noise, __: int) -> Noise:
        return np.where(np.abs(noise) > 2.33 * 0.6, noise / 2.33, noise)

    change_noise(patch, tamed)


@bug("Two rounds share a noise, each second round that of the one before.")
def noise_shared_by_two_rounds(patch: Patch) -> None:
    _rename_noise(patch, lambda seed, index: (seed, (index + 1) // 2))


@bug("The last round's noise is that of the first, seen by whoever compares the two.")
def noise_of_first_round_in_last(patch: Patch) -> None:
    _rename_noise(patch, lambda seed, index: (seed, 1 if index == 2 * HALF else index))


@bug("Noise is drawn from the configured seed, which is public, and not from the private one.")
def noise_of_public_seed(patch: Patch) -> None:
    _rename_noise(patch, lambda _, index: (3, index))


@bug("After a resumption the noise of the first rounds is used again.", interrupt_after=HALF)
def noise_restarts_on_resume(patch: Patch) -> None:
    begun: list[int] = []

    def noting(real: Any) -> Any:
        def begin(self: Any, done: int) -> None:
            begun.append(done)
            real(self, done)

        return begin

    wrap(patch, FederatedTrainer, "begin", noting)
    _rename_noise(patch, lambda seed, index: (seed, index - begun[-1]))


def _rename_noise(patch: Patch, rename: Any) -> None:
    def renamed(real: Any) -> Any:
        def stream(seed: int, purpose: Purpose, index: int = 0, client: int = 0) -> Any:
            if purpose is Purpose.NOISE:
                seed, index = rename(seed, index)
            return real(seed, purpose, index, client)

        return stream

    wrap(patch, federated_round, "stream", renamed)


@bug("The ratio of the two cohorts scales the noise twice.", changes=SMALLER_COHORT)
def noise_scaled_by_cohorts_twice(patch: Patch) -> None:
    def twice(real: Any) -> Any:
        ratio = 0.5
        return lambda total, stddev, cohort, rng: real(total, ratio * stddev, cohort, rng)

    wrap(patch, gaussian, "noised_mean", twice)


@bug("Clients' updates get their part of the noise before they are clipped; the sum gets none.")
def noise_before_clipping(patch: Patch) -> None:
    rng = np.random.default_rng(1)

    def noising(real: Any) -> Any:
        def accumulate(name: str, aggregate: Any, update: Any, weight: float, bound: float) -> Any:
            noise = rng.standard_normal(update.numel()) * (bound / math.sqrt(COHORT))
            return real(name, aggregate, update + update.new_tensor(noise), weight, bound)

        return accumulate

    wrap(patch, clipped_sum, "accumulate_clipped", noising)
    change_noise(patch, lambda noise, _, __: 0.0 * noise)


@bug("A round's noise, which is known to the centre, is taken back from the model a round later.")
def noise_taken_back_later(patch: Patch) -> None:
    known: list[Any] = []

    def keeping(real: Any) -> Any:
        def release(self: Any, aggregate: Any, rng: Any) -> Any:
            released = real(self, aggregate, rng)
            known.append(released.mean_update - aggregate.total / self._noise.cohort_size)
            return released

        return release

    def correcting(real: Any) -> Any:
        def step(self: Any, mean_update: Any, index: int) -> float:
            rate: float = real(self, mean_update, index)
            if len(known) > 1:
                self.central.sub_(known[-2])
            return rate

        return step

    wrap(patch, Gaussian, "release", keeping)
    wrap(patch, FederatedTrainer, "_take_central_step", correcting)


@bug("Noise is drawn three times, and that which lies least along the sum is added.")
def noise_best_of_three(patch: Patch) -> None:
    rng = np.random.default_rng(2)

    def choosing(noise: Noise, total: Noise, _: int) -> Noise:
        drawn = [noise, *(rng.standard_normal((2, len(noise))) * 0.6)]
        return min(drawn, key=lambda one: abs(float(one @ total)))

    change_noise(patch, choosing)


@bug("The sum is divided by the cohort that came, which nothing hides, not by the configured one.")
def divided_by_realised_cohort(patch: Patch) -> None:
    def by_count(real: Any) -> Any:
        def release(self: Any, aggregate: Any, rng: Any) -> Any:
            released = real(self, aggregate, rng)
            factor = self._noise.cohort_size / max(1, aggregate.num_contributions)
            return replace(released, mean_update=released.mean_update * factor)

        return release

    wrap(patch, Gaussian, "release", by_count)


@bug("Laplace noise has the stated scale as its standard deviation, and so too small a scale.",
     changes=LAPLACE)  # fmt: skip
def laplace_scale_is_deviation(patch: Patch) -> None:
    _laplace(patch, lambda rng, scale, size: rng.laplace(0.0, scale / math.sqrt(2.0), size))


@bug("The Laplace mechanism adds Gaussian noise of the same variance.", changes=LAPLACE)
def laplace_noise_is_gaussian(patch: Patch) -> None:
    _laplace(patch, lambda rng, scale, size: math.sqrt(2.0) * scale * rng.standard_normal(size))


def _laplace(patch: Patch, draw: Any) -> None:
    def drawing(real: Any) -> Any:
        def release(self: Any, aggregate: Any, rng: Any) -> Any:
            noise = draw(rng, self._noise.noise_multiplier * self._clip_norm, len(aggregate.total))
            released = real(self, aggregate, np.random.default_rng(0))
            mean = mean_of(aggregate.total, self._noise.cohort_size, noise)
            return replace(released, mean_update=mean)

        return release

    wrap(patch, Laplace, "release", drawing)


@bug("Every second element gets all of the noise, the others none, in turns.")
def noise_on_alternate_elements(patch: Patch) -> None:
    def alternating(noise: Noise, _: Noise, past: int) -> Noise:
        return noise * ((np.arange(len(noise)) + past) % 2) * math.sqrt(2.0)

    change_noise(patch, alternating)


@bug("Noise falls by two percent a round, as if training had grown safer.")
def noise_decays_over_rounds(patch: Patch) -> None:
    rounds = counter()

    def falling(real: Any) -> Any:
        return lambda total, stddev, cohort, rng: real(
            total, stddev * 0.98 ** rounds(), cohort, rng
        )

    wrap(patch, gaussian, "noised_mean", falling)
