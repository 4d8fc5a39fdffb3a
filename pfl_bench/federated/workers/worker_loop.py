"""The loop of a worker process: build the same parts, then do what messages say."""

from __future__ import annotations

import sys
import traceback

import torch

from pfl_bench.client import machine
from pfl_bench.evaluation.evaluator import Evaluator
from pfl_bench.federated.cohort import CohortTraining, UpdateAggregator
from pfl_bench.federated.parts import (
    FederatedParts,
    build_engine,
    build_mechanism,
    build_run,
)
from pfl_bench.federated.privacy_session import make_observer
from pfl_bench.federated.workers.messages import Begin, Built, Train, bring
from pfl_bench.types import ConfigError, Evaluate, WorkerError, WorkerGroup
from privacy.mechanism import Mechanism, MovesBound


def follow(group: WorkerGroup) -> None:
    """Do what the lead's messages say, until the run has ended.

    What goes wrong here is raised by the lead, which is told.
    """
    worker: _Follower | None = None
    buffer: torch.Tensor | None = None
    while True:
        try:
            message, vector = group.broadcast(None, buffer)
        except (EOFError, OSError):
            # The lead has let go of its worker, or has died.
            return
        if message is None:
            return
        try:
            if isinstance(message, Begin):
                worker = _Follower(message, group)
                buffer = torch.empty_like(worker.model.vector)
            elif worker is not None and isinstance(message, Train):
                worker.train(message, vector)
            elif worker is not None and isinstance(message, Evaluate):
                worker.evaluate(message, vector)
        except WorkerError:
            raise
        except Exception as error:
            try:
                group.fail(error)
            except (OSError, WorkerError):
                # The lead has gone: of what it refused itself, or that was all that was wrong.
                return
            if not isinstance(error, ValueError):
                traceback.print_exc(file=sys.stderr)
            return


class _Follower:
    def __init__(self, begin: Begin, group: WorkerGroup) -> None:
        resolved = begin.resolved
        self._group = group
        run = build_run(resolved)
        self.model = run.model
        if run.task.facts.checksum != begin.data_checksum:
            raise ConfigError(
                f"{run.task.facts.source}: rank {group.rank} reads other data than rank 0; give "
                "all processes the same file"
            )
        if self.model.initial_digest != begin.model_digest:
            raise ConfigError(
                f"model: rank {group.rank} begins with other weights than rank 0; give all "
                "processes the same files and the same versions of torch"
            )
        parts = FederatedParts.of(run)
        self._is_built = False
        engine = build_engine(parts, self._say)
        observer = None
        self._mechanism: Mechanism = parts.aggregation
        if begin.noise is not None:
            name = resolved.tree["privacy"]["mechanism"]["name"]
            self._mechanism = build_mechanism(name, resolved.mechanism_options, begin.noise)
            observer = make_observer(self._mechanism, begin.noise, self.model.num_parameters)
        aggregator = UpdateAggregator(self._mechanism, begin.seed, observer)
        self._training = CohortTraining(parts, engine, aggregator, is_alone=False)
        self._evaluator = Evaluator(resolved.config, run.task, run.model, run.forward, None)
        self._is_built = True
        identity = None if begin.noise is None else machine.identity(self.model.device)
        group.send(Built(engine.description, identity))

    def _say(self, text: str) -> None:
        """Give notice of what happens while training; of what was built, the lead does."""
        if self._is_built:
            print(f"rank {self._group.rank}: {text}", file=sys.stderr, flush=True)

    def train(self, message: Train, central: torch.Tensor | None) -> None:
        assert central is not None
        if isinstance(self._mechanism, MovesBound) and message.clip_norm is not None:
            self._mechanism.follow(message.clip_norm)
        if self._mechanism.clip_norm != message.clip_norm:
            raise RuntimeError(
                f"the mechanism {self._mechanism.name} clips to {self._mechanism.clip_norm} on "
                f"rank {self._group.rank} and to {message.clip_norm} on rank 0: one whose "
                "bound moves needs follow()"
            )
        results = message.train(self._training, self._group.rank, self._group.size, central)
        bring(self._group, self._training.tree, results)

    def evaluate(self, message: Evaluate, vector: torch.Tensor | None) -> None:
        assert vector is not None
        self.model.vector.copy_(vector)
        parts = self._evaluator.measure(message.splits, self._group.rank, self._group.size)
        self._group.send([measured for measured, _ in parts])
