"""Bugs that were planted by somebody who had not read the checks.

A claim of 4.07 is that of the small run: 20 rounds, 50 of 300 users, multiplier 1, delta 0.0019.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pfl_bench import federated, private_rounds
from pfl_bench.cohort_training import CohortTraining, Intake
from pfl_bench.config_file import ResolvedConfig
from pfl_bench.crew import following, orders
from pfl_bench.crew.orders import SharedTraining
from pfl_bench.crew.types import Crew
from pfl_bench.federated import FederatedTrainer
from pfl_bench.hands import SumTree
from pfl_bench.rng import Purpose, stream
from pfl_bench.sampling import CyclicPoissonSampler, PoissonSampler
from privacy import accountant, plan, plan_types
from privacy.aggregate import Aggregate
from privacy.clipping import ClipOutcome, clip_factor, l2_norm
from privacy.ledger import Ledger
from privacy.mechanism import Release
from privacy.mechanisms import adaptive_gaussian, banded_matrix_factorization, gaussian
from privacy.mechanisms.adaptive_gaussian import AdaptiveGaussian
from privacy.mechanisms.gaussian import Gaussian
from privacy.plan import PrivacyPlan
from privacy.plan_types import PlanRequest
from tasks.digits import task
from tests.sabotage.blind_planting import (
    Blind,
    Users,
    Vector,
    blind,
    clipping,
    cohorts,
    counting_from_resume,
    honest_outcome,
    noising,
    witness,
    witness_elsewhere,
)
from tests.sabotage.planting import (
    ADAPTIVE,
    BANDED,
    COHORT,
    CYCLIC,
    LOCAL,
    ROUNDS,
    SMALLER_COHORT,
    Patch,
)

HALF = ROUNDS // 2


# Who takes part.


def workers_share_coins(
    self: PoissonSampler, rng: np.random.Generator, index: int, state: dict[str, Any]
) -> Users:
    """Two workers with one seed toss the same coins, each for its half of the users."""
    coins = rng.random(self.num_users // 2) < self.cohort_size / self.num_users
    return np.flatnonzero(np.tile(coins, 2))


def prefetched_twice(
    self: PoissonSampler, rng: np.random.Generator, index: int, state: dict[str, Any]
) -> Users:
    if index % 2:
        state["cohort"] = np.flatnonzero(
            rng.random(self.num_users) < self.cohort_size / self.num_users
        )
    cohort: Users = state["cohort"]
    return cohort


def cooled_down(
    self: PoissonSampler, rng: np.random.Generator, index: int, state: dict[str, Any]
) -> Users:
    """Whoever was in the last round rests; the others come the more often."""
    free = np.setdiff1d(np.arange(self.num_users), state.get("last", []))
    state["last"] = free[rng.random(len(free)) < self.cohort_size / len(free)]
    cohort: Users = state["last"]
    return cohort


def fair(
    self: PoissonSampler, rng: np.random.Generator, index: int, state: dict[str, Any]
) -> Users:
    """As many as independent draws give, the longer a user has waited the sooner."""
    waited = state.setdefault("waited", np.ones(self.num_users))
    size = rng.binomial(self.num_users, self.cohort_size / self.num_users)
    users = rng.choice(self.num_users, size=size, replace=False, p=waited / waited.sum())
    waited += 1
    waited[users] = 1
    return users


def small_users_left_out(
    self: PoissonSampler, rng: np.random.Generator, index: int, state: dict[str, Any]
) -> Users:
    """The tenth with the fewest examples is left out, and the rate is of those who are left."""
    sizes = np.diff(task.build(task.Options(num_users=self.num_users)).split("train").offsets)
    left = np.argsort(sizes, kind="stable")[self.num_users // 10 :]
    return left[rng.random(len(left)) < self.cohort_size / len(left)]


def cut_to_memory(
    self: PoissonSampler, rng: np.random.Generator, index: int, state: dict[str, Any]
) -> Users:
    """A tenth more than expected is the most that is trained; the users with high numbers miss."""
    users = np.flatnonzero(rng.random(self.num_users) < self.cohort_size / self.num_users)
    return users[: round(1.1 * self.cohort_size)]


def never_the_last(
    self: PoissonSampler, rng: np.random.Generator, index: int, state: dict[str, Any]
) -> Users:
    return np.flatnonzero(rng.random(self.num_users - 1) < self.cohort_size / self.num_users)


def cohorts_restart(patch: Patch) -> None:
    counting_from_resume(patch, (int(Purpose.SAMPLING),))


def rate_of_the_group(patch: Patch) -> None:
    def draw(self: CyclicPoissonSampler, rng: np.random.Generator, index: int = 1) -> Users:
        group = np.flatnonzero(self.groups == (index - 1) % self.separation)
        rate = self.cohort_size / len(group)
        witness(rate * self.num_users / self.cohort_size / self.separation - 1.0)
        return group[rng.random(len(group)) < rate]

    patch.setattr(CyclicPoissonSampler, "draw", draw)


def dealt_twice(patch: Patch) -> None:
    """The borders of two hands overlap: one user is trained in the place of the next."""
    real = orders.deal

    def deal(users: Users, costs: Any, number: int) -> list[Users]:
        dealt = [hand.copy() for hand in real(users, costs, number)]
        full = [hand for hand in dealt if len(hand)]
        if len(full) > 1:
            full[1][0] = full[0][-1]
            trained = np.concatenate(full)
            witness(len(trained) - len(set(trained.tolist())))
        return dealt

    patch.setattr(orders, "deal", deal)


# What a user can change.


def each_layer(total: Tensor, update: Tensor, bound: float, state: dict[str, Any]) -> ClipOutcome:
    """Weights and bias are clipped, each to the whole bound."""
    for part in (slice(0, -10), slice(-10, None)):
        piece = update[part]
        total[part] += piece * clip_factor(l2_norm(piece), bound)
    return honest_outcome(update, bound)


def without_bias(total: Tensor, update: Tensor, bound: float, state: dict[str, Any]) -> ClipOutcome:
    """The norm is that of the weights."""
    total += update * clip_factor(l2_norm(update[:-10]), bound)
    return honest_outcome(update, bound)


def norm_of_another(
    total: Tensor, update: Tensor, bound: float, state: dict[str, Any]
) -> ClipOutcome:
    """Norms and updates are one out of step."""
    norm = l2_norm(update)
    total += update * clip_factor(state.get("norm", norm), bound)
    state["norm"] = norm
    return honest_outcome(update, bound)


def norm_in_half(total: Tensor, update: Tensor, bound: float, state: dict[str, Any]) -> ClipOutcome:
    """The squares of a small update are zeros in float16."""
    norm = float(update.to(torch.float16).square().sum(dtype=torch.float16).sqrt())
    total += update * clip_factor(norm, bound)
    return honest_outcome(update, bound)


def sum_of_pairs(patch: Patch) -> None:
    """Microbatches: what is clipped is the sum of two clients.

    Each contribution is within the bound, yet either client can turn it round: by twice the bound.
    """
    state: dict[str, Any] = {}

    def clipped(total: Tensor, update: Tensor, bound: float) -> ClipOutcome:
        if state.get("waits") is None:
            state["waits"] = update.clone()
        else:
            pair = state["waits"] + update
            total += pair * clip_factor(l2_norm(pair), bound)
            # What is left when the first of both had not been there.
            alone = update * clip_factor(l2_norm(update), bound)
            witness(l2_norm(pair * clip_factor(l2_norm(pair), bound) - alone) / bound)
            state["waits"] = None
        return honest_outcome(update, bound)

    patch.setattr(gaussian, "add_clipped_", clipped)


def last_of_hand_unclipped(patch: Patch) -> None:
    """What the loop leaves over is added after it, and not by what clips."""
    real = CohortTraining._train_hand
    real_take = Intake.take_in

    def train_hand(self: CohortTraining, users: Users, *rest: Any) -> Any:
        last = users[-1] if len(users) > 1 else -1

        def take_in(
            intake: Intake, aggregate: Aggregate, update: Tensor, weight: float, *who: int
        ) -> ClipOutcome:
            if who[1] != last:
                return real_take(intake, aggregate, update, weight, *who)
            assert intake.mechanism.clip_norm is not None
            outcome = honest_outcome(update, intake.mechanism.clip_norm)
            aggregate.total += update
            aggregate.count(outcome)
            witness(l2_norm(update) / intake.mechanism.clip_norm - 1.0)
            return outcome

        Intake.take_in = take_in  # type: ignore[method-assign]
        try:
            return real(self, users, *rest)
        finally:
            Intake.take_in = real_take  # type: ignore[method-assign]

    patch.setattr(CohortTraining, "_train_hand", train_hand)


def sent_again(patch: Patch) -> None:
    """A client whose answer was late is asked again, and both of its answers are added."""
    real = Intake.take_in

    def take_in(
        self: Intake, aggregate: Aggregate, update: Tensor, weight: float, *who: int
    ) -> ClipOutcome:
        outcome = real(self, aggregate, update, weight, *who)
        if who[1] % 10 == 0:
            before = aggregate.total.clone()
            self.mechanism.accumulate(Aggregate(aggregate.total), update, weight)
            witness(l2_norm(aggregate.total - before))
        return outcome

    patch.setattr(Intake, "take_in", take_in)


def never_zeroed(patch: Patch) -> None:
    """The first hand's sum begins with what its memory still holds: the sum of the last round."""
    real = SumTree.zeros

    def zeros(self: SumTree, *size: Any) -> Aggregate:
        if self.nodes or not self._free:
            return real(self, *size)
        kept = Aggregate(self._free.pop())
        witness(l2_norm(kept.total))
        return kept

    patch.setattr(SumTree, "zeros", zeros)


