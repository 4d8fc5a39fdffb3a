"""How long a run would take on this machine, from two short measurements on its own data.

Training is measured twice, with little and with twice as much work, and so is evaluation. The time
of each is a line through its two points, read off at the size of the run. Federated training has
small cohorts for it; central training, a few batches of the data. Nothing is written, and a private
run's measurements have noise of their own, which is thrown away.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pfl_bench.client.costs import measure_step
from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.evaluation.evaluator import Evaluator
from pfl_bench.federated.autotune.settle import settle
from pfl_bench.federated.autotune.timing import expected_client_seconds
from pfl_bench.federated.parts import FederatedParts, RunParts, build_run
from pfl_bench.federated.shards import expected_work
from pfl_bench.runs.preparing import PreparedRun, prepare
from pfl_bench.runs.preview import changed
from pfl_bench.types import Examples, FederatedSplit, SingleProcess, Task, UserInputError
from privacy.errors import PrivacyError

# A measurement is to take about so long, where two clients (batches) do not take longer.
_SECONDS = 0.5
_FEWEST, _MOST = 2, 64
# The best of so many rounds counts, where they are short.
_REPEATS = 4
# A whole round is measured where smaller ones are refused, if it is not expected to take longer.
_LONGEST_ROUND = 20.0
_EVALUATED_BATCHES = 2
# Rounds until one has drawn a client; a cohort of two is empty one time in seven.
_TRIES = 12
# What tasks may have beside their splits, and the first examples of one then have too.
_OPTIONAL = (
    "transform",
    "column_names",
    "column_values",
    "read_column",
    "example_losses",
    "training_loss",
)


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


def estimate_time(resolved: ResolvedConfig) -> TimeEstimate | None:
    """Estimate how long a run would take; None where its steps are known as it goes alone.

    Args:
        resolved: The configuration.

    Raises:
        UserInputError: Configuration or data do not fit.
        privacy.errors.PrivacyError: Likewise, of the privacy claim.
    """
    if resolved.config.federated is not None:
        return _federated(resolved)
    return None if resolved.config.central is None else _central(resolved)


def _federated(resolved: ResolvedConfig) -> TimeEstimate:
    run = build_run(resolved)
    step = measure_step(run.forward, run.model, run.task.split("train"))
    with TemporaryDirectory() as folder:
        # An empty folder has recorded no engine.
        parts = settle(FederatedParts.of(run), step, Path(folder), None, lambda text: None)
    options, local = parts.options, parts.algorithm.local_training
    sizes = np.diff(parts.split.offsets)
    expected = expected_client_seconds(sizes, local, step)
    small = min(_MOST, max(_FEWEST, int(_SECONDS / expected)), max(1, options.cohort_size // 2))
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
    fixed, slope = _line(points)
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
        with _begun(parts.resolved, overrides) as prepared:
            points.append(_one_round(prepared))
            if cohort == cohorts[-1]:
                evaluation = _evaluation(prepared)
    return points, evaluation


def _one_round(prepared: PreparedRun) -> tuple[float, float]:
    """Examples and seconds of the fastest round for its clients, after one that warms up.

    What else the machine does makes rounds slower, and none faster.
    """
    rounds: list[tuple[float, float]] = []
    spent = 0.0
    for index in range(1, min(_TRIES, prepared.trainer.total) + 1):
        started = time.perf_counter()
        scalars = prepared.trainer.advance(index)
        seconds = time.perf_counter() - started
        spent += seconds
        examples = scalars["systems/examples"]
        if examples > 0 and (index > 1 or prepared.trainer.total == 1):
            rounds.append((examples, seconds))
        if len(rounds) == _REPEATS or (rounds and spent > _SECONDS):
            break
    return min(rounds, key=lambda one: one[1] / one[0], default=(0.0, seconds))


def _central(resolved: ResolvedConfig) -> TimeEstimate:
    options = resolved.config.central
    assert options is not None
    points, batch = [], options.batch_size
    for count in (_FEWEST, 2 * _FEWEST):
        run = build_run(resolved)
        whole = run.task.split("train").num_examples
        cut = replace(run, task=_FirstExamples(run.task, min(count * batch, whole), "train"))
        with _begun(resolved, [], cut) as prepared:
            seconds = 0.0
            for index in range(1, min(2, options.num_epochs) + 1):
                started = time.perf_counter()
                prepared.trainer.advance(index)
                seconds = time.perf_counter() - started
            points.append((float(cut.task.split("train").num_examples), seconds))
            evaluation = _evaluation(prepared)
    fixed, slope = _line(points)
    return TimeEstimate(
        options.num_epochs * (fixed + slope * whole),
        evaluation,
        1,
        f"epochs of {points[0][0]:.0f} and {points[1][0]:.0f} examples",
    )


@contextmanager
def _begun(
    resolved: ResolvedConfig, overrides: Sequence[str], parts: RunParts | None = None
) -> Iterator[PreparedRun]:
    """A run that has begun in a folder which goes with it.

    Its noise is not the run's, and needs no search.
    """
    texts = [*overrides, "expected=[]", "evaluation.select_best=null", "evaluation.budgets=[]"]
    if resolved.config.setting in ("private_federated", "central_dp"):
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


def _evaluation(prepared: PreparedRun) -> float:
    """Seconds of all evaluations of a run."""
    parts, total = prepared.parts, prepared.trainer.total
    options = parts.resolved.config.evaluation
    prepared.trainer.load_central()
    during = total // options.every + bool(total % options.every)
    seconds = 0.0
    for splits, times in ((options.splits, during), (options.final_splits, 1)):
        whole = sum(parts.task.split(name).num_examples for name in splits)
        if not whole:
            continue
        points = []
        for batches in (_EVALUATED_BATCHES, 2 * _EVALUATED_BATCHES):
            task = _FirstExamples(parts.task, batches * options.batch_size, *splits)
            evaluator = Evaluator(
                parts.resolved.config,
                task,
                parts.model,
                parts.forward,
                prepared.trainer.personal,
                beside=prepared.trainer.beside,
            )
            evaluator.evaluate(splits)
            started = time.perf_counter()
            evaluator.evaluate(splits)
            taken = time.perf_counter() - started
            points.append((float(sum(task.split(name).num_examples for name in splits)), taken))
        fixed, slope = _line(points)
        seconds += times * (fixed + slope * whole)
    return seconds


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Seconds at no work, and for each unit of it; both at least 0.

    Args:
        points: Work and seconds, of one measurement or two.
    """
    (few, short), (many, long) = points[0], points[-1]
    slope = (long - short) / (many - few) if many > few else 0.0
    if slope <= 0 or short - slope * few < 0:
        # Noise of the clock, or work that is cheaper at first: through the origin and the larger.
        return (0.0, long / many) if many else (long, 0.0)
    return short - slope * few, slope


