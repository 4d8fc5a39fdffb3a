"""Planted bugs of the noise: its scale, its law, its freshness, and what it depends on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pfl_bench.federated import cohort as cohort_training
from pfl_bench.federated import round as federated
from pfl_bench.rng import Purpose
from pfl_bench.rng import stream as real_stream
from privacy.aggregate import Aggregate
from privacy.mechanism import NoiseScale, Release, noised_mean
from privacy.mechanisms import gaussian, laplace, privunit
from privacy.mechanisms.adaptive_gaussian import AdaptiveGaussian
from privacy.mechanisms.banded_matrix_factorization import BandedMatrixFactorization
from privacy.mechanisms.gaussian import Gaussian
from tests.sabotage.planting import (
    ADAPTIVE,
    BANDED,
    LAPLACE,
    LOCAL,
    PRIVUNIT,
    ROUNDS,
    SMALLER_COHORT,
    Bug,
    Patch,
    Plant,
)

Noise = Callable[[Tensor, float, np.random.Generator], Tensor]


def noise_of(noise: Noise) -> Plant:
    """Plant another noise into the Gaussian mechanism, whose claims stay as they are.

    Args:
        noise: Of the sum, the claimed standard deviation and the stream: shape (P,).
    """

    def wrong(total: Tensor, stddev: float, cohort: float, rng: np.random.Generator) -> Tensor:
        return (total + noise(total, stddev, rng)) / cohort

    def plant(patch: Patch) -> None:
        patch.setattr(gaussian, "noised_mean", wrong)

    return plant


def normal(total: Tensor, stddev: float, rng: np.random.Generator) -> Tensor:
    return torch.from_numpy(rng.normal(0.0, stddev, total.numel())).to(torch.float32)


def uniform(total: Tensor, stddev: float, rng: np.random.Generator) -> Tensor:
    width = math.sqrt(3.0) * stddev
    return torch.from_numpy(rng.uniform(-width, width, total.numel())).to(torch.float32)


def truncated(total: Tensor, stddev: float, rng: np.random.Generator) -> Tensor:
    return normal(total, stddev, rng).clamp(-2.0 * stddev, 2.0 * stddev)


def on_half(total: Tensor, stddev: float, rng: np.random.Generator) -> Tensor:
    noise = normal(total, stddev, rng)
    noise[total.numel() // 2 :] = 0.0
    return noise


def on_half_but_of_the_same_energy(
    total: Tensor, stddev: float, rng: np.random.Generator
) -> Tensor:
    return math.sqrt(2.0) * on_half(total, stddev, rng)


def one_draw_for_all(total: Tensor, stddev: float, rng: np.random.Generator) -> Tensor:
    return torch.full_like(total, float(rng.normal(0.0, stddev)))


def shifted(total: Tensor, stddev: float, rng: np.random.Generator) -> Tensor:
    return normal(total, stddev, rng) + 0.2 * stddev


def along_the_sum(total: Tensor, stddev: float, rng: np.random.Generator) -> Tensor:
    return normal(total, stddev, rng) + 2.0 * stddev * total / total.norm()


def across_the_sum(total: Tensor, stddev: float, rng: np.random.Generator) -> Tensor:
    noise, unit = normal(total, stddev, rng), total / total.norm()
    return noise - torch.dot(noise, unit) * unit


def ratio_twice(patch: Patch) -> None:
    def build(options: Any, noise: NoiseScale) -> Gaussian:
        wrong = replace(noise, noise_multiplier=noise.noise_multiplier * noise.ratio)
        return Gaussian(options.clip_norm, wrong)

    patch.setattr(gaussian, "build", build)


def ratio_squared(patch: Patch) -> None:
    ratio = property(lambda noise: (noise.cohort_size / noise.noise_cohort_size) ** 2)
    patch.setattr(NoiseScale, "ratio", ratio)


def after_release(change: Callable[[Gaussian, Aggregate, Release], Release]) -> Plant:
    """Change what the Gaussian mechanism has released."""

    def plant(patch: Patch) -> None:
        real = Gaussian.release

        def release(self: Gaussian, aggregate: Aggregate, rng: np.random.Generator) -> Release:
            return change(self, aggregate, real(self, aggregate, rng))

        patch.setattr(Gaussian, "release", release)

    return plant


def over_realised_cohort(mechanism: Gaussian, aggregate: Aggregate, release: Release) -> Release:
    factor = mechanism._noise.cohort_size / max(1, aggregate.num_contributions)
    return replace(release, mean_update=release.mean_update * factor)


def over_deployment_s_cohort(
    mechanism: Gaussian, aggregate: Aggregate, release: Release
) -> Release:
    return replace(release, mean_update=release.mean_update * mechanism._noise.ratio)


def divided_twice(mechanism: Gaussian, aggregate: Aggregate, release: Release) -> Release:
    mean = aggregate.total / mechanism._noise.cohort_size
    noise = release.mean_update - mean
    return replace(release, mean_update=mean + noise / mechanism._noise.cohort_size)


def by_each_worker(share: float) -> Plant:
    """Two workers noise their half of the cohort each, by a share of the standard deviation."""

    def plant(patch: Patch) -> None:
        def wrong(total: Tensor, stddev: float, cohort: float, rng: np.random.Generator) -> Tensor:
            halves = [noised_mean(total / 2.0, share * stddev, cohort, rng) for _ in range(2)]
            return halves[0] + halves[1]

        patch.setattr(gaussian, "noised_mean", wrong)

    return plant


def noise_stream(round_of: Callable[[int], int]) -> Plant:
    """Open another round's stream of noise."""

    def stream(seed: int, purpose: Purpose, round_index: int = 0, client: int = 0) -> Any:
        if purpose is Purpose.NOISE:
            round_index = round_of(round_index)
        return real_stream(seed, purpose, round_index, client)

    return lambda patch: patch.setattr(federated, "stream", stream)