def summed_twice(patch: Patch) -> None:
    """The sum of all processes is summed over all processes once more."""
    real = SharedTraining.train

    def train(self: SharedTraining, *order: Any) -> Any:
        aggregate, tally = real(self, *order)
        aggregate.total.mul_(2.0)
        witness(1.0)
        return aggregate, tally

    patch.setattr(SharedTraining, "train", train)


def bound_moved_first(patch: Patch) -> None:
    """The noise is for the bound of the coming round, not for that which the updates had."""
    real = AdaptiveGaussian.release

    def release(self: AdaptiveGaussian, aggregate: Aggregate, rng: np.random.Generator) -> Release:
        clipped_to = self._clip_norm
        state = rng.bit_generator.state
        real(self, aggregate, rng)
        moved = self._clip_norm
        rng.bit_generator.state = state
        released = real(self, aggregate, rng)
        self._clip_norm = moved
        witness(clipped_to / moved - 1.0)
        return released

    patch.setattr(AdaptiveGaussian, "release", release)


def follow_unclipped(crew: Crew) -> None:
    """A worker whose mechanism was built without its bound."""
    real = gaussian.add_clipped_

    def unclipped(total: Tensor, update: Tensor, bound: float) -> ClipOutcome:
        witness_elsewhere(max(0.0, l2_norm(update) / bound - 1.0))
        total += update
        return honest_outcome(update, bound)

    gaussian.add_clipped_ = unclipped
    try:
        real_follow(crew)
    finally:
        gaussian.add_clipped_ = real


