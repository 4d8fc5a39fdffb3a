"""Steps before the first round: data, model and trainer are built and checked."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pfl_bench import plugins
from pfl_bench.client import precision
from pfl_bench.client.costs import StepFlops, measure_step, untouched
from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.config.sections import EvaluationOptions
from pfl_bench.evaluation.evaluator import Evaluator, families_of
from pfl_bench.evaluation.splits import initial_loss
from pfl_bench.federated.aggregation import Aggregation
from pfl_bench.federated.autotune import settle
from pfl_bench.federated.parts import FederatedParts, RunParts, build_run
from pfl_bench.federated.workers.start import start_workers
from pfl_bench.metrics import MetricDirections
from pfl_bench.runs.environment import environment
from pfl_bench.types import (
    ConfigError,
    DataError,
    DepartsFromRow,
    FederatedSplit,
    PluginError,
    Task,
    Trainer,
    UserInputError,
    WorkerGroup,
    is_out_of_memory,
)


@dataclass(frozen=True)
class PreparedRun:
    """A run whose parts are built, and of which no round has begun.

    Nothing is left to "auto" in the ``FederatedParts`` of a federated run; ``step`` has the FLOPs
    of a training step; ``departure`` is how the model departs from the row's, empty where it does
    not.
    """

    parts: RunParts
    trainer: Trainer
    evaluator: Evaluator
    group: WorkerGroup
    step: StepFlops
    directions: MetricDirections
    initial_loss: float
    departure: str

    def environment(self) -> dict[str, Any]:
        """Environment that the run would record, with its private seed if it has one."""
        return environment(self.parts, self.trainer, self.group.description)


def prepare(
    resolved: ResolvedConfig,
    folder: Path,
    group: WorkerGroup | None,
    stack: ExitStack,
    notice: Callable[[str], None],
    parts: RunParts | None = None,
) -> PreparedRun:
    """Build and check a run up to its first round; nothing is written into its folder.

    ``group`` and ``parts`` are built where they are None; ``stack`` closes trainer and processes.
    UserInputError if configuration or data do not fit, privacy.errors.PrivacyError if the privacy
    claim could not be made truthfully.
    """
    config = resolved.config
    parts = parts or build_run(resolved)
    _check_splits(config.evaluation, parts.task)
    module = parts.model.module
    departure = module.departure if isinstance(module, DepartsFromRow) else ""
    if departure:
        notice(f"model: {departure}")
    # Before the trainer is built, which may hook the model for gradients of single examples.
    train = parts.task.split("train")
    step = _first_step(parts, train)
    directions = MetricDirections.of(families_of(parts.task, config))
    with untouched(parts.model):
        start = initial_loss(parts.forward, train)
    if config.federated is not None:
        # From here on "auto" is resolved.
        processes = None if group is None else group.size
        parts = settle(FederatedParts.of(parts), step, folder, processes, notice)
    if group is None:
        group = start_workers(parts.resolved, parts.model.device)
        stack.callback(group.close)
    trainer = _build_trainer(parts, folder, notice, group)
    stack.callback(trainer.close)
    evaluator = Evaluator(
        config, parts.task, parts.model, parts.forward, trainer.personal, group, trainer.beside
    )
    return PreparedRun(parts, trainer, evaluator, group, step, directions, start, departure)


def _first_step(parts: RunParts, train: FederatedSplit) -> StepFlops:
    """Cost of a training step: the first, by which a user's task shows whether its parts fit."""
    if not train.num_examples:
        raise DataError("the split 'train' has no examples; give its users at least one")
    idle = np.flatnonzero(np.diff(train.offsets) == 0)
    if idle.size and parts.resolved.config.central is None:
        raise DataError(
            f"the split 'train': {idle.size} of {train.num_users} users have no examples to train "
            f"on, such as {train.client_ids()[int(idle[0])]!r}; leave such users out of it"
        )
    try:
        return measure_step(parts.forward, parts.model, train)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        name = parts.resolved.tree["task"]["name"]
        is_other = isinstance(error, UserInputError) or is_out_of_memory(error)
        if is_other or plugins.origin_of(plugins.TASK, name) is None:
            raise
        folder = str(Path(str(plugins.spec_of(plugins.MODEL, name).origin)).parent)
        frames = traceback.extract_tb(error.__traceback__)
        if any(frame.filename.startswith(folder) for frame in frames):
            raise
        one = train.read_range(0, 1)
        inputs, targets = (f"{tuple(x.shape[1:])}, {x.dtype}" for x in (one.inputs, one.targets))
        file = plugins.spec_of(plugins.TASK, name).origin
        raise PluginError(
            f"task '{name}' ({file}): its data, model and loss do not fit: {error}. An example "
            f"has inputs of shape {inputs}, and targets of shape {targets}; mend one of the three"
        ) from error


def _check_splits(options: EvaluationOptions, task: Task) -> None:
    for key in ("splits", "final_splits"):
        for name in getattr(options, key):
            if name not in task.split_names:
                raise ConfigError(
                    f"evaluation.{key}: the data have no split '{name}'; there are: "
                    f"{', '.join(task.split_names)}"
                )


def _build_trainer(
    parts: RunParts, folder: Path, notice: Callable[[str], None], group: WorkerGroup
) -> Trainer:
    """Build the trainer that the configuration's sections ask for."""
    config = parts.resolved.config
    slow = precision.slow_notice(config.precision, parts.model.device)
    if slow is not None:
        notice(slow)
    if isinstance(parts, FederatedParts):
        from pfl_bench.federated.trainer import FederatedTrainer

        if type(parts.aggregation) is not Aggregation:
            name = parts.resolved.tree["federated"]["aggregation"]["name"]
            notice(
                f"aggregation: {name} looks at each client's update, which "
                "nothing hides from the centre: this run has no privacy guarantee of any kind"
            )
        if config.privacy is not None:
            name = parts.resolved.tree["privacy"]["mechanism"]["name"]
            origin = plugins.origin_of(plugins.MECHANISM, name)
            if origin is not None:
                notice(
                    f"privacy: the mechanism {name} is of the plug-ins '{origin}': the epsilons "
                    "are those of what it says of itself, until `pfl-bench audit` has held that "
                    "against the run"
                )
        return FederatedTrainer(parts, folder, notice, group)
    if config.central is not None:
        from pfl_bench.trainers.central import CentralTrainer

        return CentralTrainer(parts, folder, notice)
    if config.local is not None:
        from pfl_bench.trainers.local_only import LocalTrainer

        return LocalTrainer(parts, folder, notice)
    from pfl_bench.trainers.mocha.trainer import MultitaskTrainer

    return MultitaskTrainer(parts, folder, notice)