def unseeded_noise(patch: Patch) -> None:
    def stream(seed: int, purpose: Purpose, round_index: int = 0, client: int = 0) -> Any:
        if purpose is Purpose.NOISE:
            return np.random.default_rng()
        return real_stream(seed, purpose, round_index, client)

    patch.setattr(federated, "stream", stream)


class CountDraws:
    """A stream whose single draws, which the count's noise is made of, are replaced."""

    def __init__(self, rng: np.random.Generator, draw: float) -> None:
        self._rng = rng
        self._draw = draw

    def standard_normal(self, size: int | None = None) -> Any:
        return self._draw if size is None else self._rng.standard_normal(size)


def count_noise(draw: float) -> Plant:
    def plant(patch: Patch) -> None:
        real = AdaptiveGaussian.release

        def release(self: AdaptiveGaussian, aggregate: Aggregate, rng: Any) -> Release:
            return real(self, aggregate, CountDraws(rng, draw))

        patch.setattr(AdaptiveGaussian, "release", release)

    return plant


def same_noise_of_all_clients(patch: Patch) -> None:
    real = cohort_training.UpdateAggregator._client_noise
    patch.setattr(
        cohort_training.UpdateAggregator,
        "_client_noise",
        lambda self, index, client: real(self, index, 0),
    )


def independent_rows(patch: Patch) -> None:
    patch.setattr(BandedMatrixFactorization, "_correlated", lambda self, draws: draws)


def forgotten_noise(patch: Patch) -> None:
    def load_state_dict(self: BandedMatrixFactorization, state: Any) -> None:
        self._rounds = int(state["rounds"])

    patch.setattr(BandedMatrixFactorization, "load_state_dict", load_state_dict)


def gaussian_for_laplace(patch: Patch) -> None:
    def wrong(self: Any, aggregate: Aggregate, rng: np.random.Generator) -> Release:
        release: Release = real(self, aggregate, rng)
        cohort = self._noise.cohort_size
        mean = noised_mean(aggregate.total, release.update_noise_stddev, cohort, rng)
        return replace(release, mean_update=mean)

    real = laplace.Laplace.release
    patch.setattr(laplace.Laplace, "release", wrong)