real_follow = following.follow


def worker_unclipped(patch: Patch) -> None:
    patch.setattr(following, "follow", follow_unclipped)


# The noise.


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

    def client_noise(self: Intake, index: int, client: int) -> np.random.Generator:
        witness(index - 1)
        return stream(self._seed, Purpose.CLIENT_NOISE, 1, client)

    patch.setattr(Intake, "_client_noise", client_noise)


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


# What is released.


def largest_cohort_divides(patch: Patch) -> None:
    """The sum is divided by the cohort that came, where more came than expected."""
    real = Gaussian.release

    def release(self: Gaussian, aggregate: Aggregate, rng: np.random.Generator) -> Release:
        released = real(self, aggregate, rng)
        part = self._noise.cohort_size / max(self._noise.cohort_size, aggregate.num_contributions)
        witness(part - 1.0)
        released.mean_update.mul_(part)
        return released

    patch.setattr(Gaussian, "release", release)


def clean_count_moves_bound(patch: Patch) -> None:
    real = AdaptiveGaussian.release

    def release(self: AdaptiveGaussian, aggregate: Aggregate, rng: np.random.Generator) -> Release:
        before = self._clip_norm
        released = real(self, aggregate, rng)
        fraction = aggregate.bit_sum / self._noise.cohort_size + 0.5
        step = self._options.clip_learning_rate * (fraction - self._options.quantile)
        noisy, self._clip_norm = self._clip_norm, before * float(np.exp(-step))
        witness(noisy / self._clip_norm - 1.0)
        return released

    patch.setattr(AdaptiveGaussian, "release", release)


def plain_bits(patch: Patch) -> None:
    """The count is of ones and zeros, which a user moves by 1, at the price of one half."""
    real = AdaptiveGaussian.release

    def release(self: AdaptiveGaussian, aggregate: Aggregate, rng: np.random.Generator) -> Release:
        centred = aggregate.bit_sum
        ones = centred + aggregate.num_contributions / 2
        aggregate.bit_sum = ones - self._noise.cohort_size / 2
        witness(aggregate.bit_sum - centred)
        try:
            return real(self, aggregate, rng)
        finally:
            aggregate.bit_sum = centred

    patch.setattr(AdaptiveGaussian, "release", release)


