"""What every process of a run but the lead does: build the same things, then follow orders."""

from __future__ import annotations

import sys
import traceback

import torch

from pfl_bench.client import machine
from pfl_bench.evaluation.evaluator import Evaluator
from pfl_bench.federated.cohort import CohortTraining, Intake
from pfl_bench.federated.parts import (
    build_aggregation,
    build_algorithm,
    build_engine,
    build_forward,
    build_mechanism,
    build_model,
    build_stages,
    build_task,
    resolve_device,
    set_threads,
)
from pfl_bench.federated.privacy_session import make_observer
from pfl_bench.federated.workers.messages import Begin, Built, Train, bring
from pfl_bench.types import ConfigError, Crew, CrewError, Evaluate
from privacy.mechanism import MovesBound


def follow(crew: Crew) -> None:
    """Follow the lead's orders until the run has ended.

    What goes wrong here is raised by the lead, which is told.
    """
    follower: _Follower | None = None
    buffer: torch.Tensor | None = None
    while True:
        try:
            order, vector = crew.share(None, buffer)
        except (EOFError, OSError):
            # The lead has let go of its worker, or has died.
            return
        if order is None:
            return
        try:
            if isinstance(order, Begin):
                follower = _Follower(order, crew)
                buffer = torch.empty_like(follower.model.vector)
            elif follower is not None and isinstance(order, Train):
                follower.train(order, vector)
            elif follower is not None and isinstance(order, Evaluate):
                follower.evaluate(order, vector)
        except CrewError:
            raise
        except Exception as error:
            try:
                crew.fail(error)
            except OSError:
                # The lead has gone, which may be all that was wrong.
                return
            if not isinstance(error, ValueError):
                traceback.print_exc(file=sys.stderr)
            return


class _Follower:
    def __init__(self, begin: Begin, crew: Crew) -> None:
        resolved = begin.resolved
        options = resolved.config.federated
        assert options is not None  # the lead orders nothing else
        self._crew = crew
        set_threads(resolved.config)
        device = resolve_device(resolved.config.device)
        task = build_task(resolved, device)
        self.model = build_model(resolved, task, device)
        if task.facts.checksum != begin.data_checksum:
            raise ConfigError(
                f"{task.facts.source}: rank {crew.rank} reads other data than rank 0; give all "
                "processes the same file"
            )
        if self.model.initial_digest != begin.model_digest:
            raise ConfigError(
                f"model: rank {crew.rank} begins with other weights than rank 0; give all "
                "processes the same files and the same versions of torch"
            )
        algorithm = build_algorithm(resolved, options)
        self._is_built = False
        engine = build_engine(resolved, options, task, self.model, algorithm, self._say)
        observer = None
        if begin.noise is None:
            mechanism = build_aggregation(resolved, options)
        else:
            name = resolved.tree["privacy"]["mechanism"]["name"]
            mechanism = build_mechanism(name, resolved.mechanism_options, begin.noise)
            observer = make_observer(mechanism, begin.noise, self.model.num_parameters)
        self._mechanism = mechanism
        intake = Intake(mechanism, begin.seed, observer)
        stages = build_stages(resolved, algorithm, self.model)
        self._training = CohortTraining(self.model, engine, intake, options, stages)
        forward = build_forward(resolved, task, self.model)
        self._evaluator = Evaluator(resolved.config, task, self.model, forward, None)
        self._is_built = True
        identity = None if begin.noise is None else machine.identity(device)
        crew.bring(Built(engine.description, identity))

    def _say(self, text: str) -> None:
        """Give notice of what happens while training; of what was built, the lead does."""
        if self._is_built:
            print(f"rank {self._crew.rank}: {text}", file=sys.stderr, flush=True)

    def train(self, order: Train, central: torch.Tensor | None) -> None:
        assert central is not None
        if isinstance(self._mechanism, MovesBound) and order.clip_norm is not None:
            self._mechanism.follow(order.clip_norm)
        if self._mechanism.clip_norm != order.clip_norm:
            raise RuntimeError(
                f"the mechanism {self._mechanism.name} clips to {self._mechanism.clip_norm} on "
                f"rank {self._crew.rank} and to {order.clip_norm} on rank 0: one whose bound moves "
                "needs follow()"
            )
        results = order.train(self._training, self._crew.rank, self._crew.size, central)
        bring(self._crew, self._training.tree, results)

    def evaluate(self, order: Evaluate, vector: torch.Tensor | None) -> None:
        assert vector is not None
        self.model.vector.copy_(vector)
        parts = self._evaluator.measure(order.splits, self._crew.rank, self._crew.size)
        self._crew.bring([measured for measured, _ in parts])