class _FirstSplit:
    """The first users of a split, who have at least so many examples together."""

    def __init__(self, split: FederatedSplit, examples: int) -> None:
        users = int(np.searchsorted(split.offsets, examples))
        self.num_users = max(1, min(users, split.num_users))
        self.offsets: NDArray[np.int64] = split.offsets[: self.num_users + 1]
        self.num_examples = int(self.offsets[-1])
        self.name = split.name
        self._split = split

    def client_ids(self) -> Sequence[str]:
        return self._split.client_ids()[: self.num_users]

    def read_user(self, user: int, rng: np.random.Generator) -> Examples:
        return self._split.read_user(user, rng)

    def read_range(self, start: int, stop: int) -> Examples:
        return self._split.read_range(start, stop)

    def read_examples(self, indices: NDArray[np.int64], rng: np.random.Generator) -> Examples:
        return self._split.read_examples(indices, rng)


class _FirstExamples:
    """A task, some of whose splits have their first users alone."""

    def __init__(self, task: Task, examples: int, *splits: str) -> None:
        self._task, self._examples, self._splits = task, examples, splits
        self.facts = task.facts
        self.metrics = task.metrics
        self.split_names = task.split_names
        # In the instance, where a check of a Protocol finds them, and only if the task has them.
        for name in _OPTIONAL:
            if hasattr(task, name):
                setattr(self, name, getattr(task, name))

    def split(self, name: str) -> FederatedSplit:
        split = self._task.split(name)
        return _FirstSplit(split, self._examples) if name in self._splits else split

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self._task.loss(outputs, targets)
