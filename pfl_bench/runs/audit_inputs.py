"""What an audit reads of a run's folder beside its ledger: checkpoint, metrics, central step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pfl_bench.client.machine import plugin_digests
from pfl_bench.client.optimizers import rate_factor
from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.federated.parts import build_algorithm
from pfl_bench.files import read_json, read_metrics
from pfl_bench.runs.checkpoint import load_latest
from pfl_bench.types import Algorithm
from privacy.audit.central_columns import CentralState, sketch_row
from privacy.audit.central_steps import CentralOptimizer
from privacy.audit.inputs import METRICS, Metrics, Saved, as_number
from privacy.central_record import central_state

METRICS_FILE = "metrics.jsonl"


def read_saved(folder: Path) -> tuple[Saved | None, int | None]:
    """Read the newest checkpoint.

    Args:
        folder: The run's folder.

    Returns:
        What an audit needs of it, and the private seed that it has; None where there is none.

    Raises:
        RunFolderError: It is damaged.
    """
    state = load_latest(folder / "checkpoints")
    if state is None:
        return None, None
    trainer = state["trainer"]
    # A federated trainer keeps these with all else of its private rounds.
    private = trainer.get("private") or trainer
    central = trainer.get("central")
    held = None
    if isinstance(central, torch.Tensor) and central.dtype == torch.float32 and central.numel():
        record = central_state(central)
        held = CentralState(record["sha256"], tuple(sketch_row(record, "the checkpoint")))
    saved = Saved(int(state["step"]), trainer.get("mechanism"), private.get("ledger"), held)
    return saved, private.get("seed")


def read_environment(folder: Path) -> dict[str, Any]:
    """What ``environment.json`` says; empty if there is none.

    Raises:
        RunFolderError: It is damaged.
    """
    return read_json(folder / "environment.json") or {}


def plugin_records(
    environment: Mapping[str, Any], resolved: ResolvedConfig
) -> dict[str, Mapping[str, str]]:
    """Digests of the user's plug-ins: as the run began with them, of today, and those used."""
    begun, today = environment.get("plugins"), plugin_digests()
    known = {"environment.json": begun} if isinstance(begun, Mapping) else {}
    used = {name: today.get(name, "none") for name in sorted(resolved.plugin_origins)}
    return {**known, "today": today, "config.yaml": used}


def read_metric_columns(folder: Path) -> Metrics | None:
    """The scalars of ``metrics.jsonl`` that an audit compares; None if there is no such file.

    Raises:
        RunFolderError: A line is damaged.
    """
    if not (folder / METRICS_FILE).is_file():
        return None
    rows = read_metrics(folder / METRICS_FILE)
    columns = {
        name: np.array([as_number(row.get(name)) for row in rows], dtype=np.float64)
        for name in METRICS
    }
    return Metrics(np.array([row["round"] for row in rows], dtype=np.int64), columns)


def central_optimizer(resolved: ResolvedConfig) -> CentralOptimizer | str:
    """The central step as configured; in words, why it is not taken anew."""
    options = resolved.config.federated
    if options is None:
        return "the steps of central training are of gradients that no ledger records"
    algorithm = build_algorithm(resolved, options)
    if type(algorithm).central_gradient is not Algorithm.central_gradient:
        name = resolved.tree["federated"]["algorithm"]["name"]
        return f"what the algorithm {name} makes of a release is not known to the audit"
    chosen, schedule = options.central_optimizer, options.central_schedule
    rounds = options.num_rounds
    factors = [rate_factor(schedule, number, rounds) for number in range(1, rounds + 1)]
    return CentralOptimizer(
        name=chosen.name,
        momentum=chosen.momentum,
        beta1=chosen.beta1,
        beta2=chosen.beta2,
        epsilon=chosen.epsilon,
        epsilon_hat=chosen.epsilon_hat,
        weight_decay=chosen.weight_decay,
        rates=options.central_learning_rate * np.array(factors),
    )


def missing_files(folder: Path, is_final: bool, is_federated: bool) -> dict[str, str]:
    """Files that a run's folder lacks, and what each would show.

    Args:
        folder: The run's folder.
        is_final: Whether the statement is of a run that has ended.
        is_federated: Whether the run is federated, whose seed the environment holds.
    """
    return dict(_missing(folder, is_final, is_federated))


def _missing(folder: Path, is_final: bool, is_federated: bool) -> Iterator[tuple[str, str]]:
    if not any((folder / "checkpoints").glob("step-*.pt")):
        yield (
            "checkpoints",
            (
                "whether the model that the run ended with follows from the recorded releases, and "
                "whether the ledger is the one that the model was saved beside"
            ),
        )
    if not (folder / METRICS_FILE).is_file():
        yield METRICS_FILE, "whether cohorts, bounds and noise of each round were really so"
    if is_federated and not (folder / "environment.json").is_file():
        yield "environment.json", "from which seed cohorts and noise were drawn"
    if is_final and not (folder / "summary.json").is_file():
        yield "summary.json", "which line of the ledger was the last, and which model was evaluated"
