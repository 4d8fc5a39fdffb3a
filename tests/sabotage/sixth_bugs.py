"""The sixth list by others: subtle, partial, rare and late bugs, each of another idea.

They were planted at commit 949a6e65 by somebody who had read neither the audit's checks nor its
reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import opacus.optimizers
import torch
from torch import Tensor

from pfl_bench.client.engines import vectorized
from pfl_bench.config.row_differences import digest_of
from pfl_bench.federated import cohort, private_seed, trainer
from pfl_bench.federated.algorithms import scaffold
from pfl_bench.federated.compression import Compression
from pfl_bench.federated.privacy_session import PrivateRounds
from pfl_bench.federated.workers.messages import SharedTraining
from pfl_bench.rng import Purpose, stream, torch_seed
from pfl_bench.runs import folder as run_folder
from pfl_bench.runs import runner
from pfl_bench.simulation.devices.limits import Limits
from pfl_bench.trainers import central, dp_sgd
from privacy import accountant, clipping
from privacy.accountants.renyi import renyi_of
from privacy.empirical.canaries import Canaries
from privacy.errors import BudgetExceededError
from privacy.mechanisms import (
    adaptive_gaussian,
    column_normalized_banded,
    gaussian,
    laplace,
    privunit,
    tree_aggregation,
)
from privacy.noise import clipped_sum, factorization, toeplitz_noise
from privacy.plan import budget, checks
from privacy.plan import plan as plans
from privacy.sampling_scheme import SamplingScheme
from privacy.schemes import shuffled, truncated_poisson
from tests.sabotage.fifth_planting import (
    ADAPTIVE,
    BANDED,
    CENTRAL_DP,
    CYCLIC,
    EPOCHS,
    PLD,
    PRIVUNIT,
    REPORTS,
    RESTARTED_TREE,
    ROUNDS,
    SEQUENTIAL,
    FifthBug,
    Patch,
    RawMeans,
    change_noise,
    gaussian_with,
    honest_outcome,
    mechanism,
)
from tests.sabotage.paper_planting import counter, follow_clients, registering, wrap

BUGS: list[FifthBug] = []
bug = registering(BUGS, FifthBug)
shared = registering(BUGS, FifthBug, shared=True)
DP_SGD: dict[str, Any] = {"settings": EPOCHS, "config": CENTRAL_DP}
NUM_WEIGHTS = 640
# Of a run in which the best round is not the last, and the loss rises three times before that.
NONCE = "privacy.nonce=1"


def rising(clip_norm: float) -> tuple[str, ...]:
    """The adaptive mechanism, which begins with another bound than that of the updates."""
    return (*ADAPTIVE, mechanism("adaptive_gaussian", clip_norm, quantile=0.3))


def change_clip(patch: Patch, change: Callable[[Any, Tensor, Tensor, float], Any]) -> None:
    """Clip by ``change``, of the real function, sum, update (shape (P,) each) and bound."""

    def changing(real: Any) -> Any:
        return lambda total, update, clip_norm: change(real, total, update, clip_norm)

    wrap(patch, clipped_sum, "add_clipped_", changing)


def before(patch: Patch, owner: Any, name: str, note: Callable[..., Any]) -> None:
    """Call ``note`` with the arguments of a function before it is called."""

    def noting(real: Any) -> Any:
        def noted(*args: Any, **named: Any) -> Any:
            note(*args, **named)
            return real(*args, **named)

        return noted

    wrap(patch, owner, name, noting)


def follow_losses(patch: Patch) -> list[float]:
    """The mean training loss of each round, without noise, as it ends."""
    losses: list[float] = []

    def keeping(real: Any) -> Any:
        def train(*args: Any) -> Any:
            aggregate, counted = real(*args)
            losses.append(counted.loss / max(1, aggregate.num_contributions))
            return aggregate, counted

        return train

    wrap(patch, SharedTraining, "train", keeping)
    return losses


def _rises(losses: list[float]) -> int:
    return sum(later > earlier for earlier, later in pairwise(losses))


# Clipping.


@shared(
    "The clip is skipped for users with one or two examples, who would vanish in it.",
    settings=SEQUENTIAL,
)
def clip_spares_small_users(patch: Patch) -> None:
    now = SimpleNamespace(examples=0)
    before(
        patch,
        cohort.CohortTraining,
        "_outgoing",
        lambda training, result, index: setattr(now, "examples", result.num_examples),
    )

    def clip(real: Any, total: Tensor, update: Tensor, clip_norm: float) -> Any:
        real(total, update, math.inf if now.examples <= 2 else clip_norm)
        return honest_outcome(update, clip_norm)

    change_clip(patch, clip)


@shared(
    "The bound is the least of the configured one and the mean norm of the last 20 clients.",
    settings=(*ADAPTIVE, mechanism("gaussian", 2.0)),
)
def clip_to_running_mean(patch: Patch) -> None:
    norms: list[float] = []

    def clip(real: Any, total: Tensor, update: Tensor, clip_norm: float) -> Any:
        bound = min([clip_norm, *([float(np.mean(norms[-20:]))] if norms else [])])
        norms.append(clipping.l2_norm(update))
        return real(total, update, bound)

    change_clip(patch, clip)


@shared(
    "Updates are quantised after they are clipped, which lengthens them beyond the bound.",
    settings=gaussian_with("federated.compression={name: quantization, levels: 2}"),
)
def quantised_after_clip(patch: Patch) -> None:
    now = SimpleNamespace()

    def send(self: Any, upload: Any, result: Any, round_index: int) -> Any:
        now.compression, now.user, now.round = self, result.user, round_index
        upload.num_bytes += self.expected_bytes - self._dense
        return upload

    def clip(real: Any, total: Tensor, update: Tensor, clip_norm: float) -> Any:
        clipped = clipping.clip(update, clip_norm)
        total.add_(now.compression.compress(clipped, now.user, now.round))
        return honest_outcome(update, clip_norm)

    patch.setattr(Compression, "send", send)
    change_clip(patch, clip)


@shared(
    "The clip's factor is computed in bfloat16, whose rounding takes updates past the bound.",
    settings=gaussian_with("precision=bfloat16", "federated.engine=vectorized"),
)
def factor_in_bfloat16(patch: Patch) -> None:
    def rounding(real: Any) -> Any:
        def factor(norm: float, clip_norm: float) -> float:
            return float(torch.tensor(real(norm, clip_norm), dtype=torch.bfloat16))

        return factor

    wrap(patch, clipping, "clip_factor", rounding)


@shared(
    "The adaptive bound moves by the fraction without its noise, which is only reported.",
    settings=ADAPTIVE,
)
def adaptive_moves_by_bare_fraction(patch: Patch) -> None:
    def moving(real: Any) -> Any:
        def release(self: Any, aggregate: Any, rng: Any) -> Any:
            released = real(self, aggregate, rng)
            bare = aggregate.bit_sum / self._noise.cohort_size + 0.5
            step = self._options.clip_learning_rate * (bare - self._options.quantile)
            self._clip_norm = released.clip_norm * math.exp(-step)
            return released

        return release

    wrap(patch, adaptive_gaussian.AdaptiveGaussian, "release", moving)


@shared(
    "Noise is scaled by the adaptive bound of the round before, which was smaller.",
    settings=rising(0.1),
)
def adaptive_noise_of_last_bound(patch: Patch) -> None:
    last: list[float] = []

    def late(real: Any) -> Any:
        def noised_mean(total: Tensor, stddev: float, *rest: Any) -> Any:
            last.append(stddev)
            return real(total, last[-2:][0], *rest)

        return noised_mean

    wrap(patch, adaptive_gaussian, "noised_mean", late)


@bug(
    "After a resume clients are clipped to the first bound, which was larger than the moved one.",
    settings=rising(1.5),
    killed_after=8,
)
def resume_clips_to_first_bound(patch: Patch) -> None:
    resumed: list[Any] = []
    mechanism_type = adaptive_gaussian.AdaptiveGaussian
    before(patch, mechanism_type, "load_state_dict", lambda self, state: resumed.append(self))

    def accumulate(
        self: Any, aggregate: Any, update: Tensor, weight: float, rng: Any = None
    ) -> Any:
        moved = self._clip_norm
        bound = self._options.clip_norm if resumed else moved
        clipping.add_clipped_(aggregate.total, update, bound)
        outcome = honest_outcome(update, moved)
        aggregate.count(outcome)
        return outcome

    patch.setattr(mechanism_type, "accumulate", accumulate, raising=False)


# Noise.


@shared("Noise beyond three standard deviations is cut, so that its tails hide nothing.")
def noise_tails_cut(patch: Patch) -> None:
    change_noise(patch, lambda noise, _: noise.clip(-3 * noise.std(), 3 * noise.std()))


@shared("Noise is rounded to a grid of a 64th of its scale: digits below show the bare sum.")
def noise_on_a_grid(patch: Patch) -> None:
    def change(noise: Any, total: Tensor) -> Any:
        step = 2.0 ** math.floor(math.log2(noise.std() / 64))
        return np.round(noise / step) * step

    change_noise(patch, change)


@shared("The part of the noise that points along the bare sum is taken out.")
def noise_orthogonal_to_sum(patch: Patch) -> None:
    def change(noise: Any, total: Tensor) -> Any:
        along = total.double().numpy()
        return noise - along * (noise @ along) / max(along @ along, 1e-30)

    change_noise(patch, change)


@bug(
    "With two workers each has to add its share of the noise, and the worker's is forgotten.",
    settings=gaussian_with("federated.workers=2"),
)
def noise_share_of_workers(patch: Patch) -> None:
    sizes: list[int] = []
    before(patch, SharedTraining, "__init__", lambda self, group, *_: sizes.append(group.size))
    change_noise(patch, lambda noise, _: noise / math.sqrt(sizes[-1]))


@shared("Elements whose bare sum is zero get no noise, to keep the release sparse.")
def noise_keeps_sparsity(patch: Patch) -> None:
    change_noise(patch, lambda noise, total: np.where(total.numpy() == 0.0, 0.0, noise))


class _TwoDraws:
    """A stream of which each draw after the second is zero."""

    def __init__(self, rng: Any) -> None:
        self._rng, self._calls = rng, counter()

    def standard_normal(self, size: int) -> Any:
        return self._rng.standard_normal(size) * (self._calls() < 2)


@shared(
    "Nodes of the tree from the third level on get no draw of their own.", settings=RESTARTED_TREE
)
def tree_parents_without_draw(patch: Patch) -> None:
    def sparing(real: Any) -> Any:
        return lambda self, rng, length: real(self, _TwoDraws(rng), length)

    wrap(patch, tree_aggregation.TreeAggregation, "_next_noise", sparing)


@shared(
    "The column of the banded matrix is scaled to largest element 1 in place of norm 1.",
    settings=BANDED,
)
def banded_scaled_by_largest(patch: Patch) -> None:
    patch.setattr(factorization, "_unit", lambda coefficients: coefficients / coefficients.max())


@shared(
    "The sensitivity of buffered Toeplitz noise is that of a user who is in one round.",
    settings=(*ADAPTIVE, mechanism("buffered_toeplitz", buffers=2), *CYCLIC),
)
def toeplitz_one_participation(patch: Patch) -> None:
    def squared(column: Any, participation: Any, rounds: int) -> float:
        return float(np.square(column()).sum())

    patch.setattr(toeplitz_noise, "pattern_squared_sensitivity", squared)


@shared(
    "The last two rounds of banded noise with columns of their own get 0.7 of the noise.",
    settings=(*ADAPTIVE, mechanism("column_normalized_banded", bands=3), *CYCLIC),
)
def late_rounds_less_noise(patch: Patch) -> None:
    def fading(real: Any) -> Any:
        def next_noise(self: Any, rng: Any, length: int) -> Any:
            return real(self, rng, length) * (0.7 if self._rounds >= ROUNDS - 2 else 1.0)

        return next_noise

    wrap(patch, column_normalized_banded.ColumnNormalizedBanded, "_next_noise", fading)


@shared(
    "The Laplace mechanism clips in L2, but its noise is for a bound in L1.",
    settings=(*ADAPTIVE, mechanism("laplace", 1.0), "privacy.epsilon=50.0", PLD),
)
def laplace_clips_in_l2(patch: Patch) -> None:
    patch.setattr(laplace, "add_clipped_l1_", clipping.add_clipped_)


# Clients' own noise.


@bug(
    "A client draws its noise once and adds the same in all of its rounds.",
    settings=(*ADAPTIVE, mechanism("local_gaussian"), *REPORTS),
)
def client_noise_drawn_once(patch: Patch) -> None:
    def once(real: Any) -> Any:
        return lambda seed, purpose, index, client: real(seed, purpose, 1, client)

    wrap(patch, cohort, "stream", once)


@shared(
    "One client in fifty sends its clipped update in place of PrivUnit's direction.",
    settings=PRIVUNIT,
)
def privunit_bare_one_in_fifty(patch: Patch) -> None:
    now = follow_clients(patch)

    def sparing(real: Any) -> Any:
        def randomize(self: Any, report: Tensor, rng: Any) -> None:
            if now.client % 50 != 7:
                real(self, report, rng)

        return randomize

    wrap(patch, privunit.PrivUnit, "_randomize", sparing)


# Sampling.


@bug("Users with more examples are drawn more often: chances follow the sizes of their data.")
def sampling_by_size(patch: Patch) -> None:
    def building(real: Any) -> Any:
        def build(parts: Any, *rest: Any) -> Any:
            built, sizes = real(parts, *rest), np.diff(parts.split.offsets)
            chances = parts.options.cohort_size * sizes / sizes.sum()
            built.draw = lambda index, rng: np.flatnonzero(rng.random(len(sizes)) < chances)
            return built

        return build

    wrap(patch, trainer, "build_participants", building)


@shared(
    "A shuffled batch begins with the last four examples of the one before.",
    settings=(*EPOCHS, "central.sampling=shuffled"),
    config=CENTRAL_DP,
)
def shuffled_batches_overlap(patch: Patch) -> None:
    def draw(self: Any, users: Any, rng: Any, round_index: int, groups: Any) -> Any:
        size = int(users.cohort_size)
        start = max(0, (round_index - 1) % self.rounds_of_epoch(users) * size - 4)
        return np.sort(groups[start : start + size])

    patch.setattr(shuffled.Shuffled, "draw", draw)


@shared(
    "A truncated cohort is cut at its expectation, where the accounting has four deviations more.",
    settings=gaussian_with("federated.sampling=truncated_poisson", PLD),
)
def truncated_at_the_expectation(patch: Patch) -> None:
    def cutting(real: Any) -> Any:
        def draw(self: Any, users: Any, rng: Any, *rest: Any) -> Any:
            drawn = real(self, users, rng, *rest)
            return np.sort(rng.permutation(drawn)[: int(users.cohort_size)])

        return draw

    wrap(patch, truncated_poisson.TruncatedPoisson, "draw", cutting)


@bug(
    "Nobody counts how often and when users took part, so that cap and separation are not kept.",
    settings=gaussian_with(
        "systems={source: {name: generated}, overcommitment: 1.3}",
        "federated.sampling=selected",
        "federated.cohort_size=20",
        "federated.max_participations=3",
        "federated.separation=2",
        "privacy.noise_cohort_size=null",
        "privacy.epsilon=50.0",
    ),
)
def limits_not_noted(patch: Patch) -> None:
    patch.setattr(Limits, "note", lambda self, users, index: None)


# Accounting and the statement.


@shared("Epsilon of Renyi divergences has the logarithm of the order taken off twice.")
def rdp_conversion_log_twice(patch: Patch) -> None:
    def epsilon(parts: Any, delta: float, selected_of: Any = None) -> float:
        found = renyi_of(parts, selected_of)
        orders = np.asarray(found.orders, np.float64)
        slack = np.log1p(-1 / orders) - (math.log(delta) + 2 * np.log(orders)) / (orders - 1)
        return float(max(0.0, np.min(found.rdp + slack)))

    patch.setattr(accountant, "renyi_epsilon", epsilon)


@shared("Delta is that of a fifth of the users, the cohort, and above one over their number.")
def delta_of_the_cohort(patch: Patch) -> None:
    wrap(patch, budget, "default_delta", lambda real: lambda number: real(number // 5))


@shared("The accountant is given the sampling rate rounded to two digits, 0.04 of 0.045.", **DP_SGD)
def rate_rounded(patch: Patch) -> None:
    def event(self: Any, users: Any, event: Any) -> Any:
        from dp_accounting import dp_event

        rate = self.sampling_probability(users)
        return dp_event.PoissonSampledDpEvent(round(rate, 2), event)

    patch.setattr(SamplingScheme, "sampled_event", event)


@bug("A resumed run states the rounds since it was resumed alone.", killed_after=6)
def resume_states_own_rounds(patch: Patch) -> None:
    begun: list[int] = []
    before(patch, trainer.FederatedTrainer, "begin", lambda self, done: begun.append(done))

    def stating(real: Any) -> Any:
        return lambda self, done: real(self, done if done is None else done - begun[-1])

    wrap(patch, trainer.FederatedTrainer, "claim", stating)


@shared("The actual epsilon is that of the deployment's noise, not of the smaller one of the run.")
def actual_with_simulated_noise(patch: Patch) -> None:
    def making(real: Any) -> Any:
        def make(**named: Any) -> Any:
            noise = named["simulated"].noise_multiplier
            return real(**named | {"actual": replace(named["actual"], noise_multiplier=noise)})

        return make

    wrap(patch, plans, "PrivacyPlan", making)


@bug(
    "The statement is of the rounds up to the model that was selected, all of which are released.",
    settings=gaussian_with(
        "evaluation.select_best=val/accuracy", "evaluation.every=1", "privacy.epsilon=0.5", NONCE
    ),
)
def statement_of_the_best_round(patch: Patch) -> None:
    chosen: list[int] = []
    before(
        patch, runner._Run, "_summarise", lambda self, *_: chosen.append(int(self._best.index or 0))
    )

    def stating(real: Any) -> Any:
        return lambda self, done: real(self, chosen[-1] if chosen and done else done)

    wrap(patch, trainer.FederatedTrainer, "claim", stating)


@shared(
    "Canaries are sent at a tenth of the bound, so that nobody finds them.",
    settings=gaussian_with("privacy.audit={kind: one_run, count: 100}"),
)
def canaries_too_small(patch: Patch) -> None:
    def shrinking(real: Any) -> Any:
        return lambda *args: (update * 0.1 for update in real(*args))

    wrap(patch, Canaries, "updates", shrinking)


@bug("The statement that is published has the mean norm of clients' updates, without noise.")
def statement_has_mean_norm(patch: Patch) -> None:
    norms: list[float] = []

    def keeping(real: Any) -> Any:
        def accumulate(*args: Any, **named: Any) -> Any:
            outcome = real(*args, **named)
            norms.append(outcome.norm)
            return outcome

        return accumulate

    def telling(real: Any) -> Any:
        return lambda self: real(self) | {"mean_norm": float(np.mean(norms or [0.0]))}

    wrap(patch, clipped_sum, "accumulate_clipped", keeping)
    wrap(patch, gaussian.Gaussian, "clip_settings", telling)


# DP-SGD.


def change_steps(patch: Patch, change: Callable[[Any], None]) -> None:
    """Call ``change`` with Opacus' optimizer after each step's noise."""

    def changing(real: Any) -> Any:
        def add_noise(self: Any) -> None:
            real(self)
            change(self)

        return add_noise

    wrap(patch, opacus.optimizers.DPOptimizer, "add_noise", changing)


@bug("After a resume the noise of DP-SGD's first epochs is drawn again.", **DP_SGD, killed_after=2)
def dpsgd_resume_repeats_noise(patch: Patch) -> None:
    def resetting(real: Any) -> Any:
        def load(self: Any, state: Any) -> None:
            real(self, state)
            self._private.generator.manual_seed(torch_seed(self._batch_seed, Purpose.NOISE))

        return load

    wrap(patch, central.CentralTrainer, "load_state_dict", resetting)


@shared(
    "Gradients of a micro-batch of less than four examples are not clipped.",
    settings=(*EPOCHS, "central.physical_batch_size=16"),
    config=CENTRAL_DP,
)
def dpsgd_small_micro_batch_unclipped(patch: Patch) -> None:
    def sparing(real: Any) -> Any:
        def clipped_sums(samples: Any, clip_norm: float) -> Any:
            size = len(samples[0].left if hasattr(samples[0], "left") else samples[0])
            return real(samples, clip_norm if size >= 4 else 1e6)

        return clipped_sums

    wrap(patch, dp_sgd, "clipped_sums", sparing)


@bug("DP-SGD's momentum adds up clipped sums without their noise.", **DP_SGD)
def dpsgd_momentum_without_noise(patch: Patch) -> None:
    bare: dict[int, Tensor] = {}

    def change(optimizer: Any) -> None:
        for parameter in optimizer.params:
            kept = bare.get(id(parameter))
            total = parameter.summed_grad.detach().view_as(parameter).clone()
            if kept is not None:
                parameter.grad += 0.5 * kept
                total += 0.5 * kept
            bare[id(parameter)] = total

    change_steps(patch, change)


# What the centre makes of a round.


@shared(
    "SCAFFOLD is let into a private run as if its clients sent nothing but the update.",
    settings=gaussian_with("federated.algorithm={name: scaffold}", "federated.engine=sequential"),
)
def scaffold_controls_in_the_clear(patch: Patch) -> None:
    patch.setattr(scaffold.Scaffold, "uploads", ("update",))
    patch.setattr(checks, "_check_client_state", lambda request: None)


@bug("The step of the last round takes a fifth of the mean without noise.")
def last_step_blends_bare_mean(patch: Patch) -> None:
    means = RawMeans(patch)

    def blending(real: Any) -> Any:
        def step(self: Any, mean_update: Tensor, index: int) -> Any:
            blended = mean_update.lerp(means.last.float(), 0.2) if index == self.total else None
            return real(self, mean_update if blended is None else blended, index)

        return step

    wrap(patch, trainer.FederatedTrainer, "_take_central_step", blending)


@bug("The central rate falls in each round whose training loss, without noise, has risen.")
def central_rate_by_loss(patch: Patch) -> None:
    losses = follow_losses(patch)

    def falling(real: Any) -> Any:
        def factor(*args: Any) -> float:
            rises = _rises(losses)
            return float(real(*args)) * 0.98**rises

        return factor

    wrap(patch, trainer, "rate_factor", falling)


@bug(
    "Rounds end, as if the budget were spent, once the training loss has risen three times.",
    settings=gaussian_with("privacy.epsilon=0.5", NONCE),
)
def stops_by_training_loss(patch: Patch) -> None:
    losses = follow_losses(patch)

    def stop(self: Any, index: int) -> None:
        rises = _rises(losses)
        if rises >= 3:
            raise BudgetExceededError("the training loss has risen three times")

    before(patch, PrivateRounds, "check_round", stop)


@bug(
    "In every fifth round a worker's sum is taken in twice.",
    settings=gaussian_with("federated.workers=2"),
)
def worker_sum_twice(patch: Patch) -> None:
    calls = counter()

    def doubling(real: Any) -> Any:
        def take(self: Any, nodes: Any, vectors: Iterator[Tensor]) -> None:
            factor = 2.0 if calls() % 5 == 4 else 1.0
            real(self, nodes, (vector * factor for vector in vectors))

        return take

    wrap(patch, SharedTraining, "_take_sums", doubling)


@shared(
    "In the vectorized engine one client in ten begins with the weights that another has left.",
    settings=gaussian_with("federated.engine=vectorized", "federated.engine_lanes=8"),
)
def slot_not_reset(patch: Patch) -> None:
    used: set[int] = set()
    before(patch, vectorized.VectorizedEngine, "train", lambda *_: used.clear())

    def keeping(real: Any) -> Any:
        def place(self: Any, client: Any, slot: int, index: int, start: Any) -> None:
            own = [weights[slot].clone() for weights in self._weights.active(self._slots)]
            real(self, client, slot, index, start)
            if slot in used and client.user % 10 == 3:
                self._weights.load(slot, own)
            used.add(slot)

        return place

    wrap(patch, vectorized.VectorizedEngine, "_place", keeping)


@shared("The last eight bits of each released element hold the element's mean without noise.")
def low_bits_hold_bare_mean(patch: Patch) -> None:
    def hiding(real: Any) -> Any:
        def noised_mean(total: Tensor, stddev: float, cohort_size: float, rng: Any) -> Tensor:
            released: Tensor = real(total, stddev, cohort_size, rng)
            levels = (total / cohort_size / 0.02 * 127).round().clamp(-127, 127).to(torch.int32)
            bits = released.view(torch.int32)
            return ((bits & ~0xFF) | (levels + 128)).view(torch.float32)

        return noised_mean

    wrap(patch, gaussian, "noised_mean", hiding)


@bug("After the last round another one is drawn, trained, noised and taken, and written nowhere.")
def round_beyond_the_last(patch: Patch) -> None:
    def going_on(real: Any) -> Any:
        def advance(self: Any, index: int) -> Any:
            scalars, run = real(self, index), self._round
            if index == self.total:
                rng = stream(run.seed, Purpose.SAMPLING, index + 1)
                users = run.participants.draw(index + 1, rng)
                aggregate, _ = run.training.train(users, index + 1, run.central, -1)
                noise = stream(run.seed, Purpose.NOISE, index + 1)
                release = run.rounds.mechanism.release(aggregate, noise)
                self._take_central_step(release.mean_update, index)
            return scalars

        return advance

    wrap(patch, trainer.FederatedTrainer, "advance", going_on)


# The seed and the folder.


@bug("A private run's folder, whose seed tells the noise, can be read by everybody.")
def folder_open_to_all(patch: Patch) -> None:
    patch.setattr(run_folder.RunFolder, "_close_to_others", lambda self: [])


@shared("The private seed leaves the section privacy out: runs of two bounds share their noise.")
def seed_without_privacy_section(patch: Patch) -> None:
    def digest(resolved: Any, has_traces: bool) -> str:
        tree = {key: value for key, value in resolved.training_tree.items() if key != "privacy"}
        return digest_of(tree)

    patch.setattr(private_seed, "configuration_digest", digest)


@shared("The private seed is cut to 32 bits, which anybody can try out.")
def seed_of_32_bits(patch: Patch) -> None:
    wrap(patch, private_seed, "value_of", lambda real: lambda *args: real(*args) & 0xFFFF_FFFF)


RUNS: tuple[FifthBug, ...] = tuple(BUGS)
