"""Short measurements of a run on its own data, from which its time is estimated.

Nothing is written, and a private run's measurements have noise of their own, which is thrown away.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.evaluation.evaluator import Evaluator
from pfl_bench.federated.parts import RunParts
from pfl_bench.runs.preparing import PreparedRun, prepare
from pfl_bench.runs.preview import changed
from pfl_bench.types import Examples, FederatedSplit, SingleProcess, Task

# A measurement is to take about so long, where two clients (batches) do not take longer.
SECONDS = 0.5
FEWEST, MOST = 2, 64
# The best of so many rounds counts, where they are short.
_REPEATS = 4
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


@contextmanager
def begun(
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


def one_round(prepared: PreparedRun) -> tuple[float, float]:
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
        # A step of Mocha takes one example.
        examples = scalars.get("systems/examples", scalars.get("train/num_steps", 0.0))
        if examples > 0 and (index > 1 or prepared.trainer.total == 1):
            rounds.append((examples, seconds))
        if len(rounds) == _REPEATS or (rounds and spent > SECONDS):
            break
    return min(rounds, key=lambda one: one[1] / one[0], default=(0.0, seconds))


def evaluation_seconds(prepared: PreparedRun) -> float:
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
            task = FirstExamples(parts.task, batches * options.batch_size, *splits)
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
        fixed, slope = line(points)
        seconds += times * (fixed + slope * whole)
    return seconds


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
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


class FirstExamples:
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
        """A split, or its first users."""
        split = self._task.split(name)
        return _FirstSplit(split, self._examples) if name in self._splits else split

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The task's."""
        return self._task.loss(outputs, targets)