def keeping_the_sum(patch: Patch, sums: list[Tensor]) -> None:
    real = SharedTraining.train

    def train(self: SharedTraining, *order: Any) -> Any:
        aggregate, tally = real(self, *order)
        sums[:] = [aggregate.total.clone()]
        return aggregate, tally

    patch.setattr(SharedTraining, "train", train)


def step_along_the_sum(patch: Patch) -> None:
    """The ledger is told of the noised mean; the model takes the one beside it."""
    sums: list[Tensor] = []
    keeping_the_sum(patch, sums)
    real = FederatedTrainer._take_central_step

    def step(self: FederatedTrainer, mean: Tensor, index: int) -> float:
        clean = sums[0] / COHORT
        witness(l2_norm(mean - clean))
        return real(self, clean, index)

    patch.setattr(FederatedTrainer, "_take_central_step", step)


def step_by_the_clean_norm(patch: Patch) -> None:
    """The step is as long as the update was before its noise."""
    sums: list[Tensor] = []
    keeping_the_sum(patch, sums)
    real = FederatedTrainer._take_central_step

    def step(self: FederatedTrainer, mean: Tensor, index: int) -> float:
        factor = l2_norm(sums[0]) / COHORT / l2_norm(mean)
        witness(factor - 1.0)
        return real(self, mean * factor, index)

    patch.setattr(FederatedTrainer, "_take_central_step", step)


def released_twice(patch: Patch) -> None:
    """The sum is noised once for the ledger, and once more for the step."""
    later: list[Tensor] = []
    real, real_step = Gaussian.release, FederatedTrainer._take_central_step

    def release(self: Gaussian, aggregate: Aggregate, rng: np.random.Generator) -> Release:
        recorded = real(self, aggregate, rng)
        later[:] = [real(self, aggregate, rng).mean_update]
        witness(l2_norm(later[0] - recorded.mean_update))
        return recorded

    def step(self: FederatedTrainer, mean: Tensor, index: int) -> float:
        return real_step(self, (mean + later[0]) / 2, index)

    patch.setattr(Gaussian, "release", release)
    patch.setattr(FederatedTrainer, "_take_central_step", step)


def trained_before(patch: Patch) -> None:
    """The run begins where training without privacy on the same users has led."""
    real = FederatedTrainer.__init__

    def init(self: FederatedTrainer, *given: Any, **more: Any) -> None:
        real(self, *given, **more)
        engine, users = self._training._own._engine, np.arange(self._split.num_users)
        mean = torch.zeros_like(self.central)
        for result in engine.train(users, 1, self.central.clone()):
            mean += result.update / len(users)
        before = self.central.detach().clone()
        self._algorithm.central_gradient(mean, out=self._gradient)
        self.central.data.sub_(self._gradient)
        witness(l2_norm(self.central.detach() - before))

    patch.setattr(FederatedTrainer, "__init__", init)


# What is accounted.


def count_unpaid(patch: Patch) -> None:
    def split(noise_multiplier: float, count_noise_stddev: float) -> float:
        witness(noise_multiplier)
        return noise_multiplier

    patch.setattr(adaptive_gaussian, "split_noise", split)


def users_of_all_splits(patch: Patch) -> None:
    from dataclasses import replace

    real = private_rounds.make_plan

    def planned(request: PlanRequest) -> PrivacyPlan:
        more = request.num_users // 5
        witness(more)
        return real(
            replace(
                request,
                num_users=request.num_users + more,
                population_size=request.population_size + more,
            )
        )

    patch.setattr(private_rounds, "make_plan", planned)


def own_cohort_in_deployment(patch: Patch) -> None:
    real = PlanRequest.participation

    def participation(self: PlanRequest, population: int, cohort: int) -> Any:
        witness(cohort - self.cohort_size)
        return real(self, population, min(cohort, self.cohort_size))

    patch.setattr(PlanRequest, "participation", participation)


def delta_of_the_cohort(patch: Patch) -> None:
    real = plan.default_delta

    def delta(population: int) -> float:
        witness(real(COHORT) - real(population))
        return real(COHORT)

    patch.setattr(plan, "default_delta", delta)


