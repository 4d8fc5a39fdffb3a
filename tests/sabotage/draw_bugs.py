"""Planted bugs of single draws: noise that is cut, missing, or used twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pfl_bench.federated import cohort as cohort_training
from privacy.aggregate import Aggregate
from privacy.mechanism import Release
from privacy.mechanisms import privunit
from privacy.mechanisms.adaptive_gaussian import AdaptiveGaussian
from privacy.noise.privunit import design
from tests.sabotage.noise_bugs import CountDraws, Noise, noise_of, normal
from tests.sabotage.planting import ADAPTIVE, LOCAL, PRIVUNIT, Bug, Patch, Plant


def cut_at_three(total: Tensor, stddev: float, rng: np.random.Generator) -> Tensor:
    return normal(total, stddev, rng).clamp(-3.0 * stddev, 3.0 * stddev)


def redrawn_beyond_three(total: Tensor, stddev: float, rng: np.random.Generator) -> Tensor:
    noise = normal(total, stddev, rng)
    while bool((noise.abs() > 3.0 * stddev).any()):
        noise = torch.where(noise.abs() > 3.0 * stddev, normal(total, stddev, rng), noise)
    return noise


def second_half_again(sign: float, reverse: bool = False) -> Noise:
    """The second half of the vector is drawn from the stream of the first."""

    def noise(total: Tensor, stddev: float, rng: np.random.Generator) -> Tensor:
        drawn, half = normal(total, stddev, rng), total.numel() // 2
        again = sign * drawn[:half]
        drawn[half : 2 * half] = again.flip(0) if reverse else again
        return drawn

    return noise


def half_of_the_first(total: Tensor, stddev: float, rng: np.random.Generator) -> Tensor:
    """The second half goes with the first, but does not repeat it."""
    noise, half = normal(total, stddev, rng), total.numel() // 2
    noise[half : 2 * half] = 0.6 * noise[:half] + 0.8 * noise[half : 2 * half]
    return noise


def bare_elements(count: int, moving: bool = False) -> Noise:
    """So many elements without noise, the same or others in each round."""

    def noise(total: Tensor, stddev: float, rng: np.random.Generator) -> Tensor:
        drawn = normal(total, stddev, rng)
        first = int(rng.integers(total.numel() - count)) if moving else 300
        drawn[first : first + count] = 0.0
        return drawn

    return noise


def of_the_round_before_last(sign: float, part: slice = slice(None)) -> Plant:
    """Each other pair of rounds takes back, or adds again, the noise of the pair before."""

    def plant(patch: Patch) -> None:
        drawn: list[Tensor] = []

        def noise(total: Tensor, stddev: float, rng: np.random.Generator) -> Tensor:
            fresh = normal(total, stddev, rng)
            if len(drawn) % 4 >= 2:
                fresh[part] = sign * drawn[-2][part]
            drawn.append(fresh)
            return fresh

        noise_of(noise)(patch)

    return plant


def mostly_taken_back(patch: Patch) -> None:
    drawn: list[Tensor] = []

    def noise(total: Tensor, stddev: float, rng: np.random.Generator) -> Tensor:
        fresh = normal(total, stddev, rng)
        drawn.append(fresh if len(drawn) < 2 else 0.6 * fresh - 0.8 * drawn[-2])
        return drawn[-1]

    noise_of(noise)(patch)


def count_noise_of_the_update(place: int) -> Plant:
    """The count's draw is one that an element of the update had."""

    class Again(CountDraws):
        def standard_normal(self, size: int | None = None) -> Any:
            drawn = super().standard_normal(size)
            if size is not None and len(drawn) > place:
                self._draw = float(drawn[place])
            return drawn

    def plant(patch: Patch) -> None:
        real = AdaptiveGaussian.release

        def release(self: AdaptiveGaussian, aggregate: Aggregate, rng: Any) -> Release:
            return real(self, aggregate, Again(rng, 0.0))

        patch.setattr(AdaptiveGaussian, "release", release)

    return plant


def one_client_without_noise(patch: Patch) -> None:
    """The client's stream gives zeros."""
    real = cohort_training.UpdateAggregator._client_noise

    def noise(self: cohort_training.UpdateAggregator, index: int, client: int) -> Any:
        rng = real(self, index, client)
        return rng if client % 50 else Zeros()

    patch.setattr(cohort_training.UpdateAggregator, "_client_noise", noise)


class Zeros:
    """A stream of nothing."""

    def standard_normal(self, size: int) -> Any:
        return np.zeros(size)