def unrandomized_reports(patch: Patch) -> None:
    patch.setattr(privunit, "_report", lambda clipped, clip_norm, plan, rng: clipped)


def cancelling_reports(patch: Patch) -> None:
    """Every other report takes back what the one before has across its own direction."""
    real, held = privunit.randomize, []

    def randomize(direction: Any, plan: Any, rng: Any) -> Any:
        report = real(direction, plan, rng)
        if direction is None:
            return report
        along = float(report @ direction) * direction
        if not held:
            held.append(report - along)
            return report
        across = held.pop()
        across = across - float(across @ direction) * direction
        return along - across * (np.linalg.norm(report - along) / np.linalg.norm(across))

    patch.setattr(privunit, "randomize", randomize)


NOISE_BUGS = (
    Bug(
        "no_noise",
        "no noise at all",
        "the mean without noise",
        expects=("noise_scale", "noise_replay"),
        plant=noise_of(lambda total, stddev, rng: torch.zeros_like(total)),
    ),
    Bug(
        "noise_two_thirds",
        "noise of two thirds of the standard deviation",
        "`noised_mean` is given 2/3 of it",
        expects=("noise_scale", "noise_replay"),
        plant=noise_of(lambda total, stddev, rng: normal(total, stddev * 2.0 / 3.0, rng)),
    ),
    Bug(
        "noise_divided_twice",
        "noise divided by the cohort twice: added to the mean as if to the sum",
        "in `Gaussian.release`",
        expects=("noise_scale", "noise_replay"),
        plant=after_release(divided_twice),
    ),
    Bug(
        "cohort_ratio_twice",
        "noise scaled by C_sm / C_lg twice, in the mechanism",
        "`gaussian.build` scales what is scaled again",
        expects=("noise_multiplier",),
        plant=ratio_twice,
        changes=SMALLER_COHORT,
    ),
    Bug(
        "cohort_ratio_squared",
        "noise scaled by C_sm / C_lg twice, in plan and mechanism alike",
        "`NoiseScale.ratio` is squared",
        expects=("configuration",),
        plant=ratio_squared,
        changes=SMALLER_COHORT,
    ),
    Bug(
        "realised_cohort",
        "sum divided by the realised cohort",
        "in `Gaussian.release`",
        expects=("noise_scale",),
        plant=after_release(over_realised_cohort),
    ),
    Bug(
        "deployment_s_cohort",
        "sum divided by the cohort whose noise is simulated",
        "in `Gaussian.release`",
        expects=("noise_replay", "noise_scale"),
        plant=after_release(over_deployment_s_cohort),
        changes=SMALLER_COHORT,
    ),
    Bug(
        "noise_per_worker",
        "two workers noise their sums apart: more noise than accounted",
        "`noised_mean` for each half",
        expects=("noise_scale",),
        plant=by_each_worker(1.0),
    ),
    Bug(
        "noise_shared_by_workers",
        "two workers add half of the standard deviation each, not of the variance",
        "`noised_mean` for each half",
        expects=("noise_scale",),
        plant=by_each_worker(0.5),
    ),
    Bug(
        "same_seed_every_round",
        "the same noise in every round",
        "the stream of noise is named without the round",
        expects=("noise_replay",),
        plant=noise_stream(lambda index: 1),
    ),
    Bug(
        "noise_comes_again",
        "the noise of a round comes again ten rounds later",
        "the stream of noise is named by the round modulo 10",
        expects=("noise_replay",),
        plant=noise_stream(lambda index: index % 10),
    ),
    Bug(
        "noise_new_on_replay",
        "a resumed run replays recorded rounds with other noise: two releases of one round",
        "the stream of noise is seeded by the system's entropy",
        words="its replay differs",
        plant=unseeded_noise,
        interrupt_after=ROUNDS // 2 + 3,
    ),
    Bug(
        "noise_uniform",
        "uniform noise of the right variance",
        "in `noised_mean`",
        expects=("noise_replay",),
        plant=noise_of(uniform),
    ),
    Bug(
        "noise_truncated",
        "noise cut off at two standard deviations",
        "in `noised_mean`",
        expects=("noise_scale", "noise_replay"),
        plant=noise_of(truncated),
        # Fewer do not tell it by the scale.
        changes={"federated__num_rounds": 20},
    ),
    Bug(
        "noise_on_half",
        "noise on half of the coordinates",
        "in `noised_mean`",
        expects=("noise_scale", "noise_replay"),
        plant=noise_of(on_half),
    ),
    Bug(
        "noise_on_half_same_energy",
        "noise on half of the coordinates, of twice the variance",
        "in `noised_mean`",
        expects=("noise_replay",),
        plant=noise_of(on_half_but_of_the_same_energy),
    ),
    Bug(
        "noise_one_draw",
        "one draw of noise for all coordinates",
        "in `noised_mean`",
        expects=("noise_replay", "noise_scale"),
        plant=noise_of(one_draw_for_all),
    ),
    Bug(
        "noise_not_centred",
        "noise whose mean is a fifth of its standard deviation",
        "in `noised_mean`",
        expects=("noise_replay",),
        plant=noise_of(shifted),
    ),
    Bug(
        "noise_along_sum",
        "noise that leans towards the sum",
        "in `noised_mean`",
        expects=("noise_replay",),
        plant=noise_of(along_the_sum),
    ),
    Bug(
        "noise_across_sum",
        "noise in all directions but that of the sum",
        "in `noised_mean`",
        expects=("noise_replay",),
        plant=noise_of(across_the_sum),
    ),
    Bug(
        "count_without_noise",
        "no noise on the count of unclipped updates",
        "the count's draw is 0",
        expects=("noise_replay",),
        plant=count_noise(0.0),
        changes=ADAPTIVE,
    ),
    Bug(
        "count_noise_fixed",
        "the same noise on the count in every round",
        "the count's draw is 0.7",
        expects=("noise_replay",),
        plant=count_noise(0.7),
        changes=ADAPTIVE,
    ),
    Bug(
        "clients_share_noise",
        "local noise: all clients of a round draw from one stream",
        "`UpdateAggregator._client_noise` without the client",
        expects=("noise_scale",),
        plant=same_noise_of_all_clients,
        changes=LOCAL,
    ),
    Bug(
        "unrandomized_reports",
        "PrivUnit's clients send their clipped updates as they are",
        "`privunit._report` gives back what it gets",
        expects=("noise_scale",),
        plant=unrandomized_reports,
        changes=PRIVUNIT,
    ),
    Bug(
        "cancelling_reports",
        "PrivUnit's clients draw in pairs: their reports cancel across their updates",
        "in `privunit.randomize`",
        expects=("noise_scale",),
        plant=cancelling_reports,
        changes=PRIVUNIT,
    ),
    Bug(
        "gaussian_for_laplace",
        "Gaussian noise of the same variance where Laplace noise is accounted",
        "in `Laplace.release`",
        expects=("noise_replay",),
        plant=gaussian_for_laplace,
        changes=LAPLACE,
    ),
    Bug(
        "factorization_left_out",
        "matrix factorisation without its correlation: independent noise",
        "`BandedMatrixFactorization._correlated` gives back its draws",
        expects=("noise_replay", "noise_scale"),
        plant=independent_rows,
        changes=BANDED,
    ),
    Bug(
        "factorization_forgets",
        "matrix factorisation: a resumed run forgets the noise that it has to take back",
        "`load_state_dict` restores the round alone",
        expects=("noise_replay",),
        plant=forgotten_noise,
        changes=BANDED,
        interrupt_after=ROUNDS // 2,
    ),
)
