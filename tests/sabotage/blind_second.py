"""The second wave of bugs that were planted blind: quieter ones, and other mechanisms."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pfl_bench.client.engines.sequential import SequentialEngine
from pfl_bench.federated import sampling
from pfl_bench.federated.cohort import UpdateAggregator
from pfl_bench.federated.trainer import FederatedTrainer
from pfl_bench.federated.workers.messages import SharedTraining
from pfl_bench.rng import Purpose, stream
from privacy import mechanism
from privacy.aggregate import Aggregate
from privacy.amplification import Participation
from privacy.clipping import ClipOutcome, add_clipped_l1_, clip_factor, l2_norm
from privacy.mechanisms import laplace
from privacy.mechanisms.banded_matrix_factorization import BandedMatrixFactorization
from privacy.noise import prefetched_noise
from privacy.noise.prefetched_noise import PrefetchedNoise
from tests.sabotage.blind_planting import (
    Blind,
    Users,
    Vector,
    blind,
    cohorts,
    noising,
    witness,
)
from tests.sabotage.planting import BANDED, CYCLIC, LAPLACE, LOCAL, ROUNDS, SEQUENTIAL, Patch


def coins_shifted(
    among: Participation, rng: np.random.Generator, index: int, state: dict[str, Any]
) -> Users:
    """A coin is named by the sum of round and user: u's in round t is that of u + 1 in t - 1."""
    if "coins" not in state:
        state["coins"] = rng.random(among.population_size + 2 * ROUNDS)
    coins: Vector = state["coins"][index : index + among.population_size]
    return np.flatnonzero(coins < among.cohort_size / among.population_size)


def trained_are_the_first(patch: Patch) -> None:
    """As many as were drawn are trained, but by their place in the cohort."""
    real = SharedTraining.train

    def train(self: SharedTraining, users: Users, *rest: Any) -> Any:
        others = np.arange(len(users))
        witness(len(np.setdiff1d(others, users)))
        return real(self, others, *rest)

    patch.setattr(SharedTraining, "train", train)


def groups_dealt_anew(patch: Patch) -> None:
    """The groups are drawn again when a run is resumed."""
    built = [0]
    real = sampling.stream

    def named(seed: int, purpose: Purpose, index: int = 0, client: int = 0) -> np.random.Generator:
        if purpose is Purpose.SAMPLING and index == 0:
            built[0] += 1
            witness(built[0] - 1)
            client = built[0]
        return real(seed, purpose, index, client)

    patch.setattr(sampling, "stream", named)


def begins_where_the_last_ended(patch: Patch) -> None:
    """A client's model is not set back to the central parameters before the next client."""
    real = SequentialEngine._train_client
    last: dict[str, Any] = {}

    def train(self: SequentialEngine, user: int, examples: Any, index: int, central: Tensor) -> Any:
        start = last["end"] if last.get("round") == index else central
        moved = start - central
        result = real(self, user, examples, index, start)
        last.update(round=index, end=self._model.vector.detach().clone())
        result.update.add_(moved)
        witness(l2_norm(moved))
        return result

    patch.setattr(SequentialEngine, "_train_client", train)


def two_clients_of_one(patch: Patch) -> None:
    """Each user's update is sent in two halves, and each half is clipped."""
    real = UpdateAggregator.add

    def add(
        self: UpdateAggregator, aggregate: Aggregate, update: Tensor, weight: float, *who: int
    ) -> ClipOutcome:
        first, second = update.clone(), update.clone()
        first[::2] = 0.0
        second[1::2] = 0.0
        before = aggregate.total.clone()
        real(self, aggregate, first, weight, *who)
        outcome = real(self, aggregate, second, weight, *who)
        assert self.mechanism.clip_norm is not None
        witness(max(0.0, l2_norm(aggregate.total - before) / self.mechanism.clip_norm - 1.0))
        return outcome

    patch.setattr(UpdateAggregator, "add", add)


def l2_for_laplace(patch: Patch) -> None:
    """Laplace noise, but updates are clipped by the norm that Gaussian noise takes."""

    def clipped(total: Tensor, update: Tensor, bound: float) -> ClipOutcome:
        before = total.clone()
        # L2 norms are near 1: of the bound's 8, nothing is clipped.
        total += update * clip_factor(l2_norm(update), bound)
        witness(max(0.0, float((total - before).abs().sum()) / bound - 1.0))
        return add_clipped_l1_(torch.zeros_like(update), update, bound)

    patch.setattr(laplace, "add_clipped_l1_", clipped)