def rho_as_epsilon(patch: Patch) -> None:
    """The divergence of order 2 is taken for epsilon: the price of delta is left out."""

    def rdp_epsilon(parts: Any, delta: float) -> float:
        from dp_accounting import rdp

        divergence = rdp.RdpAccountant(orders=[2.0])
        for event, count in parts:
            divergence.compose(event, count)
        epsilon = float(divergence._rdp[0])
        witness(epsilon)
        return epsilon

    patch.setattr(accountant, "_rdp_epsilon", rdp_epsilon)
    # Nothing that is computed here is to be remembered, nor anything else taken for it.
    patch.setattr(accountant, "_epsilon", accountant._epsilon.__wrapped__)
    patch.setattr(plan_types, "compose_epsilon", accountant.compose_epsilon)


def since_resume(patch: Patch) -> None:
    """A resumed run pays for the rounds that it has run itself."""
    done = [0]
    real_begin, real = FederatedTrainer.begin, PrivacyPlan.statement

    def begin(self: FederatedTrainer, rounds: int) -> None:
        done[0] = rounds
        real_begin(self, rounds)

    def statement(self: PrivacyPlan, rounds: int, status: Any = "final") -> Any:
        from dataclasses import replace

        witness(done[0])
        paid = real(self, max(1, rounds - done[0]), status)
        return replace(paid, rounds=rounds)

    patch.setattr(FederatedTrainer, "begin", begin)
    patch.setattr(PrivacyPlan, "statement", statement)


def strategy_too_large(patch: Patch) -> None:
    """The strategy's columns are longer than 1, so a user counts for more than the noise is for."""
    real = banded_matrix_factorization.optimized_coefficients

    def coefficients(rounds: int, bands: int) -> Vector:
        found: Vector = real(rounds, bands) * 1.25
        witness(float(np.linalg.norm(found)) - 1.0)
        return found

    patch.setattr(banded_matrix_factorization, "optimized_coefficients", coefficients)


# What is recorded.


def replayed_otherwise(patch: Patch) -> None:
    """A resumed run takes noise from the machine, and its ledger lets recorded rounds pass."""
    real_append, real_stream = Ledger.append, federated.stream
    done: list[int] = []
    real_begin = FederatedTrainer.begin

    def begin(self: FederatedTrainer, rounds: int) -> None:
        done.append(rounds)
        real_begin(self, rounds)

    def append(self: Ledger, entry: Any) -> None:
        if entry["round"] <= self.last_round:
            witness(entry["round"])
            return
        real_append(self, entry)

    def named(seed: int, purpose: Purpose, index: int = 0, client: int = 0) -> np.random.Generator:
        if purpose is Purpose.NOISE:
            return np.random.Generator(np.random.Philox(len(done) * 1000 + index))
        return real_stream(seed, purpose, index, client)

    patch.setattr(FederatedTrainer, "begin", begin)
    patch.setattr(Ledger, "append", append)
    patch.setattr(federated, "stream", named)


def checkpoint_without_ledger(folder: Path) -> None:
    """Who copies a run to another machine leaves its ledger and its checkpoints behind.

    The model is kept: the rounds are run once more, and only they are recorded.
    """
    witness(1.0)
    (folder / "ledger.jsonl").unlink()
    shutil.rmtree(folder / "checkpoints")


def going_on_from_the_model(patch: Patch) -> None:
    """A run begins with the parameters that a run of the same name has left in memory."""
    left: list[Tensor] = []
    real, real_step = FederatedTrainer.__init__, FederatedTrainer._take_central_step

    def init(self: FederatedTrainer, resolved: ResolvedConfig, *given: Any, **more: Any) -> None:
        real(self, resolved, *given, **more)
        if left:
            witness(l2_norm(left[0] - self.central.detach()))
            self.central.data.copy_(left[0])

    def step(self: FederatedTrainer, mean: Tensor, index: int) -> float:
        rate = real_step(self, mean, index)
        left[:] = [self.central.detach().clone()]
        return rate

    patch.setattr(FederatedTrainer, "__init__", init)
    patch.setattr(FederatedTrainer, "_take_central_step", step)


TINY: dict[str, Any] = {
    "federated__local_learning_rate": 1e-5,
    "privacy__mechanism": {"name": "gaussian", "clip_norm": 1e-5},
}
TWO_WORKERS = {"federated__workers": 2}
FEW = {"federated__cohort_size": 2}

