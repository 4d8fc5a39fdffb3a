"""Bugs of clipping, fixed and adaptive, that implementations of DP-FedAvg have had or may have.

Sources: McMahan et al. 2018 (flat and per-layer clipping), Andrew et al. 2021 (adaptive clipping).
"""

from __future__ import annotations

import math
from typing import Any

import torch

from pfl_bench.federated.cohort import CohortTraining
from privacy import clipping
from privacy.clipping import ClipOutcome, add_clipped_
from privacy.mechanisms import adaptive_gaussian, laplace
from privacy.mechanisms.adaptive_gaussian import AdaptiveGaussian
from privacy.noise import clipped_sum
from tests.sabotage.paper_planting import (
    ROUNDS,
    PaperBug,
    Patch,
    counter,
    follow_clients,
    registering,
    wrap,
)
from tests.sabotage.planting import ADAPTIVE, LAPLACE, SEQUENTIAL

BUGS: list[PaperBug] = []
bug = registering(BUGS)
_BIAS = 10


@bug("The norm that updates are clipped by leaves out the last layer's bias.")
def clip_norm_without_bias(patch: Patch) -> None:
    wrap(patch, clipping, "l2_norm", lambda real: lambda update: real(update[:-_BIAS]))


@bug("The norm that updates are clipped by is taken in bfloat16, up to 0.4 % off.")
def clip_norm_in_bfloat16(patch: Patch) -> None:
    def rounded(real: Any) -> Any:
        return lambda update: float(torch.tensor(real(update)).bfloat16())

    wrap(patch, clipping, "l2_norm", rounded)


@bug("Weights and bias are each clipped to the whole bound, so that a user moves sqrt(2) bounds.")
def clip_each_layer_to_whole_bound(patch: Patch) -> None:
    def by_layer(total: Any, update: Any, clip_norm: float) -> ClipOutcome:
        whole = clipping.clip_factor(clipping.l2_norm(update), clip_norm)
        outcome = add_clipped_(total[:-_BIAS], update[:-_BIAS], clip_norm)
        add_clipped_(total[-_BIAS:], update[-_BIAS:], clip_norm)
        return outcome._replace(unclipped=whole == 1.0)

    patch.setattr(clipped_sum, "add_clipped_", by_layer)


@bug("Only updates beyond one and a half bounds are clipped, the others are added as they are.")
def clip_from_one_and_a_half_bounds(patch: Patch) -> None:
    def lenient(real: Any) -> Any:
        return lambda norm, bound: 1.0 if norm <= 1.5 * bound else real(norm, bound)

    wrap(patch, clipping, "clip_factor", lenient)


@bug("Updates within the bound are scaled up to it, although they are said to be left as they are.")
def clip_scales_small_updates_up(patch: Patch) -> None:
    def lifting(real: Any) -> Any:
        return lambda norm, bound: real(norm, bound) if norm >= bound else bound / max(norm, 1e-9)

    wrap(patch, clipping, "clip_factor", lifting)


@bug("An update is clipped by the norm of the client before it: one place off in a list of norms.")
def clip_by_norm_of_client_before(patch: Patch) -> None:
    norms = [0.0]

    def late(real: Any) -> Any:
        def l2_norm(update: Any) -> float:
            norms.append(real(update))
            return norms[-2]

        return l2_norm

    wrap(patch, clipping, "l2_norm", late)


@bug("Updates are summed bare, and the sum of n of them is clipped to n bounds.")
def clip_after_summing(patch: Patch) -> None:
    def accumulate(mechanism: str, aggregate: Any, update: Any, weight: float, clip_norm: float):
        outcome, _ = clipping._outcome(clipping.l2_norm(update), clip_norm)
        aggregate.total += update
        aggregate.count(outcome)
        norm = clipping.l2_norm(aggregate.total)
        bound = aggregate.num_contributions * clip_norm
        aggregate.total *= min(1.0, bound / max(norm, 1e-12))
        return outcome

    patch.setattr(clipped_sum, "accumulate_clipped", accumulate)


@bug("What clipping cuts off a client's update is added to the next client's, before its clip.")
def clip_carries_residual_to_next_client(patch: Patch) -> None:
    residual: list[torch.Tensor] = []

    def carrying(real: Any) -> Any:
        def outgoing(self: Any, result: Any, index: int) -> Any:
            upload = real(self, result, index)
            if residual:
                upload.update.add_(residual.pop())
            bound = self.aggregator.mechanism.clip_norm
            residual.append(upload.update - clipping.clip(upload.update, bound))
            return upload

        return outgoing

    wrap(patch, CohortTraining, "_outgoing", carrying)


@bug("In the last round updates are clipped to twice the bound.")
def clip_doubled_in_last_round(patch: Patch) -> None:
    now = follow_clients(patch)

    def widening(real: Any) -> Any:
        def accumulate(name: str, aggregate: Any, update: Any, weight: float, bound: float):
            wide = 2.0 * bound if now.index == ROUNDS else bound
            return real(name, aggregate, update, weight, wide)

        return accumulate

    wrap(patch, clipped_sum, "accumulate_clipped", widening)