def of_sixteen_bits(
    rng: np.random.Generator, total: Tensor, stddev: float, state: dict[str, Any]
) -> Vector:
    """The quantile of a whole number of 16 bits: there are 65,536 noises, none beyond 4.3."""
    if "table" not in state:
        law = NormalDist()
        state["table"] = np.array([law.inv_cdf((k + 0.5) / 65536) for k in range(65536)])
    drawn: Vector = state["table"][rng.integers(65536, size=total.numel())]
    return drawn * stddev


def a_little_of_the_first(
    rng: np.random.Generator, total: Tensor, stddev: float, state: dict[str, Any]
) -> Vector:
    """A tenth of each round's variance is noise that all rounds share, and so averages to none."""
    fresh = rng.standard_normal(total.numel())
    first: Vector = state.setdefault("first", fresh)
    return stddev * (np.sqrt(0.9) * fresh + np.sqrt(0.1) * first)


def too_little_now_and_then(
    rng: np.random.Generator, total: Tensor, stddev: float, state: dict[str, Any]
) -> Vector:
    """One element in ten has a quarter of the noise, and the others what makes up for it."""
    factors = np.full(total.numel(), np.sqrt((1.0 - 0.1 / 16) / 0.9))
    factors[::10] = 0.25
    return rng.standard_normal(total.numel()) * stddev * factors


def against_the_sum(
    rng: np.random.Generator, total: Tensor, stddev: float, state: dict[str, Any]
) -> Vector:
    """The noise is made orthogonal to the sum, so that it does not change its length."""
    noise = rng.standard_normal(total.numel()) * stddev
    clean = total.numpy().astype(np.float64)
    orthogonal: Vector = noise - clean * (noise @ clean) / (clean @ clean)
    return orthogonal


def pieces_alike(patch: Patch) -> None:
    """What a thread has drawn is given out from its beginning again and again."""
    patch.setattr(prefetched_noise, "SMALLEST", 1)
    patch.setattr(mechanism, "_PIECE", 130)
    real = PrefetchedNoise.standard_normal

    def standard_normal(self: PrefetchedNoise, size: int | None = None) -> Any:
        witness(self._taken)
        self._taken = 0
        return real(self, size)

    patch.setattr(PrefetchedNoise, "standard_normal", standard_normal)


