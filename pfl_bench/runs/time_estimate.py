"""Estimate of a run's time on this machine, from short measurements on its own data.

A round (of central training an epoch) is timed with few clients or batches, and with twice as many.
The time of a round is a line through both, read off at the examples of the run. Evaluation is timed
on a few batches and scaled by examples. Nothing is written, and a private run's measurements have
noise of their own, which is thrown away.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from pfl_bench.client.costs import measure_step
from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.evaluation.evaluator import Evaluator
from pfl_bench.federated.autotune import settle
from pfl_bench.federated.engine_times import expected_client_seconds
from pfl_bench.federated.parts import FederatedParts, RunParts, build_run
from pfl_bench.runs.preparing import PreparedRun, prepare
from pfl_bench.runs.preview import changed
from pfl_bench.trainers.local_only import LocalTrainer
from pfl_bench.types import (
    FederatedSplit,
    SingleProcess,
    SplitAround,
    Task,
    TaskAround,
    UserInputError,
)
from privacy.errors import PrivacyError

# Clients or batches of the smaller measurement; of federated clients more, if they are quick.
_FEW, _FEWEST, _MOST = 4, 2, 64
# A whole round is measured where smaller ones are refused, if it is not expected to take longer.
_LONGEST_ROUND = 20.0
# Rounds of a measurement end after so many seconds or, once one drew a client, so many rounds.
_SECONDS, _REPEATS, _TRIES = 0.5, 4, 12
_EVALUATED_BATCHES = 4


@dataclass(frozen=True)
class TimeEstimate:
    """Expected time of a run on this machine: seconds of all rounds or epochs, and of evaluation.

    ``workers`` are the processes that training is expected to be partitioned over, without loss;
    ``measured`` says in words on what the estimate rests.
    """

    training: float
    evaluation: float
    workers: int
    measured: str

    @property
    def total(self) -> float:
        """Seconds of both."""
        return self.training + self.evaluation


def estimate_time(resolved: ResolvedConfig, rounds: int) -> TimeEstimate:
    """Estimate how long so many rounds or epochs of a run would take.

    UserInputError if configuration or data do not fit, privacy.errors.PrivacyError likewise.
    """
    workers, wanted, each = 1, _FEW, 0.0
    if resolved.config.federated is not None:
        run = build_run(resolved)
        step = measure_step(run.forward, run.model, run.task.split("train"))
        with TemporaryDirectory() as folder:
            # An empty folder has recorded no engine.
            parts = settle(FederatedParts.of(run), step, Path(folder), None, lambda text: None)
        resolved = parts.resolved
        sizes, local = np.diff(parts.split.offsets), parts.algorithm.local_training
        each = expected_client_seconds(sizes, local, step)
        wanted = min(_MOST, max(_FEWEST, int(_SECONDS / each)))
        workers = 1 if parts.options.workers == "auto" else int(parts.options.workers)
    alone = [] if resolved.config.federated is None else ["federated.workers=1"]
    with _begun(resolved, alone) as whole:
        work = whole.trainer.expected_work()
        evaluation = _evaluation_seconds(whole, rounds)
    most, examples = work.at_once, work.examples
    few = min(wanted, max(1, most // 2))
    counts: tuple[int, ...] = (few, min(2 * few, most))
    try:
        points = [_one_round(resolved, count) for count in counts]
    except (UserInputError, PrivacyError):
        if not 0 < each * most <= _LONGEST_ROUND:
            raise
        # What needs a cohort of some size, as Krum does, is measured as it is.
        counts = (most,)
        points = [_one_round(resolved, most)]
    fixed, slope = line(points)
    trainer = whole.trainer
    if isinstance(trainer, LocalTrainer) and not trainer.keeps_models:
        # Evaluation trains every client again at one rate: those whose round has come.
        options, total = resolved.config.evaluation, trainer.total
        during = sum([*range(options.every, total, options.every), total]) / total
        passes = len(options.splits) * during + len(options.final_splits)
        assert resolved.config.local is not None
        again = (fixed * total + slope * examples) / len(resolved.config.local.learning_rates)
        evaluation += passes * again
    drawn = " and ".join(map(str, dict.fromkeys(counts)))
    measured = f"rounds of about {drawn} clients"
    if resolved.config.central is not None:
        measured = f"epochs of {drawn} batches"
    elif resolved.config.federated is not None:
        measured += f", engine {resolved.config.federated.engine}"
    training = rounds * (fixed + slope * examples / workers / trainer.total)
    return TimeEstimate(training, evaluation, workers, measured)


def _one_round(resolved: ResolvedConfig, count: int) -> tuple[float, float]:
    """Examples and seconds of the fastest of some rounds of so many clients (batches).

    What else the machine does makes rounds slower, and none faster.
    """
    config, parts = resolved.config, None
    overrides: list[str] = []
    if config.central is not None:
        run = build_run(resolved)
        parts = replace(run, task=_First(run.task, count * config.central.batch_size, "train"))
    elif config.federated is not None:
        overrides = [f"federated.cohort_size={count}", "federated.workers=1"]
        if config.federated.sampling == "full":
            overrides.append("federated.sampling=poisson")
    elif config.local is not None:
        rate = config.local.learning_rates[0]
        overrides = [
            f"local.clients_per_round={count}",
            "local.num_epochs=1",
            f"local.learning_rates=[{rate!r}]",
        ]
    else:
        overrides = [f"multitask.num_clients={count}"]
    rounds: list[tuple[float, float]] = []
    spent = 0.0
    with _begun(resolved, overrides, parts) as prepared:
        for index in range(1, min(_TRIES, prepared.trainer.total) + 1):
            started = time.perf_counter()
            scalars = prepared.trainer.advance(index)
            seconds = time.perf_counter() - started
            spent += seconds
            # A step of Mocha takes one example.
            examples = scalars.get("systems/examples", scalars.get("train/num_steps", 0.0))
            if examples > 0 and (index > 1 or prepared.trainer.total == 1):
                rounds.append((examples, seconds))
            if len(rounds) == _REPEATS or (rounds and spent > _SECONDS):
                break
    return min(rounds, key=lambda one: one[1] / one[0], default=(0.0, seconds))


@contextmanager
def _begun(
    resolved: ResolvedConfig, overrides: Sequence[str], parts: RunParts | None = None
) -> Iterator[PreparedRun]:
    """A run that has begun in a folder which goes with it.

    Its noise is not the run's, and needs no search.
    """
    texts = [*overrides, "expected=[]", "evaluation.select_best=null", "evaluation.budgets=[]"]
    if resolved.config.is_private:
        texts += ["privacy.epsilon=null", "privacy.noise_multiplier=0.01", "privacy.nonce=null"]
        privacy, federated = resolved.config.privacy, resolved.config.federated
        if privacy is not None and federated is not None and privacy.noise_cohort_size is None:
            # The row's own, so that the noise of a count, which follows it, stays what it is.
            texts.append(f"privacy.noise_cohort_size={federated.cohort_size}")
    asked = changed(resolved, texts)
    if parts is not None:
        parts = replace(parts, resolved=asked)
    with TemporaryDirectory() as folder, ExitStack() as stack:
        prepared = prepare(asked, Path(folder), SingleProcess(), stack, lambda text: None, parts)
        prepared.trainer.begin(0)
        yield prepared


def _evaluation_seconds(prepared: PreparedRun, rounds: int) -> float:
    """Seconds of all evaluations of a run of so many rounds."""
    parts, trainer = prepared.parts, prepared.trainer
    options = parts.resolved.config.evaluation
    trainer.load_central()
    seconds = 0.0
    during = -(-rounds // options.every)
    for splits, times in ((options.splits, during), (options.final_splits, 1)):
        whole = sum(parts.task.split(name).num_examples for name in splits)
        if not whole:
            continue
        task = _First(parts.task, _EVALUATED_BATCHES * options.batch_size, *splits)
        evaluator = Evaluator(
            parts.resolved.config,
            task,
            parts.model,
            parts.forward,
            trainer.personal,
            beside=trainer.beside,
        )
        evaluator.evaluate(splits)
        started = time.perf_counter()
        evaluator.evaluate(splits)
        taken = time.perf_counter() - started
        seconds += times * taken * whole / sum(task.split(name).num_examples for name in splits)
    return seconds


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Seconds at no work, and for each unit of it, both at least 0, by one or two measurements."""
    (few, short), (many, long) = points[0], points[-1]
    slope = (long - short) / (many - few) if many > few else 0.0
    if slope <= 0 or short - slope * few < 0:
        # Noise of the clock, or work that is cheaper at first: through the origin and the larger.
        return (0.0, long / many) if many else (long, 0.0)
    return short - slope * few, slope


class _Users(SplitAround):
    """The first users of a split, who have at least so many examples together."""

    def __init__(self, split: FederatedSplit, examples: int) -> None:
        super().__init__(split)
        users = int(np.searchsorted(split.offsets, examples))
        self.num_users = max(1, min(users, split.num_users))
        self.offsets = split.offsets[: self.num_users + 1]
        self.num_examples = int(self.offsets[-1])

    def client_ids(self) -> Sequence[str]:
        return self._split.client_ids()[: self.num_users]


class _First(TaskAround):
    """A task, some of whose splits have their first users alone."""

    def __init__(self, task: Task, examples: int, *splits: str) -> None:
        super().__init__(task)
        self._task, self._examples, self._splits = task, examples, splits

    def split(self, name: str) -> FederatedSplit:
        """A split, or its first users."""
        split = self._task.split(name)
        return _Users(split, self._examples) if name in self._splits else split
