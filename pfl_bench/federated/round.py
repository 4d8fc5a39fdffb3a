"""One round of federated learning, private or not, in the order in which it happens."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from pfl_bench.federated.notices import RoundNotices
from pfl_bench.federated.parts import FederatedParts
from pfl_bench.federated.privacy_session import PrivateRounds, PublicRounds
from pfl_bench.federated.state_watch import StateWatch
from pfl_bench.federated.workers.messages import SharedTraining
from pfl_bench.profiling import phase
from pfl_bench.rng import Purpose, stream
from pfl_bench.types import (
    Participants,
    PluginError,
    RoundStatistics,
    is_of_user,
    place_of,
    returned,
)
from privacy.aggregate import Aggregate
from privacy.mechanism import Mechanism, Release
from privacy.noise.prefetched_noise import prefetched_release


@dataclass(frozen=True, slots=True)
class RoundParts:
    """Parts of a run that its rounds use.

    Attributes:
        parts: Task, model, algorithm and options.
        seed: Of cohorts and noise; of a private run the private one.
        participants: Draws the cohort, by the scheme of the plan.
        rounds: Budget, mechanism and ledger; without privacy, the aggregation.
        training: Trains the cohort, clips client by client, and sums: by all processes.
        watch: Refuses a plug-in whose state a checkpoint would not hold.
        notices: Says what a person must know.
        central: Shape (P,): the central parameters, moved in place.
    """

    parts: FederatedParts
    seed: int
    participants: Participants
    rounds: PublicRounds
    training: SharedTraining
    watch: StateWatch
    notices: RoundNotices
    central: Tensor


def run_round(
    run: RoundParts, index: int, step: Callable[[Tensor, int], float]
) -> dict[str, float]:
    """Run round ``index``, from 1, and give its scalars.

    Nothing is released but the sum of clipped updates with its noise, written to the ledger before
    the central parameters move; past the budget nothing is drawn. ``step`` takes the central step
    along the released mean, shape (P,), of a round, and gives its rate.
    """
    rounds, mechanism = run.rounds, run.rounds.mechanism
    rounds.check_round(index)  # the budget

    with phase("sampling"):
        users = run.participants.draw(index, stream(run.seed, Purpose.SAMPLING, index))
    if run.participants.rests_on and not len(users):
        run.notices.nobody(index)
    probed = rounds.choose_probe(index, len(users))

    # Noise is drawn while clients train.
    noise = stream(run.seed, Purpose.NOISE, index)
    released = prefetched_release(noise, mechanism, len(run.central))
    aggregate, counted = run.training.train(users, index, run.central, probed)
    run.notices.lost(index, counted.lost)
    contributions, num_clipped = aggregate.num_contributions, aggregate.num_clipped
    rounds.add_canaries(aggregate, index)
    with phase("noise"):
        release = _checked(released(aggregate), mechanism, run.central)
        _check_finite(release, aggregate, mechanism)
    del released  # what was drawn ahead takes memory

    rounds.record(index, users, release, aggregate, counted.users)
    _tell_algorithm(run, counted)
    with phase("central step"):
        rate = step(release.mean_update, index)
    rounds.watch(index, release, run.central)
    taken = run.participants.finish(index, users, counted)
    run.watch.check(index)
    return {
        "train/cohort_size": float(len(users)),
        "train/num_nonfinite": float(aggregate.num_nonfinite),
        "train/central_learning_rate": rate,
        **taken,
        **_scalars(run, index, release, counted, contributions),
        **rounds.scalars(release, num_clipped / max(1, contributions)),
    }


def _checked(release: Release, mechanism: object, central: Tensor) -> Release:
    """The round's release, with a mean like ``central``, of shape (P,), and finite numbers."""
    found = returned(mechanism, "release", release, Release)
    mean = returned(mechanism, "release", found.mean_update, Tensor, central.shape)
    given = {f.name: getattr(found, f.name) for f in fields(found) if f.name != "mean_update"}
    wrong = [
        f"{name}={value!r:.60}"
        for name, value in given.items()
        if value is not None and not (isinstance(value, int | float) and math.isfinite(value))
    ]
    if mean.dtype != central.dtype:
        wrong.append(f"a mean_update of {mean.dtype}")
    if wrong:
        raise PluginError(
            f"{place_of(mechanism, 'release')} returns a Release with {', '.join(wrong)}, but must "
            f"return one with finite numbers and a mean_update of {central.dtype}"
        )
    return found


def _check_finite(release: Release, aggregate: Aggregate, mechanism: Mechanism) -> None:
    """Refuse a user's mechanism or aggregation that makes NaN or infinity of finite updates."""
    own, summed = type(mechanism), [aggregate.total, *(aggregate.updates or ())]
    if not is_of_user(own) or bool(release.mean_update.isfinite().all()):
        return
    if all(bool(vector.isfinite().all()) for vector in summed):
        raise PluginError(
            f"{place_of(mechanism, 'release')} makes NaN or infinity of a finite sum, but must "
            "give finite numbers; look for a division by zero, such as by the weight of a round "
            "without clients"
        )
    # An inherited one takes in finite updates alone, whose sum may overflow.
    if is_of_user(own.accumulate):
        raise PluginError(
            f"{place_of(mechanism, 'accumulate')} takes NaN or infinity into the sum, but must add "
            "finite numbers, and leave an update that is not finite out (ClipOutcome.finite False)"
        )


def _tell_algorithm(run: RoundParts, counted: RoundStatistics) -> None:
    weight, scalar = counted.weight, counted.scalar
    if run.rounds.mechanism.is_private:
        # What came in has no noise: of a private round the centre knows the configuration.
        weight, scalar = float(run.parts.options.cohort_size), 0.0
    run.parts.algorithm.receive(weight, scalar / weight if weight else 0.0)


def _scalars(
    run: RoundParts, index: int, release: Release, counted: RoundStatistics, contributions: int
) -> dict[str, float]:
    """Scalars of the round's training."""
    scalars = {
        "train/num_examples": float(counted.num_examples),
        "train/num_steps": float(counted.num_steps),
        "train/update_norm": float(torch.linalg.vector_norm(release.mean_update)),
        "systems/steps": float(counted.steps),
        "systems/examples": float(counted.processed),
    }
    local = run.parts.algorithm.local_training
    if local.schedule is not None:
        scalars["train/local_learning_rate"] = local.rate(index)
    if contributions:
        scalars["train/loss"] = counted.loss / contributions
    aggregation = run.parts.aggregation
    if not isinstance(run.rounds, PrivateRounds) and aggregation.fewest:
        scalars["train/rounds_left_out"] = float(aggregation.rounds_left_out)
        run.notices.left_out(index, aggregation, contributions)
    return scalars