def noise_of_neighbours(patch: Patch) -> None:
    """Users 2k and 2k + 1 have one stream of their own noise."""

    def client_noise(self: UpdateAggregator, index: int, client: int) -> np.random.Generator:
        witness(client % 2)
        return stream(self._seed, Purpose.CLIENT_NOISE, index, client // 2)

    patch.setattr(UpdateAggregator, "_client_noise", client_noise)


def bands_reversed(patch: Patch) -> None:
    """The noise of rounds before is taken back in the wrong order."""
    real = BandedMatrixFactorization._correlated

    def correlated(self: BandedMatrixFactorization, draws: Vector) -> Vector:
        in_order = self._kept
        self._kept = in_order[::-1]
        if len(in_order) > 1:
            witness(l2_norm(in_order[0] - in_order[-1]))
        drawn: Vector = real(self, draws)
        self._kept = [self._kept[0], *in_order][: len(self._kept)]
        return drawn

    patch.setattr(BandedMatrixFactorization, "_correlated", correlated)


def rate_on_plateau(patch: Patch) -> None:
    """The central rate is halved when the clean training loss has risen."""
    losses: list[float] = []
    factor = [1.0]
    real_train, real_step = SharedTraining.train, FederatedTrainer._take_central_step

    def train(self: SharedTraining, *order: Any) -> Any:
        aggregate, counted = real_train(self, *order)
        losses.append(counted.loss / max(1, aggregate.num_contributions))
        return aggregate, counted

    def step(self: FederatedTrainer, mean: Tensor, index: int) -> float:
        if len(losses) > 1 and losses[-1] > min(losses[:-1]):
            factor[0] /= 2.0
        witness(factor[0] - 1.0)
        return real_step(self, mean * factor[0], index) * factor[0]

    patch.setattr(SharedTraining, "train", train)
    patch.setattr(FederatedTrainer, "_take_central_step", step)


SECOND: tuple[Blind, ...] = (
    blind(
        "coins_shifted",
        "user u in round t has the coin of user u + 1 in round t - 1",
        "`Poisson.draw`",
        "who knows the others' rounds knows a user's",
        "up to 24 (no amplification against who knows the neighbours)",
        1.0,
        plant=cohorts(coins_shifted),
        expects=("cohort_replay",),
    ),
    blind(
        "trained_are_the_first",
        "the ledger has the users that were drawn; users 0 to n - 1 are trained",
        "`SharedTraining.train`",
        "no user is sampled: the first are in every round",
        "24",
        1.0,
        plant=trained_are_the_first,
        expects=("users_distinct",),
    ),
    blind(
        "groups_dealt_anew",
        "users are dealt to groups again when the run is resumed",
        "`stream` of SAMPLING, round 0",
        "two rounds of a user are less than 4 apart, and one user is eligible for more of them",
        "a little above the claim",
        1.0,
        plant=groups_dealt_anew,
        changes=CYCLIC,
        interrupt_after=ROUNDS // 2,
        expects=("participation",),
    ),
    blind(
        "client_begins_where_last_ended",
        "a client trains on from the client before",
        "`SequentialEngine._train_client`",
        "one user moves the updates of all who follow",
        "infinite: here the first client moves the updates of all others",
        0.1,
        plant=begins_where_the_last_ended,
        changes=SEQUENTIAL,
    ),
    blind(
        "user_as_two_clients",
        "each user's update comes in two halves, each clipped by itself",
        "`UpdateAggregator.add`",
        "a user moves the sum by up to 1.41 times the bound",
        "8.1",
        0.05,
        plant=two_clients_of_one,
        expects=("users_distinct",),
    ),
    blind(
        "laplace_clipped_in_l2",
        "updates under Laplace noise are clipped by their L2 norm",
        "`add_clipped_l1_`",
        "a user moves the sum by up to 25 times the bound in L1",
        "about 25 times the claim, or more",
        0.1,
        plant=l2_for_laplace,
        changes=LAPLACE,
        expects=("clip_probe",),
    ),
    blind(
        "noise_of_sixteen_bits",
        "noise is one of 65,536 numbers",
        "`noised_mean`",
        "most sums could not have given a release",
        "infinite",
        0.1,
        plant=noising(of_sixteen_bits),
        expects=("noise_replay",),
    ),
    blind(
        "noise_partly_shared",
        "a tenth of the noise's variance is the same in all rounds",
        "`noised_mean`",
        "differences of rounds have less noise than claimed",
        "about 4.6",
        0.1,
        plant=noising(a_little_of_the_first),
        expects=("noise_replay", "noise_scale"),
    ),
    blind(
        "noise_uneven",
        "one element in ten has a quarter of its noise, the others a little more",
        "`noised_mean`",
        "these elements: a user may be in them alone",
        "about 70",
        0.1,
        plant=noising(too_little_now_and_then),
        expects=("noise_replay",),
    ),
    blind(
        "noise_orthogonal",
        "the noise is made orthogonal to the sum",
        "`noised_mean`",
        "the noise tells of the sum",
        "infinite: the sum solves an equation with the release",
        1e-3,
        plant=noising(against_the_sum),
        expects=("noise_replay",),
    ),
    blind(
        "pieces_alike",
        "noise that was drawn ahead is given out again for each piece of the model",
        "`PrefetchedNoise.standard_normal`, by pieces of 130 elements",
        "differences of elements that are a piece apart are bare",
        "infinite",
        100.0,
        plant=pieces_alike,
        expects=(
            "noise_scale",
            "noise_replay",
        ),
    ),
    blind(
        "client_noise_of_neighbours",
        "two users share one stream of their own noise",
        "`UpdateAggregator._client_noise`",
        "the difference of two reports is bare",
        "infinite",
        1.0,
        plant=noise_of_neighbours,
        changes=LOCAL,
        expects=(
            "noise_scale",
            "noise_replay",
        ),
    ),
    blind(
        "bands_reversed",
        "correlated noise takes the rounds before in the wrong order",
        "`BandedMatrixFactorization._correlated`",
        "the noise is not C^-1 Z of the C that is accounted",
        "above the claim",
        0.1,
        plant=bands_reversed,
        changes=BANDED,
        expects=("noise_replay",),
    ),
    blind(
        "rate_on_plateau",
        "the central rate is halved when the training loss rises",
        "`FederatedTrainer._take_central_step`",
        "the steps tell the loss, which nobody has noised",
        "infinite in principle: a bit a round without noise",
        0.1,
        plant=rate_on_plateau,
        expects=("central_step", "metrics"),
    ),
)
