"""Preview of a run without running it: its rounds, claim and cost; nothing is written."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from pfl_bench.config.loading import ResolvedConfig, resolve
from pfl_bench.config.yaml_text import with_overrides
from pfl_bench.runs.folder import RunFolder
from pfl_bench.runs.preparing import PreparedRun, prepare
from pfl_bench.types import RunFolderError
from privacy.statement.statement import PrivacyStatement

# Bytes of a unit of ``ru_maxrss``.
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024


@dataclass(frozen=True)
class Cost:
    """Expected cost of training, by its configuration and the sizes of its clients.

    Attributes:
        unit: "round" or "epoch".
        steps: Number of them, within the budget.
        clients: Expected clients of a round; None where training is not federated.
        local_steps: Mean optimizer steps of a client in a round (central training: of an epoch);
            of local models at all rates together; of multi-task training, dual coordinate steps.
        flops: Of the whole training.
        bytes_down: That clients receive in the whole training; None where nothing is sent.
        bytes_up: That they send.
    """

    unit: str
    steps: int
    clients: int | None
    local_steps: float
    flops: float
    bytes_down: float | None
    bytes_up: float | None


@dataclass(frozen=True)
class Preview:
    """A run that was built up to its first round, and taken down again.

    Attributes:
        num_parameters: Trainable ones.
        data: What the data are, in a line.
        num_users: Users of each split.
        statement: The privacy statement as planned; None for a run that claims nothing.
        notices: What a person must know.
        peak_bytes: Most memory that this process has had so far.
        split_by: Whether splits divide users ("user") or each user's examples ("example").
    """

    resolved: ResolvedConfig
    device: str
    num_parameters: int
    data: str
    num_users: dict[str, int]
    statement: PrivacyStatement | None
    cost: Cost
    notices: tuple[str, ...]
    peak_bytes: int
    split_by: str


def preview(resolved: ResolvedConfig, out: Path) -> Preview:
    """Build and check a run up to its first round, and take it down again.

    Engine and processes that the configuration leaves to "auto" are measured as a run begins, and
    are not here. The folder ``out`` is not made, and nothing in it is changed; an unfinished run
    there must be one that this machine can go on with. UserInputError if configuration, data or
    folder do not fit; privacy.errors.PrivacyError if the privacy claim could not be made
    truthfully.
    """
    notices: list[str] = []
    with ExitStack() as stack:
        has_begun = (out / "environment.json").exists()
        # What has begun goes on by the engine and the processes that it has recorded.
        asked = resolved if has_begun else _named(resolved)
        prepared = prepare(asked, out, None, stack, notices.append)
        if has_begun:
            notices += _check_resumption(resolved, out, prepared)
        parts = prepared.parts
        facts, task = parts.task.facts, parts.task
        return Preview(
            resolved,
            str(parts.model.device),
            parts.model.num_parameters,
            f"{resolved.tree['task']['name']} ({facts.variant}): {facts.source}",
            {name: task.split(name).num_users for name in task.split_names},
            prepared.trainer.claim(None),
            expected_cost(prepared),
            tuple(notices),
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT,
            facts.split_by,
        )


def look_at_folder(resolved: ResolvedConfig, out: Path, resume: bool) -> str:
    """Say what a run, resumed or not, would do to a folder, which is neither made nor changed.

    RunFolderError if it holds something else, or cannot be made or written.
    """
    existing = next(path for path in (out, *out.parents) if os.path.lexists(path))
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        what = "is no folder" if not existing.is_dir() else "cannot be written"
        raise RunFolderError(
            f"{out}: this run folder cannot be made or written, because {existing} {what}; give "
            "another with --out"
        )
    if existing != out:
        return "new"
    if RunFolder(out).look(resolved, resume) is not None:
        return "holds this run finished: it would not be run again"
    return "would be resumed" if (out / "config.yaml").exists() else "is empty"


def changed(resolved: ResolvedConfig, overrides: Iterable[str]) -> ResolvedConfig:
    """A configuration with other settings, which is not the row any more; else ConfigError."""
    tree = with_overrides(resolved.tree, overrides)
    return replace(resolve(tree, resolved.source, ()), overrides=resolved.overrides)


def expected_cost(prepared: PreparedRun) -> Cost:
    """Expected cost of the training of a run."""
    trainer, step = prepared.trainer, prepared.step
    work, total = trainer.expected_work(), trainer.last
    computed = step.per_step * work.steps + step.per_example * work.examples
    return Cost(
        trainer.unit,
        total,
        None if work.clients is None else max(1, round(work.clients / total)),
        work.steps / (work.clients or total),
        computed if work.flops is None else work.flops,
        work.bytes_down,
        work.bytes_up,
    )


def _named(resolved: ResolvedConfig) -> ResolvedConfig:
    """The configuration with what a run would measure first named instead."""
    federated = resolved.config.federated
    if federated is None:
        return resolved
    overrides = []
    if federated.engine == "auto" and federated.engine_lanes is None:
        overrides.append("federated.engine=sequential")
    if federated.workers == "auto":
        overrides.append("federated.workers=1")
    return changed(resolved, overrides) if overrides else resolved


def _check_resumption(resolved: ResolvedConfig, out: Path, prepared: PreparedRun) -> list[str]:
    """Check that a run goes on under what it began with; gives what a person must know of it."""
    folder = RunFolder(out)
    if folder.look(resolved, resume=True) is not None:
        return []
    return folder.check_environment(prepared.environment())