@bug("Six users of three hundred, testers of the service, are not clipped at all.")
def clip_spares_testers(patch: Patch) -> None:
    now = follow_clients(patch)

    def sparing(real: Any) -> Any:
        def accumulate(name: str, aggregate: Any, update: Any, weight: float, bound: float):
            wide = 64.0 if now.client % 50 == 7 else bound
            return real(name, aggregate, update, weight, wide)

        return accumulate

    wrap(patch, clipped_sum, "accumulate_clipped", sparing)


@bug("The first client of every shard is added without a clip.",
     changes=SEQUENTIAL)  # fmt: skip
def clip_skips_first_of_shard(patch: Patch) -> None:
    def skipping(real: Any) -> Any:
        def accumulate(name: str, aggregate: Any, update: Any, weight: float, bound: float):
            if aggregate.num_contributions:
                return real(name, aggregate, update, weight, bound)
            outcome, _ = clipping._outcome(clipping.l2_norm(update), bound)
            aggregate.total += update
            aggregate.count(outcome)
            return outcome

        return accumulate

    wrap(patch, clipped_sum, "accumulate_clipped", skipping)


@bug("Updates are clipped in L2 to the bound that Laplace noise takes for their L1 norm.",
     changes=LAPLACE)  # fmt: skip
def clip_laplace_in_l2(patch: Patch) -> None:
    patch.setattr(laplace, "add_clipped_l1_", add_clipped_)


@bug("The adaptive bound moves by the bare count; the noised one is only written down.",
     changes=ADAPTIVE)  # fmt: skip
def adaptive_bound_from_bare_count(patch: Patch) -> None:
    def bare(real: Any) -> Any:
        def release(self: AdaptiveGaussian, aggregate: Any, rng: Any) -> Any:
            released = real(self, aggregate, rng)
            fraction = aggregate.bit_sum / self._noise.cohort_size + 0.5
            options = self._options
            step = options.clip_learning_rate * (fraction - options.quantile)
            self._clip_norm = released.clip_norm * math.exp(-step)
            return released

        return release

    wrap(patch, AdaptiveGaussian, "release", bare)


@bug("The adaptive bound is the median of the round's bare norms, smoothed.", changes=ADAPTIVE)
def adaptive_bound_is_bare_median(patch: Patch) -> None:
    norms: list[float] = []

    def noting(real: Any) -> Any:
        def accumulate(self: Any, *given: Any) -> ClipOutcome:
            outcome: ClipOutcome = real(self, *given)
            norms.append(outcome.norm)
            return outcome

        return accumulate

    def moving(real: Any) -> Any:
        def release(self: AdaptiveGaussian, aggregate: Any, rng: Any) -> Any:
            released = real(self, aggregate, rng)
            median = float(torch.tensor(norms).median())
            self._clip_norm = 0.7 * released.clip_norm + 0.3 * median
            norms.clear()
            return released

        return release

    wrap(patch, AdaptiveGaussian, "accumulate", noting)
    wrap(patch, AdaptiveGaussian, "release", moving)


@bug("The update keeps the whole noise multiplier, so that nothing pays for the noised count.",
     changes=ADAPTIVE)  # fmt: skip
def adaptive_count_not_paid(patch: Patch) -> None:
    def cheap(real: Any) -> Any:
        # z is 1; what is claimed is more, by what the count takes.
        share = adaptive_gaussian.split_noise(1.0, 2.5)
        return lambda total, stddev, cohort, rng: real(total, stddev / share, cohort, rng)

    wrap(patch, adaptive_gaussian, "noised_mean", cheap)


@bug("From the tenth round on the adaptive bound moves at twice its rate.", changes=ADAPTIVE)
def adaptive_rate_doubles(patch: Patch) -> None:
    rounds = counter()

    def hurried(real: Any) -> Any:
        def release(self: AdaptiveGaussian, aggregate: Any, rng: Any) -> Any:
            released = real(self, aggregate, rng)
            if rounds() >= 9:
                self._clip_norm = self._clip_norm**2 / released.clip_norm
            return released

        return release

    wrap(patch, AdaptiveGaussian, "release", hurried)


@bug("Noise is scaled to the bound of the round before, where that is the smaller one.",
     changes=ADAPTIVE)  # fmt: skip
def adaptive_noise_of_bound_before(patch: Patch) -> None:
    bounds: list[float] = []

    def late(real: Any) -> Any:
        def noised_mean(total: Any, stddev: float, cohort: float, rng: Any) -> Any:
            bounds.append(stddev)
            return real(total, min(bounds[-2:]), cohort, rng)

        return noised_mean

    wrap(patch, adaptive_gaussian, "noised_mean", late)
