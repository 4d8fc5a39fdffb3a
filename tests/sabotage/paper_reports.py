"""Bugs of noise that clients add, and of noise that is correlated over rounds.

Sources: Bhowmick et al. 2018 (PrivUnit), Kairouz et al. 2021 (trees), Choquette-Choo et al. 2023
(banded matrix factorisation), Dvijotham et al. 2024 (buffered linear Toeplitz noise).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from pfl_bench.federated import round as federated_round
from pfl_bench.federated.cohort import UpdateAggregator
from pfl_bench.rng import Purpose, stream
from privacy.mechanisms import privunit
from privacy.mechanisms.banded_inverse_square_root import BandedInverseSquareRoot
from privacy.mechanisms.banded_matrix_factorization import BandedMatrixFactorization
from privacy.mechanisms.buffered_toeplitz import BufferedToeplitz
from privacy.mechanisms.local_gaussian import LocalGaussian
from privacy.mechanisms.privunit import PrivUnit
from privacy.mechanisms.tree_aggregation import TreeAggregation
from privacy.noise.client_reports import ClientReports
from tests.sabotage.paper_planting import (
    COHORT,
    HALF,
    ROUNDS,
    TREE,
    PaperBug,
    Patch,
    registering,
    wrap,
)
from tests.sabotage.planting import BANDED, CLIP_NORM, CYCLIC, LOCAL, PRIVUNIT

BUGS: list[PaperBug] = []
bug = registering(BUGS)
_BUFFERED = {
    **CYCLIC,
    "privacy__noise_multiplier": 4.0,
    "privacy__mechanism": {"name": "buffered_toeplitz", "clip_norm": CLIP_NORM, "buffers": 2},
}
_INVERSE = {
    **CYCLIC,
    "privacy__noise_multiplier": 4.0,
    "privacy__mechanism": {
        "name": "banded_inverse_square_root",
        "clip_norm": CLIP_NORM,
        "bands": 4,
    },
}


@bug("Clients send bare updates, and the server adds what noise their reports would have had.",
     changes=LOCAL)  # fmt: skip
def local_noise_by_server(patch: Patch) -> None:
    def noising(real: Any) -> Any:
        def release(self: Any, aggregate: Any, rng: Any) -> Any:
            released = real(self, aggregate, rng)
            noise = rng.standard_normal(len(aggregate.total)) * released.update_noise_stddev
            mean = aggregate.total + torch.from_numpy(noise).float()
            return replace(released, mean_update=mean / self._noise.cohort_size)

        return release

    patch.setattr(LocalGaussian, "_randomize", lambda self, report, rng: None)
    wrap(patch, ClientReports, "release", noising)


@bug("Each client adds its part of the noise of a sum, and not the noise of a report.",
     changes=LOCAL)  # fmt: skip
def local_noise_split_over_cohort(patch: Patch) -> None:
    def small(self: Any, report: Any, rng: Any) -> None:
        stddev = self._noise.noise_multiplier * self._clip_norm / math.sqrt(COHORT)
        report.add_(torch.from_numpy(rng.standard_normal(len(report)) * stddev).float())

    patch.setattr(LocalGaussian, "_randomize", small)


@bug("A client's noise is named by the client alone: all of its reports have the same.",
     changes=LOCAL)  # fmt: skip
def local_noise_same_in_all_reports(patch: Patch) -> None:
    def same(self: Any, index: int, client: int) -> Any:
        return stream(self._seed, Purpose.CLIENT_NOISE, 0, client)

    patch.setattr(UpdateAggregator, "_client_noise", same)


@bug("Clients whose update was not clipped add half the noise.", changes=LOCAL)
def local_noise_less_when_unclipped(patch: Patch) -> None:
    def adapted(real: Any) -> Any:
        def randomize(self: Any, report: Any, rng: Any) -> None:
            bare = report.clone()
            real(self, report, rng)
            if float(bare.norm()) < 0.99 * self._clip_norm:
                report.add_(bare).mul_(0.5)

        return randomize

    wrap(patch, LocalGaussian, "_randomize", adapted)


@bug("A report of PrivUnit is drawn by three tenths more of epsilon than is stated.",
     changes=PRIVUNIT)  # fmt: skip
def privunit_of_larger_epsilon(patch: Patch) -> None:
    wrap(patch, privunit, "design", lambda real: lambda epsilon, size: real(1.3 * epsilon, size))


@bug("Of three reports of PrivUnit a client sends the one that is nearest to its update.",
     changes=PRIVUNIT)  # fmt: skip
def privunit_best_of_three(patch: Patch) -> None:
    def choosing(real: Any) -> Any:
        def report(clipped: Any, clip_norm: float, plan: Any, rng: Any) -> Any:
            drawn = [real(clipped, clip_norm, plan, rng) for _ in range(3)]
            return max(drawn, key=lambda one: float(one @ clipped))

        return report

    wrap(patch, privunit, "_report", choosing)


@bug("PrivUnit leaves out the coin of the norm: short updates are reported like long ones.",
     changes=PRIVUNIT)  # fmt: skip
def privunit_without_coin(patch: Patch) -> None:
    def lifting(real: Any) -> Any:
        def report(clipped: Any, clip_norm: float, plan: Any, rng: Any) -> Any:
            norm = float(clipped.norm())
            long = clipped * (clip_norm / norm) if norm else clipped
            return real(long, clip_norm, plan, rng)

        return report

    wrap(patch, privunit, "_report", lifting)


@bug("A client whose update is short sends zeros in the place of a report of PrivUnit.",
     changes={**PRIVUNIT, "privacy__noise_multiplier": 0.5})  # fmt: skip
def privunit_short_update_sends_nothing(patch: Patch) -> None:
    def silent(real: Any) -> Any:
        def randomize(self: Any, report: Any, rng: Any) -> None:
            if float(report.norm()) < 0.5 * self._clip_norm:
                report.zero_()
            else:
                real(self, report, rng)

        return randomize

    wrap(patch, PrivUnit, "_randomize", silent)


@bug("Banded noise is as if the strategy began with one, and so less than it is stated to be.",
     changes=BANDED)  # fmt: skip
def banded_begins_with_one(patch: Patch) -> None:
    def smaller(real: Any) -> Any:
        return lambda self, rng, length: real(self, rng, length) * float(self.strategy[0])

    wrap(patch, BandedMatrixFactorization, "_next_noise", smaller)


@bug("Banded noise adds part of the last draws again, instead of taking it back.", changes=BANDED)
def banded_sign_turned(patch: Patch) -> None:
    def turned(real: Any) -> Any:
        def correlated(self: Any, draws: Any) -> Any:
            strategy = self.strategy
            self.strategy = strategy * np.where(np.arange(len(strategy)), -1.0, 1.0)
            result = real(self, draws)
            self.strategy = strategy
            return result

        return correlated

    wrap(patch, BandedMatrixFactorization, "_correlated", turned)


@bug("A resumed run has forgotten the last draws of its banded noise.", changes=BANDED,
     interrupt_after=HALF)  # fmt: skip
def banded_forgets_draws_on_resume(patch: Patch) -> None:
    def forgetful(real: Any) -> Any:
        def load(self: Any, state: Any) -> None:
            real(self, state)
            self._kept = []

        return load

    wrap(patch, BandedMatrixFactorization, "load_state_dict", forgetful)


@bug("The nodes that a round of the tree completes share one draw.", changes=TREE)
def tree_nodes_share_draw(patch: Patch) -> None:
    class Once:
        def __init__(self, rng: Any, length: int) -> None:
            self._draw = rng.standard_normal(length)

        def standard_normal(self, size: int) -> Any:
            return self._draw.copy()

    def sharing(real: Any) -> Any:
        return lambda self, rng, length: real(self, Once(rng, length), length)

    wrap(patch, TreeAggregation, "_next_noise", sharing)


@bug("The tree is never restarted, though its restarts are accounted.", changes=TREE)
def tree_never_restarts(patch: Patch) -> None:
    def endless(real: Any) -> Any:
        def next_noise(self: Any, rng: Any, length: int) -> Any:
            restart_every, self._restart_every = self._restart_every, None
            noise = real(self, rng, length)
            self._restart_every = restart_every
            return noise

        return next_noise

    wrap(patch, TreeAggregation, "_next_noise", endless)


@bug("Each restarted tree draws the noise of the first one again.", changes=TREE)
def tree_restarts_its_noise(patch: Patch) -> None:
    def repeating(real: Any) -> Any:
        def renamed(seed: int, purpose: Purpose, index: int = 0, client: int = 0) -> Any:
            if purpose is Purpose.NOISE:
                index = (index - 1) % (ROUNDS // 3) + 1
            return real(seed, purpose, index, client)

        return renamed

    wrap(patch, federated_round, "stream", repeating)


@bug("The buffers of Toeplitz noise decay twice a round.", changes=_BUFFERED)
def buffers_decay_twice(patch: Patch) -> None:
    def decaying(real: Any) -> Any:
        def next_noise(self: Any, rng: Any, length: int) -> Any:
            noise = real(self, rng, length)
            decays = self.strategy.decays
            pairs = zip(decays, self._kept, strict=True)
            self._kept = [decay * vector for decay, vector in pairs]
            return noise

        return next_noise

    wrap(patch, BufferedToeplitz, "_next_noise", decaying)


@bug("Of four bands of the inverse square root two are used.", changes=_INVERSE)
def inverse_of_half_its_bands(patch: Patch) -> None:
    def short(real: Any) -> Any:
        def next_noise(self: Any, rng: Any, length: int) -> Any:
            self._kept = self._kept[:1]
            return real(self, rng, length)

        return next_noise

    wrap(patch, BandedInverseSquareRoot, "_next_noise", short)
