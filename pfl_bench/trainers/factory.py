"""The trainer that a configuration asks for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pfl_bench.client import precision
from pfl_bench.client.flat_model import FlatModel
from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.trainers.base import Trainer
from pfl_bench.types import Task, WorkerGroup


def build_trainer(
    resolved: ResolvedConfig,
    task: Task,
    model: FlatModel,
    folder: Path,
    notice: Callable[[str], None],
    group: WorkerGroup,
) -> Trainer:
    """Build the trainer that the configuration's sections ask for."""
    slow = precision.slow_notice(resolved.config.precision, model.device)
    if slow is not None:
        notice(slow)
    if resolved.config.central is not None:
        from pfl_bench.trainers.central import CentralTrainer

        return CentralTrainer(resolved, task, model, folder, notice)
    if resolved.config.local is not None:
        from pfl_bench.trainers.local_only import LocalTrainer

        return LocalTrainer(resolved, task, model, folder, notice)
    if resolved.config.multitask is not None:
        from pfl_bench.trainers.mocha.trainer import MultitaskTrainer

        return MultitaskTrainer(resolved, task, model, folder, notice)
    from pfl_bench.federated.trainer import FederatedTrainer

    federated = resolved.tree["federated"]
    if federated["aggregation"]["name"] != "mean":
        notice(
            f"aggregation: {federated['aggregation']['name']} looks at each client's update, which "
            "nothing hides from the centre: this run has no privacy guarantee of any kind"
        )
    return FederatedTrainer(resolved, task, model, folder, notice, group)
