"""How long a run would take on this machine, from two short measurements on its own data.

Training is measured twice, with little and with twice as much work, and so is evaluation. The time
of each is a line through its two points, read off at the size of the run. Federated and multi-task
training have few clients for it; local models, few epochs; central training, a few batches.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from pfl_bench.client.costs import measure_step
from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.federated.autotune.settle import settle
from pfl_bench.federated.autotune.timing import expected_client_seconds
from pfl_bench.federated.parts import FederatedParts, build_run
from pfl_bench.federated.shards import expected_work
from pfl_bench.runs.preparing import PreparedRun
from pfl_bench.runs.time_measurements import (
    FEWEST,
    MOST,
    SECONDS,
    FirstExamples,
    begun,
    evaluation_seconds,
    line,
    one_round,
)
from pfl_bench.trainers.local_only import LocalTrainer
from pfl_bench.trainers.mocha.dual import learned_relationship, sigma_prime
from pfl_bench.trainers.personalized import ExpectedWork, PersonalizedModels
from pfl_bench.types import LocalTraining, UserInputError
from privacy.errors import PrivacyError

# A whole round is measured where smaller ones are refused, if it is not expected to take longer.
_LONGEST_ROUND = 20.0
# The relationship of at most so many clients is measured; its time grows with their cube.
_MOST_RELATED = 1000


@dataclass(frozen=True)
class TimeEstimate:
    """What a run is expected to take on this machine.

    Attributes:
        training: Seconds of all rounds or epochs.
        evaluation: Seconds of all evaluations.
        workers: Processes that training is expected to be partitioned over, without loss.
        measured: What was measured, in words.
    """

    training: float
    evaluation: float
    workers: int
    measured: str

    @property
    def total(self) -> float:
        """Seconds of both."""
        return self.training + self.evaluation


def estimate_time(resolved: ResolvedConfig) -> TimeEstimate:
    """Estimate how long a run would take.

    Args:
        resolved: The configuration.

    Raises:
        UserInputError: Configuration or data do not fit.
        privacy.errors.PrivacyError: Likewise, of the privacy claim.
    """
    config = resolved.config
    if config.federated is not None:
        return _federated(resolved)
    if config.central is not None:
        return _central(resolved)
    return _local(resolved) if config.local is not None else _multitask(resolved)


def _federated(resolved: ResolvedConfig) -> TimeEstimate:
    run = build_run(resolved)
    step = measure_step(run.forward, run.model, run.task.split("train"))
    with TemporaryDirectory() as folder:
        # An empty folder has recorded no engine.
        parts = settle(FederatedParts.of(run), step, Path(folder), None, lambda text: None)
    options, local = parts.options, parts.algorithm.local_training
    sizes = np.diff(parts.split.offsets)
    expected = expected_client_seconds(sizes, local, step)
    small = min(MOST, max(FEWEST, int(SECONDS / expected)), max(1, options.cohort_size // 2))
    cohorts = (small, min(2 * small, options.cohort_size))
    try:
        points, evaluation = _measured(parts, cohorts)
    except (UserInputError, PrivacyError):
        if expected * options.cohort_size > _LONGEST_ROUND:
            raise
        # What needs a cohort of some size, as Krum does, is measured as it is.
        cohorts = (options.cohort_size, options.cohort_size)
        points, evaluation = _measured(parts, cohorts[:1])
    examples = float(expected_work(sizes, local)[1].mean()) * options.cohort_size
    workers = 1 if options.workers == "auto" else int(options.workers)
    fixed, slope = line(points)
    drawn = " and ".join(str(cohort) for cohort in dict.fromkeys(cohorts))
    return TimeEstimate(
        options.num_rounds * (fixed + slope * examples / workers),
        evaluation,
        workers,
        f"rounds of about {drawn} clients, engine {options.engine}",
    )


def _measured(
    parts: FederatedParts, cohorts: Sequence[int]
) -> tuple[list[tuple[float, float]], float]:
    """Examples and seconds of a round of each of some cohorts; seconds of all evaluations."""
    points = []
    for cohort in cohorts:
        overrides = [f"federated.cohort_size={cohort}", "federated.workers=1"]
        if parts.options.sampling == "full":
            overrides.append("federated.sampling=poisson")
        with begun(parts.resolved, overrides) as prepared:
            points.append(one_round(prepared))
            if cohort == cohorts[-1]:
                evaluation = evaluation_seconds(prepared)
    return points, evaluation


def _central(resolved: ResolvedConfig) -> TimeEstimate:
    options = resolved.config.central
    assert options is not None
    points, batch = [], options.batch_size
    for count in (FEWEST, 2 * FEWEST):
        run = build_run(resolved)
        whole = run.task.split("train").num_examples
        cut = replace(run, task=FirstExamples(run.task, min(count * batch, whole), "train"))
        with begun(resolved, [], cut) as prepared:
            seconds = 0.0
            for index in range(1, min(2, options.num_epochs) + 1):
                started = time.perf_counter()
                prepared.trainer.advance(index)
                seconds = time.perf_counter() - started
            points.append((float(cut.task.split("train").num_examples), seconds))
            evaluation = evaluation_seconds(prepared)
    fixed, slope = line(points)
    return TimeEstimate(
        options.num_epochs * (fixed + slope * whole),
        evaluation,
        1,
        f"epochs of {points[0][0]:.0f} and {points[1][0]:.0f} examples",
    )


def _local(resolved: ResolvedConfig) -> TimeEstimate:
    options = resolved.config.local
    assert options is not None
    work, evaluation, prepared = _personalized(resolved)
    trainer = prepared.trainer
    assert isinstance(trainer, LocalTrainer)
    sizes = np.diff(prepared.parts.task.split("train").offsets)
    once = LocalTraining(1, options.batch_size, options.learning_rates[0])
    expected = expected_client_seconds(sizes, once, prepared.step)
    few = min(options.clients_per_round, MOST, max(FEWEST, int(SECONDS / expected)))
    points = []
    for epochs in (1, 2):
        overrides = [
            f"local.num_epochs={epochs}",
            f"local.learning_rates=[{options.learning_rates[0]!r}]",
            f"local.clients_per_round={few}",
        ]
        with begun(resolved, overrides) as measured:
            points.append(one_round(measured))
    fixed, slope = line(points)
    rates = len(options.learning_rates)
    if not trainer.keeps_models:
        # Evaluation trains every client again, at one rate: those whose round has come.
        passes = _passes_of_evaluation(prepared)
        evaluation += passes * (fixed / few * work.clients + slope * work.examples / rates)
    return TimeEstimate(
        fixed / few * work.clients * rates + slope * work.examples,
        evaluation,
        1,
        f"{few} clients at one rate for 1 and 2 epochs",
    )


def _passes_of_evaluation(prepared: PreparedRun) -> float:
    """How often evaluation goes through all clients that are trained by then."""
    options, total = prepared.parts.resolved.config.evaluation, prepared.trainer.total
    during = [*range(options.every, total, options.every), total]
    passes: float = len(options.splits) * sum(during) / total + len(options.final_splits)
    return passes


def _multitask(resolved: ResolvedConfig) -> TimeEstimate:
    options = resolved.config.multitask
    assert options is not None
    work, evaluation, prepared = _personalized(resolved)
    count = round(work.clients / options.num_rounds / options.participation)
    few = min(MOST, max(1, count // 2))
    points = []
    for clients in (few, min(2 * few, count)):
        # The relationship is measured by itself, of all clients.
        never = options.num_rounds + 1
        overrides = [
            f"multitask.num_clients={clients}",
            f"multitask.relationship_every={never}",
        ]
        with begun(resolved, overrides) as measured:
            points.append(one_round(measured))
    fixed, slope = line(points)
    training = options.num_rounds * fixed + slope * work.examples
    if options.relationship == "learned":
        updates = options.num_rounds // options.relationship_every
        training += updates * _relationship_seconds(count, prepared.parts.model.num_parameters)
    return TimeEstimate(training, evaluation, 1, f"rounds of {few} and {clients} clients")


def _relationship_seconds(clients: int, num_parameters: int) -> float:
    """Seconds of one update of a learned relationship."""
    related = min(clients, _MOST_RELATED)
    models = np.random.default_rng(0).standard_normal((related, num_parameters))
    started = time.perf_counter()
    sigma_prime(learned_relationship(models, 1.0))
    seconds = time.perf_counter() - started
    scaled: float = seconds * (clients / related) ** 3
    return scaled


def _personalized(resolved: ResolvedConfig) -> tuple[ExpectedWork, float, PreparedRun]:
    """Expected work, seconds of all evaluations of models that nothing has trained, and the run."""
    with begun(resolved, []) as prepared:
        assert isinstance(prepared.trainer, PersonalizedModels)
        return prepared.trainer.expected_work(), evaluation_seconds(prepared), prepared