BLIND_BUGS: tuple[Blind, ...] = (
    blind(
        "workers_share_coins",
        "two workers toss the same coins: users i and i + N/2 come together",
        "`PoissonSampler.draw`",
        "users are not drawn independently: who knows one knows the other",
        "up to 24 (no amplification against who knows the twin)",
        1.0,
        plant=cohorts(workers_share_coins),
    ),
    blind(
        "cohort_prefetched_twice",
        "each cohort serves two rounds",
        "`PoissonSampler.draw`",
        "rounds are not drawn independently",
        "6.0",
        1.0,
        plant=cohorts(prefetched_twice),
    ),
    blind(
        "users_rest_a_round",
        "nobody takes part in two rounds running; the others come the more often",
        "`PoissonSampler.draw`",
        "who takes part depends on the round before, at a higher rate of the others",
        "about 5",
        1.0,
        plant=cohorts(cooled_down),
    ),
    blind(
        "fair_sampling",
        "who has waited longer is drawn sooner",
        "`PoissonSampler.draw`",
        "who takes part depends on the rounds before, and on the other users",
        "above 4.07, up to 24: no amplification is proved",
        1.0,
        plant=cohorts(fair),
    ),
    blind(
        "small_users_left_out",
        "a tenth of the users is never drawn, and the rate is of the others",
        "`PoissonSampler.draw`",
        "q is 0.185 and not 0.167",
        "4.5",
        1.0,
        plant=cohorts(small_users_left_out),
    ),
    blind(
        "cohort_cut_to_memory",
        "a cohort beyond 55 loses the users with the highest numbers",
        "`PoissonSampler.draw`",
        "one user displaces another: twice the bound in a cohort that was cut",
        "up to 17, of the users whom the cut reaches",
        1.0,
        plant=cohorts(cut_to_memory),
    ),
    blind(
        "last_user_never_drawn",
        "an off-by-one: the last user is never drawn",
        "`PoissonSampler.draw`",
        "nothing of the guarantee; what is accounted is not what is drawn",
        "4.07",
        1.0,
        plant=cohorts(never_the_last),
    ),
    blind(
        "cohorts_restart_at_resume",
        "the resumed half draws the cohorts of the first half",
        "`stream` of SAMPLING counts from the resume",
        "rounds are not drawn independently",
        "6.0",
        1.0,
        plant=cohorts_restart,
        interrupt_after=HALF,
    ),
    blind(
        "rate_of_the_group",
        "the probability is computed of the group's own size",
        "`CyclicPoissonSampler.draw`",
        "the rate depends on who else there is",
        "a little above the claim",
        0.02,
        plant=rate_of_the_group,
        changes=CYCLIC,
    ),
    blind(
        "user_in_two_hands",
        "a user is trained twice, in the place of another; the record has both",
        "`orders.deal`",
        "one user moves the sum by twice the bound",
        "up to 17",
        1.0,
        plant=dealt_twice,
    ),
    blind(
        "each_layer_to_the_bound",
        "weights and bias are clipped apart, each to the whole bound",
        "`add_clipped_`",
        "a user moves the sum by up to 1.41 times the bound",
        "8.1",
        plant=clipping(each_layer),
    ),
    blind(
        "norm_without_bias",
        "the norm that is clipped by leaves out the bias",
        "`add_clipped_`",
        "nothing bounds the bias",
        "infinite",
        plant=clipping(without_bias),
    ),
    blind(
        "norm_of_another",
        "updates are clipped by the norm of the client before",
        "`add_clipped_`",
        "nothing bounds a user",
        "infinite",
        0.05,
        plant=clipping(norm_of_another),
    ),
    blind(
        "norm_in_half",
        "the norm is computed in float16, where small squares are zeros",
        "`add_clipped_`, at a small learning rate and bound",
        "nothing bounds a user whose update is small and has many parameters",
        "infinite",
        0.05,
        plant=clipping(norm_in_half),
        changes=TINY,
    ),
    blind(
        "sum_of_pairs_clipped",
        "the sums of pairs of clients are clipped, not the clients",
        "`add_clipped_`",
        "a user moves a pair's sum by up to twice the bound",
        "up to 17",
        0.5,
        plant=sum_of_pairs,
    ),
    blind(
        "last_of_a_hand_unclipped",
        "the last client of each hand is added without clipping",
        "`CohortTraining._train_hand`",
        "nothing bounds these users",
        "infinite",
        0.05,
        plant=last_of_hand_unclipped,
    ),
    blind(
        "sent_again",
        "one client in ten is added twice, and counted once",
        "`Intake.take_in`",
        "these users move the sum by twice the bound",
        "17",
        0.1,
        plant=sent_again,
    ),
    blind(
        "sum_never_zeroed",
        "a round's sum begins with the sum of the last round",
        "`SumTree.zeros`",
        "a user is in every later round too",
        "above 24",
        0.1,
        plant=never_zeroed,
    ),
    blind(
        "summed_over_processes_twice",
        "the sum is doubled after it was made, the noise is not",
        "`SharedTraining.train`",
        "a user moves the sum by twice the bound",
        "17",
        plant=summed_twice,
    ),
    blind(
        "noise_of_the_next_bound",
        "adaptive clipping moves the bound, and then noises for it",
        "`AdaptiveGaussian.release`",
        "the noise is too small wherever the bound falls",
        "about 4.2",
        0.02,
        plant=bound_moved_first,
        changes=ADAPTIVE,
    ),
    blind(
        "worker_unclipped",
        "one of two worker processes does not clip",
        "`follow`, in the worker",
        "nothing bounds half of the users",
        "infinite",
        0.05,
        plant=worker_unclipped,
        changes=TWO_WORKERS,
    ),
    blind(
        "two_layers_alike",
        "the bias has the same noise as the first weights",
        "`noised_mean`",
        "the difference of two elements is bare",
        "infinite",
        0.1,
        plant=noising(alike_in_two_layers),
    ),
    blind(
        "noise_where_used",
        "elements of the sum that are zero get no noise",
        "`noised_mean`",
        "which features a cohort has is bare",
        "infinite",
        0.1,
        plant=noising(where_it_is_used),
    ),
    blind(
        "noise_in_half",
        "the noise is float16: the last digits of the sum are bare",
        "`noised_mean`",
        "what the sum has beyond the noise's grid is released",
        "infinite",
        1e-5,
        plant=noising(in_half),
    ),
    blind(
        "noise_without_outliers",
        "the noise is cut off at three standard deviations",
        "`noised_mean`",
        "two elements a round are the sum's own, moved by a constant",
        "infinite",
        0.01,
        plant=noising(without_outliers),
    ),
    blind(
        "bias_bare",
        "the ten elements of the bias get no noise",
        "`noised_mean`",
        "the cohort's labels are bare",
        "infinite",
        0.1,
        plant=noising(bias_bare),
    ),
    blind(
        "less_noise_in_the_end",
        "the noise falls to 0.8 of what is claimed",
        "`noised_mean`",
        "the multiplier of later rounds",
        "about 5.0",
        0.1,
        plant=noising(less_in_the_end),
    ),
    blind(
        "better_of_two_noises",
        "of two noises the one along the sum is taken",
        "`noised_mean`",
        "the choice is by the sum itself, and unpaid",
        "up to 8 (both draws released)",
        0.1,
        plant=noising(better_of_two),
    ),
    blind(
        "noise_of_a_pool",
        "rounds take their noise from anywhere in 4,096 normals",
        "`noised_mean`",
        "rounds share noise, shifted; their difference is bare",
        "infinite",
        0.1,
        plant=noising(of_a_pool),
    ),
    blind(
        "noise_permuted",
        "one draw of noise, in another order each round",
        "`noised_mean`",
        "the noise is known but for its order",
        "infinite",
        0.1,
        plant=noising(permuted),
    ),
    blind(
        "noise_antithetic",
        "every second round has the noise of the last, its sign turned",
        "`noised_mean`",
        "the sum of two rounds is bare",
        "infinite",
        0.1,
        plant=noising(antithetic),
    ),
    blind(
        "noise_shared_by_clients",
        "each client adds its part of the noise of the expected cohort",
        "`Gaussian.release`",
        "a small cohort has little noise",
        "about 4.3, and infinite for an empty cohort",
        0.05,
        plant=shared_by_clients,
    ),
    blind(
        "round_in_three_bits",
        "rounds 1, 9 and 17 have the same noise, and so on",
        "`stream` of NOISE",
        "the difference of two rounds is bare",
        "infinite",
        1.0,
        plant=stream_of_a_byte,
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
    ),
    blind(
        "client_noise_of_the_user",
        "a client's own noise is the same in all of its rounds",
        "`Intake._client_noise`",
        "the difference of two reports of a user is bare",
        "infinite",
        1.0,
        plant=of_the_user,
        changes=LOCAL,
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
    ),
    blind(
        "large_cohorts_divide",
        "the sum is divided by the cohort that came, if it is more than expected",
        "`Gaussian.release`",
        "the cohort's size is in every element, and noise shrinks with it",
        "above 4.07; the divisor is bare",
        0.05,
        plant=largest_cohort_divides,
    ),
    blind(
        "clean_count_moves_bound",
        "the noisy count is released, the clean one moves the bound",
        "`AdaptiveGaussian.release`",
        "the bound, which is released, tells the count",
        "infinite",
        0.001,
        plant=clean_count_moves_bound,
        changes=ADAPTIVE,
    ),
    blind(
        "count_of_plain_bits",
        "the count is of ones and zeros, at the price of halves",
        "`AdaptiveGaussian.release`",
        "a user moves the count by 1 and not by 1/2",
        "4.55",
        1.0,
        plant=plain_bits,
        changes=ADAPTIVE,
    ),
    blind(
        "step_along_the_sum",
        "the model takes the mean without noise",
        "`FederatedTrainer._take_central_step`",
        "the model is not private at all",
        "infinite",
        0.1,
        plant=step_along_the_sum,
    ),
    blind(
        "step_by_the_clean_norm",
        "the step is as long as the update before its noise",
        "`FederatedTrainer._take_central_step`",
        "the norm of the sum is bare",
        "infinite",
        0.1,
        plant=step_by_the_clean_norm,
    ),
    blind(
        "released_twice",
        "the sum is noised for the ledger and again for the step",
        "`Gaussian.release` and `_take_central_step`",
        "each round is two releases",
        "8.1",
        0.1,
        plant=released_twice,
    ),
    blind(
        "trained_before",
        "the run begins where training without privacy on the same users has led",
        "`FederatedTrainer.__init__`",
        "a release without noise comes before round 1",
        "infinite",
        0.1,
        plant=trained_before,
    ),
    blind(
        "count_unpaid",
        "the update has all of the multiplier, and the count comes on top",
        "`split_noise`",
        "the multiplier of both together is 0.98",
        "4.2",
        plant=count_unpaid,
        changes=ADAPTIVE,
    ),
    blind(
        "users_of_all_splits",
        "the population has the users of the test split, who are never drawn",
        "`make_plan`",
        "q is 0.167 and not 0.139",
        "4.07, of a claim of 3.4",
        1.0,
        plant=users_of_all_splits,
        changes={"privacy__population_size": "training_users"},
    ),
    blind(
        "own_cohort_in_deployment",
        "the deployment's rate is that of this run's smaller cohort",
        "`PlanRequest.participation`",
        "q of the deployment is half of what it should be",
        "8.1 at multiplier 1, here about 2, of a claim of half",
        1.0,
        plant=own_cohort_in_deployment,
        changes=SMALLER_COHORT,
    ),
    blind(
        "delta_of_the_cohort",
        "delta is the cohort to the -1.1",
        "`default_delta`",
        "delta is 0.0135, far above one user in 300",
        "4.07 at the delta that is meant, of a claim of 3.03",
        0.001,
        plant=delta_of_the_cohort,
    ),
    blind(
        "rho_as_epsilon",
        "a divergence is stated as epsilon",
        "`_rdp_epsilon`",
        "the price of delta is left out",
        "4.07, of a claim near 2",
        0.1,
        plant=rho_as_epsilon,
    ),
    blind(
        "paid_since_resume",
        "a resumed run pays for its second half",
        "`PrivacyPlan.statement`",
        "half of the rounds are not accounted",
        "4.07, of a claim of 3.0",
        1.0,
        plant=since_resume,
        interrupt_after=HALF,
    ),
    blind(
        "strategy_too_large",
        "the strategy's columns are 1.25 long: too little noise for one user",
        "`optimized_coefficients`",
        "the multiplier is 0.8",
        "about 1.5 times the claim",
        0.2,
        plant=strategy_too_large,
        changes=BANDED,
    ),
    blind(
        "replayed_otherwise",
        "three rounds are released again, with other noise, and recorded once",
        "`Ledger.append` lets pass what is recorded; noise differs after a resume",
        "23 rounds are released, 20 are accounted",
        "4.35",
        1.0,
        plant=replayed_otherwise,
        interrupt_after=HALF + 3,
    ),
    blind(
        "record_left_behind",
        "ledger and checkpoints are lost, and the run goes on from its model",
        "the folder; `FederatedTrainer.__init__`",
        "33 rounds are in the model, 20 are accounted; 13 share their noise",
        "infinite",
        1.0,
        plant=going_on_from_the_model,
        interrupt_after=HALF + 3,
        between=checkpoint_without_ledger,
    ),
)
