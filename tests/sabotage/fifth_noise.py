"""The fifth list: bugs of the noise, of what is added to it, and of clients' own reports."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from pfl_bench.federated import cohort, trainer
from pfl_bench.federated.trainer import FederatedTrainer
from pfl_bench.rng import Purpose
from privacy.mechanisms import adaptive_gaussian, gaussian, laplace, privunit
from privacy.mechanisms.tree_aggregation import TreeAggregation
from tests.sabotage.fifth_planting import (
    ADAPTIVE,
    CYCLIC,
    PLD,
    PRIVUNIT,
    REPORTS,
    ROUNDS,
    FifthBug,
    Noise,
    Patch,
    change_noise,
    change_stream,
    mechanism,
)
from tests.sabotage.paper_planting import counter, registering, wrap

BUGS: list[FifthBug] = []
bug = registering(BUGS, FifthBug)
LOCAL = (*ADAPTIVE, mechanism("local_gaussian"), *REPORTS)
# 75,010 parameters, which are noised in two pieces.
LARGE = (
    "model={name: mlp, hidden: 1000}",
    "federated.num_rounds=6",
    "federated.local_learning_rate=0.1",
    "checkpoint.every=2",
    mechanism("gaussian"),
)
PIECE = 1 << 16


@bug("The noise is scaled by the realised cohort over the configured one.", shared=True)
def noise_by_realised_cohort(patch: Patch) -> None:
    now = SimpleNamespace(factor=1.0)

    def releasing(real: Any) -> Any:
        def release(self: Any, aggregate: Any, rng: Any) -> Any:
            now.factor = aggregate.num_contributions / self._noise.cohort_size
            return real(self, aggregate, rng)

        return release

    def scaling(real: Any) -> Any:
        return lambda total, stddev, size, rng: real(total, stddev * now.factor, size, rng)

    wrap(patch, gaussian.Gaussian, "release", releasing)
    wrap(patch, gaussian, "noised_mean", scaling)


@bug("The noise of each round is that of round 1: differences of rounds are bare.")
def noise_same_every_round(patch: Patch) -> None:
    change_stream(patch, Purpose.NOISE, lambda seed, index: (seed, 1))


@bug("Every fourth round is released without noise, while the ledger claims it.")
def no_noise_on_eval_rounds(patch: Patch) -> None:
    before = counter()
    change_noise(patch, lambda noise, _: noise * ((before() + 1) % 4 != 0))


@bug("The last round has no noise.", settings=ADAPTIVE)
def no_noise_last_round(patch: Patch) -> None:
    before = counter()
    change_noise(patch, lambda noise, _: noise * (before() + 1 != ROUNDS))


@bug("Ten draws are repeated over all parameters: the noise has rank 10.", shared=True)
def noise_low_rank(patch: Patch) -> None:
    change_noise(patch, lambda noise, _: np.resize(noise[:10], len(noise)))


@bug("Noise is clamped to two standard deviations for stability: the tails tell.", shared=True)
def noise_clamped(patch: Patch) -> None:
    def clamped(noise: Noise, _: Any) -> Noise:
        return np.clip(noise, -2 * noise.std(), 2 * noise.std())

    change_noise(patch, clamped)


@bug("Noise is rounded to bfloat16, a coarse grid: the low bits of the sum are bare.", shared=True)
def noise_bfloat16(patch: Patch) -> None:
    def rounded(noise: Noise, _: Any) -> Any:
        return torch.from_numpy(noise).to(torch.bfloat16).to(torch.float32).numpy()

    change_noise(patch, rounded)


@bug("The noise is seeded by the public seed of the configuration, not by the private one.")
def noise_from_public_seed(patch: Patch) -> None:
    change_stream(patch, Purpose.NOISE, lambda seed, index: (0, index))


@bug("The noise of an even round is minus that of the odd one before: it cancels in the model.")
def antithetic_noise(patch: Patch) -> None:
    before, last = counter(), [np.zeros(0)]

    def mirrored(noise: Noise, _: Any) -> Noise:
        if before() % 2:
            return -last[0]
        last[0] = noise.copy()
        return noise

    change_noise(patch, mirrored)


@bug("Noise is added only where the raw sum is not zero (sparse noise): zeros tell.", shared=True)
def noise_only_where_nonzero(patch: Patch) -> None:
    change_noise(patch, lambda noise, total: noise * (total.numpy() != 0))


@bug(
    "Of 75,010 parameters each piece of 65,536 gets the same draws.",
    settings=LARGE,
    shared=True,
)
def noise_tiled(patch: Patch) -> None:
    change_noise(patch, lambda noise, _: np.resize(noise[:PIECE], len(noise)))


@bug("Of 75,010 parameters those beyond the first 65,536 get no noise.", settings=LARGE)
def tail_has_no_noise(patch: Patch) -> None:
    def cut(noise: Noise, _: Any) -> Noise:
        noise = noise.copy()
        noise[PIECE:] = 0
        return noise

    change_noise(patch, cut)


@bug("Noise is of torch's global generator, which the last client's training has seeded.")
def noise_from_torch_rng(patch: Patch) -> None:
    change_noise(patch, lambda noise, _: torch.randn(len(noise)).numpy() * noise.std())


@bug(
    "After a resume the streams of noise begin at round 1 again.",
    killed_after=8,
)
def noise_index_restarts_on_resume(patch: Patch) -> None:
    resumed_at = [0]

    def beginning(real: Any) -> Any:
        def begin(self: Any, done: int) -> None:
            resumed_at[0] = done
            real(self, done)

        return begin

    wrap(patch, FederatedTrainer, "begin", beginning)
    change_stream(patch, Purpose.NOISE, lambda seed, index: (seed, index - resumed_at[0]))


@bug("The sum is divided by the realised cohort, a denominator that depends on data.", shared=True)
def mean_by_realised_cohort(patch: Patch) -> None:
    def releasing(real: Any) -> Any:
        def release(self: Any, aggregate: Any, rng: Any) -> Any:
            released = real(self, aggregate, rng)
            factor = self._noise.cohort_size / max(1, aggregate.num_contributions)
            return replace(released, mean_update=released.mean_update * factor)

        return release

    wrap(patch, gaussian.Gaussian, "release", releasing)


@bug(
    "The adaptive bound is moved first, and the noise drawn at the new, smaller bound.",
    settings=(*ADAPTIVE, mechanism("adaptive_gaussian", 5.0, quantile=0.3)),
)
def noise_uses_next_bound(patch: Patch) -> None:
    now = SimpleNamespace(factor=1.0)

    def releasing(real: Any) -> Any:
        def release(self: Any, aggregate: Any, rng: Any) -> Any:
            fraction = aggregate.bit_sum / self._noise.cohort_size + 0.5
            now.factor = min(1.0, math.exp(-0.2 * (fraction - 0.3)))
            return real(self, aggregate, rng)

        return release

    def scaling(real: Any) -> Any:
        return lambda total, stddev, size, rng: real(total, stddev * now.factor, size, rng)

    wrap(patch, adaptive_gaussian.AdaptiveGaussian, "release", releasing)
    wrap(patch, adaptive_gaussian, "noised_mean", scaling)


@bug(
    "The tree's open nodes are forgotten: fresh noise of a leaf, accounted as the tree's.",
    settings=(*ADAPTIVE, mechanism("tree_aggregation"), *CYCLIC),
    shared=True,
)
def tree_forgets_nodes(patch: Patch) -> None:
    def drawing(real: Any) -> Any:
        def next_noise(self: Any, rng: Any, length: int) -> Any:
            rounds, self._rounds, self._open = self._rounds, 0, []
            try:
                return real(self, rng, length)
            finally:
                self._rounds = rounds

        return next_noise

    wrap(patch, TreeAggregation, "_next_noise", drawing)


@bug(
    "The scale of Laplace noise is too small by sqrt(2).",
    settings=(*ADAPTIVE, mechanism("laplace", 3.0), PLD, "privacy.epsilon=20.0"),
    shared=True,
)
def laplace_scale_is_stddev(patch: Patch) -> None:
    def dividing(real: Any) -> Any:
        def mean_of(total: Any, cohort_size: float, noise: Any = None) -> Any:
            return real(total, cohort_size, None if noise is None else noise / math.sqrt(2))

        return mean_of

    wrap(patch, laplace, "mean_of", dividing)


@bug("All clients of a round add the same noise.", settings=LOCAL, shared=True)
def local_noise_shared(patch: Patch) -> None:
    def client_noise(self: Any, index: int, client: int) -> Any:
        return cohort.stream(self._seed, Purpose.CLIENT_NOISE, index, 0)

    patch.setattr(cohort.UpdateAggregator, "_client_noise", client_noise)


@bug(
    "Workers draw clients' own noise from the public seed 0.",
    settings=(*LOCAL, "federated.workers=2"),
)
def workers_client_noise_seed(patch: Patch) -> None:
    def beginning(real: Any) -> Any:
        return lambda resolved, noise, seed, *digests: real(resolved, noise, 0, *digests)

    wrap(patch, trainer, "Begin", beginning)


@bug(
    "PrivUnit's choice of the cap spends epsilon, and the cap's size as much again.",
    settings=PRIVUNIT,
    shared=True,
)
def privunit_epsilon_twice(patch: Patch) -> None:
    def designing(real: Any) -> Any:
        def design(epsilon: float, length: int) -> Any:
            chosen = 1 / (1 + math.exp(-2 * epsilon))
            return replace(real(epsilon, length), choice_probability=chosen)

        return design

    wrap(patch, privunit, "design", designing)


@bug(
    "PrivUnit's reports are scaled by the update's norm: their length is bare of noise.",
    settings=(*ADAPTIVE, mechanism("privunit", 8.0), *REPORTS, PLD),
    shared=True,
)
def privunit_length_tells_norm(patch: Patch) -> None:
    def reporting(real: Any) -> Any:
        def report(clipped: Any, clip_norm: float, plan: Any, rng: Any) -> Any:
            share = min(1.0, float(clipped.norm()) / clip_norm)
            return real(clipped, clip_norm, plan, rng) * share

        return report

    wrap(patch, privunit, "_report", reporting)
