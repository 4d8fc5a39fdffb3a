"""Bugs planted blind: the noise.

Where the claim is 4.07: 50 of 300 users in 20 rounds, multiplier 1, delta 0.0019. Tests have 20 of
120 users.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pfl_bench.federated import round as federated
from pfl_bench.federated.cohort import UpdateAggregator
from pfl_bench.rng import Purpose, stream
from privacy.aggregate import Aggregate
from privacy.mechanism import Release
from privacy.mechanisms import gaussian
from privacy.mechanisms.adaptive_gaussian import AdaptiveGaussian
from privacy.mechanisms.gaussian import Gaussian
from tests.sabotage.blind_planting import (
    Blind,
    Vector,
    blind,
    counting_from_resume,
    noising,
    witness,
)
from tests.sabotage.planting import (
    ADAPTIVE,
    LOCAL,
    ROUNDS,
    Patch,
)

HALF = ROUNDS // 2
FEW = {"federated__cohort_size": 2}


def alike_in_two_layers(
    rng: np.random.Generator, total: Tensor, stddev: float, state: dict[str, Any]
) -> Vector:
    """Each layer opens the round's stream for itself: the bias has the first weights' noise."""
    noise = rng.standard_normal(total.numel()) * stddev
    noise[-10:] = noise[:10]
    return noise


def where_it_is_used(
    rng: np.random.Generator, total: Tensor, stddev: float, state: dict[str, Any]
) -> Vector:
    """The sum is sparse, and only what it holds is noised."""
    noise = rng.standard_normal(total.numel()) * stddev
    return np.where(total.numpy() == 0.0, 0.0, noise)


def in_half(
    rng: np.random.Generator, total: Tensor, stddev: float, state: dict[str, Any]
) -> Vector:
    """The noise is float16, so that what the sum has beyond that is bare."""
    return (rng.standard_normal(total.numel()) * stddev).astype(np.float16).astype(np.float64)


def without_outliers(
    rng: np.random.Generator, total: Tensor, stddev: float, state: dict[str, Any]
) -> Vector:
    """Beyond three standard deviations it is cut off; where it is, the sum is bare."""
    return np.clip(rng.standard_normal(total.numel()), -3.0, 3.0) * stddev


def bias_bare(
    rng: np.random.Generator, total: Tensor, stddev: float, state: dict[str, Any]
) -> Vector:
    noise = rng.standard_normal(total.numel()) * stddev
    noise[-10:] = 0.0
    return noise


def less_in_the_end(
    rng: np.random.Generator, total: Tensor, stddev: float, state: dict[str, Any]
) -> Vector:
    """It follows a schedule down to 0.8, which nobody has told the accountant."""
    state["round"] = state.get("round", 0) + 1
    factor = 1.0 - 0.2 * (state["round"] - 1) / (ROUNDS - 1)
    return rng.standard_normal(total.numel()) * stddev * factor


def better_of_two(
    rng: np.random.Generator, total: Tensor, stddev: float, state: dict[str, Any]
) -> Vector:
    """Of two draws, the one that points where the sum does."""
    draws = rng.standard_normal((2, total.numel())) * stddev
    along = draws @ total.numpy()
    chosen: Vector = draws[int(along[1] > along[0])]
    return chosen


def of_a_pool(
    rng: np.random.Generator, total: Tensor, stddev: float, state: dict[str, Any]
) -> Vector:
    """Drawing is slow: a few thousand normals are drawn once, each round begins anywhere there."""
    if "pool" not in state:
        state["pool"] = rng.standard_normal(4096)
    start = rng.integers(4096)
    pool: Vector = np.roll(state["pool"], -start)[: total.numel()]
    return pool * stddev


def permuted(
    rng: np.random.Generator, total: Tensor, stddev: float, state: dict[str, Any]
) -> Vector:
    if "noise" not in state:
        state["noise"] = rng.standard_normal(total.numel())
    noise: Vector = rng.permutation(state["noise"])
    return noise * stddev


def antithetic(
    rng: np.random.Generator, total: Tensor, stddev: float, state: dict[str, Any]
) -> Vector:
    """Every second round has the noise of the round before, its sign turned."""
    if "noise" in state:
        turned: Vector = -state.pop("noise")
        return turned
    state["noise"] = rng.standard_normal(total.numel()) * stddev
    return state["noise"].copy()


def shared_by_clients(patch: Patch) -> None:
    """Each client adds its part of the noise of a cohort as expected; fewer come, less is there."""
    real = Gaussian.release

    def release(self: Gaussian, aggregate: Aggregate, rng: np.random.Generator) -> Release:
        honest = self._noise
        part = float(np.sqrt(aggregate.num_contributions / honest.cohort_size))
        claimed = honest.noise_multiplier * honest.ratio * self._clip_norm
        noise = rng.standard_normal(aggregate.total.numel()) * claimed * part
        witness(part - 1.0)
        mean = gaussian.noised_mean(
            aggregate.total + torch.from_numpy(noise).float(), 0.0, honest.cohort_size, rng
        )
        return Release(mean, self._clip_norm, claimed, None, None)

    assert real is Gaussian.release
    patch.setattr(Gaussian, "release", release)


def stream_of_a_byte(patch: Patch) -> None:
    """The round is kept in three bits: the noise of every eighth round is the same."""
    real = federated.stream

    def named(seed: int, purpose: Purpose, index: int = 0, client: int = 0) -> np.random.Generator:
        if purpose is Purpose.NOISE:
            witness(index // 8)
            index %= 8
        return real(seed, purpose, index, client)

    patch.setattr(federated, "stream", named)


def noise_restarts(patch: Patch) -> None:
    counting_from_resume(patch, (int(Purpose.NOISE),))


def none_for_nobody(patch: Patch) -> None:
    real = gaussian.noised_mean

    def noised(total: Tensor, stddev: float, cohort: float, rng: np.random.Generator) -> Tensor:
        empty = not bool(total.any())
        witness(empty)
        return real(total, 0.0 if empty else stddev, cohort, rng)

    patch.setattr(gaussian, "noised_mean", noised)


def of_the_user(patch: Patch) -> None:
    """A client's own stream is named by the user and not by the round."""

    def client_noise(self: UpdateAggregator, index: int, client: int) -> np.random.Generator:
        witness(index - 1)
        return stream(self._seed, Purpose.CLIENT_NOISE, 1, client)

    patch.setattr(UpdateAggregator, "_client_noise", client_noise)


