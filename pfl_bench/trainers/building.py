"""The trainer that a configuration asks for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pfl_bench.client import precision
from pfl_bench.federated.aggregation import Aggregation
from pfl_bench.federated.parts import FederatedParts, RunParts
from pfl_bench.types import Trainer, WorkerGroup


def build_trainer(
    parts: RunParts, folder: Path, notice: Callable[[str], None], group: WorkerGroup
) -> Trainer:
    """Build the trainer that the configuration's sections ask for.

    Args:
        parts: What the run is made of; of a federated run its ``FederatedParts``.
        folder: The run's.
        notice: Called with what a person must know.
        group: The processes of a federated run.
    """
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
        return FederatedTrainer(parts, folder, notice, group)
    if config.central is not None:
        from pfl_bench.trainers.central import CentralTrainer

        return CentralTrainer(parts, folder, notice)
    if config.local is not None:
        from pfl_bench.trainers.local_only import LocalTrainer

        return LocalTrainer(parts, folder, notice)
    from pfl_bench.trainers.mocha.trainer import MultitaskTrainer

    return MultitaskTrainer(parts, folder, notice)