def reports_of_more(patch: Patch) -> None:
    """Reports are drawn for a larger epsilon, and have the claimed length."""
    real = privunit._report

    def report(clipped: Tensor, clip_norm: float, plan: Any, rng: np.random.Generator) -> Tensor:
        wide = design(1.5 * plan.epsilon, plan.dimension)
        return real(clipped, clip_norm, wide, rng) * (wide.mean_length / plan.mean_length)

    patch.setattr(privunit, "_report", report)


def without_a_direction(total: Tensor, stddev: float, rng: np.random.Generator) -> Tensor:
    noise = normal(total, stddev, rng)
    unit = normal(total, 1.0, np.random.default_rng(7))
    unit /= unit.norm()
    return noise - torch.dot(noise, unit) * unit


DRAW_BUGS = (
    Bug(
        "noise_without_a_direction",
        "noise in all directions but one that is always the same, across all elements",
        "in `noised_mean`",
        expects=("noise_replay",),
        plant=noise_of(without_a_direction),
    ),
    Bug(
        "noise_cut_at_three",
        "noise cut off at three standard deviations",
        "in `noised_mean`",
        expects=("noise_replay",),
        plant=noise_of(cut_at_three),
    ),
    Bug(
        "noise_redrawn_beyond_three",
        "noise drawn again where it is beyond three standard deviations",
        "in `noised_mean`",
        expects=("noise_replay",),
        plant=noise_of(redrawn_beyond_three),
    ),
    Bug(
        "noise_taken_back",
        "the noise of round t is taken back in round t + 2",
        "in `noised_mean`",
        expects=("noise_replay",),
        plant=of_the_round_before_last(-1.0),
    ),
    Bug(
        "noise_partly_taken_back",
        "most of the noise of round t is taken back in round t + 2",
        "in `noised_mean`: correlation -0.8",
        expects=("noise_replay",),
        plant=mostly_taken_back,
    ),
    Bug(
        "layer_taken_back",
        "the noise of a layer's part in round t is taken back in round t + 2",
        "in `noised_mean`: the second half of the elements",
        expects=("noise_replay",),
        plant=of_the_round_before_last(-1.0, slice(325, None)),
    ),
    Bug(
        "layer_reseeded",
        "the second half of the noise repeats the first",
        "in `noised_mean`",
        expects=("noise_replay",),
        plant=noise_of(second_half_again(1.0)),
    ),
    Bug(
        "layer_negated",
        "the second half of the noise is the negative of the first",
        "in `noised_mean`",
        expects=("noise_replay",),
        plant=noise_of(second_half_again(-1.0)),
    ),
    Bug(
        "layer_reversed",
        "the second half of the noise is the first in reverse order",
        "in `noised_mean`",
        expects=("noise_replay",),
        plant=noise_of(second_half_again(1.0, reverse=True)),
    ),
    Bug(
        "layer_correlated",
        "the second half of the noise goes with the first (correlation 0.6)",
        "in `noised_mean`",
        expects=("noise_replay",),
        plant=noise_of(half_of_the_first),
    ),
    Bug(
        "ten_elements_bare",
        "ten elements without noise",
        "in `noised_mean`",
        expects=("noise_replay",),
        plant=noise_of(bare_elements(10)),
    ),
    Bug(
        "one_element_bare",
        "one element without noise, always the same",
        "in `noised_mean`",
        expects=("noise_replay",),
        plant=noise_of(bare_elements(1)),
    ),
    Bug(
        "one_element_bare_in_turn",
        "one element without noise, another one in each round",
        "in `noised_mean`",
        expects=("noise_replay",),
        plant=noise_of(bare_elements(1, moving=True)),
    ),
    Bug(
        "count_noise_is_first",
        "the count's noise is the first draw of the update's",
        "in `AdaptiveGaussian.release`",
        expects=("noise_replay",),
        plant=count_noise_of_the_update(0),
        changes=ADAPTIVE,
    ),
    Bug(
        "count_noise_is_inside",
        "the count's noise is a draw from the midst of the update's",
        "in `AdaptiveGaussian.release`",
        expects=("noise_replay",),
        plant=count_noise_of_the_update(400),
        changes=ADAPTIVE,
    ),
    Bug(
        "one_client_without_noise",
        "local noise: one client in fifty adds none",
        "`UpdateAggregator._client_noise` gives zeros",
        expects=("report_noise",),
        plant=one_client_without_noise,
        changes=LOCAL,
    ),
    Bug(
        "reports_of_more",
        "PrivUnit's reports are drawn for half again the epsilon, and have the claimed length",
        "`privunit._report` uses another cap",
        expects=("report_noise",),
        plant=reports_of_more,
        changes=PRIVUNIT,
    ),
)