def count_from_update_noise(patch: Patch) -> None:
    """The count's noise is from the stream's beginning, as the first parameter's is."""
    real = AdaptiveGaussian.release

    class Twice:
        def __init__(self, rng: np.random.Generator) -> None:
            self._rng, self._first = rng, 0.0

        def standard_normal(self, size: int | None = None) -> Any:
            if size is None:
                witness(self._first)
                return self._first
            drawn = self._rng.standard_normal(size)
            self._first = float(drawn[0])
            return drawn

    def release(self: AdaptiveGaussian, aggregate: Aggregate, rng: Any) -> Release:
        twice: Any = Twice(rng)
        return real(self, aggregate, twice)

    patch.setattr(AdaptiveGaussian, "release", release)


NOISE: tuple[Blind, ...] = (
    blind(
        "two_layers_alike",
        "the bias has the same noise as the first weights",
        "`noised_mean`",
        "the difference of two elements is bare",
        "infinite",
        0.1,
        plant=noising(alike_in_two_layers),
        expects=("noise_replay",),
    ),
    blind(
        "noise_where_used",
        "elements of the sum that are zero get no noise",
        "`noised_mean`",
        "which features a cohort has is bare",
        "infinite",
        0.1,
        plant=noising(where_it_is_used),
        expects=(
            "noise_scale",
            "noise_replay",
        ),
    ),
    blind(
        "noise_in_half",
        "the noise is float16: the last digits of the sum are bare",
        "`noised_mean`",
        "what the sum has beyond the noise's grid is released",
        "infinite",
        1e-5,
        plant=noising(in_half),
        expects=("noise_replay",),
    ),
    blind(
        "noise_without_outliers",
        "the noise is cut off at three standard deviations",
        "`noised_mean`",
        "two elements a round are the sum's own, moved by a constant",
        "infinite",
        0.01,
        plant=noising(without_outliers),
        expects=("noise_replay",),
    ),
    blind(
        "bias_bare",
        "the ten elements of the bias get no noise",
        "`noised_mean`",
        "the cohort's labels are bare",
        "infinite",
        0.1,
        plant=noising(bias_bare),
        expects=("noise_replay",),
    ),
    blind(
        "less_noise_in_the_end",
        "the noise falls to 0.8 of what is claimed",
        "`noised_mean`",
        "the multiplier of later rounds",
        "about 5.0",
        0.1,
        plant=noising(less_in_the_end),
        expects=(
            "noise_scale",
            "noise_replay",
        ),
    ),
    blind(
        "better_of_two_noises",
        "of two noises the one along the sum is taken",
        "`noised_mean`",
        "the choice is by the sum itself, and unpaid",
        "up to 8 (both draws released)",
        0.1,
        plant=noising(better_of_two),
        expects=("noise_replay",),
    ),
    blind(
        "noise_of_a_pool",
        "rounds take their noise from anywhere in 4,096 normals",
        "`noised_mean`",
        "rounds share noise, shifted; their difference is bare",
        "infinite",
        0.1,
        plant=noising(of_a_pool),
        expects=("noise_replay",),
    ),
    blind(
        "noise_permuted",
        "one draw of noise, in another order each round",
        "`noised_mean`",
        "the noise is known but for its order",
        "infinite",
        0.1,
        plant=noising(permuted),
        # Fewer do not tell it by the scale.
        changes={"federated__num_rounds": 20},
        expects=(
            "noise_scale",
            "noise_replay",
        ),
    ),
    blind(
        "noise_antithetic",
        "every second round has the noise of the last, its sign turned",
        "`noised_mean`",
        "the sum of two rounds is bare",
        "infinite",
        0.1,
        plant=noising(antithetic),
        expects=("noise_replay",),
    ),
    blind(
        "noise_shared_by_clients",
        "each client adds its part of the noise of the expected cohort",
        "`Gaussian.release`",
        "a small cohort has little noise",
        "about 4.3, and infinite for an empty cohort",
        0.05,
        plant=shared_by_clients,
        expects=("noise_replay", "noise_scale"),
    ),
    blind(
        "round_in_three_bits",
        "rounds 1, 9 and 17 have the same noise, and so on",
        "`stream` of NOISE",
        "the difference of two rounds is bare",
        "infinite",
        1.0,
        plant=stream_of_a_byte,
        expects=("noise_replay",),
    ),
    blind(
        "noise_restarts_at_resume",
        "the resumed half has the noise of the first half",
        "`stream` of NOISE counts from the resume",
        "the difference of two rounds is bare",
        "infinite",
        1.0,
        plant=noise_restarts,
        interrupt_after=HALF,
        expects=("noise_replay",),
    ),
    blind(
        "no_noise_for_nobody",
        "an empty cohort releases zeros",
        "`noised_mean`, at a cohort of 2",
        "who would have been alone is seen",
        "infinite, of a claim of 0.36",
        1.0,
        plant=none_for_nobody,
        changes=FEW,
        expects=("noise_replay", "noise_scale", "releases"),
    ),
    blind(
        "client_noise_of_the_user",
        "a client's own noise is the same in all of its rounds",
        "`UpdateAggregator._client_noise`",
        "the difference of two reports of a user is bare",
        "infinite",
        1.0,
        plant=of_the_user,
        changes=LOCAL,
        expects=("noise_replay",),
    ),
    blind(
        "count_noise_of_the_update",
        "the count's noise is that of the first parameter",
        "`AdaptiveGaussian.release`",
        "both together are bare",
        "infinite",
        0.1,
        plant=count_from_update_noise,
        changes=ADAPTIVE,
        expects=("noise_replay",),
    ),
)
