"""Runs with a bug planted, and their audits by the real code."""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pfl_bench.cli.main import explain
from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.federated.trainer import FederatedTrainer
from pfl_bench.runs.audit import audit_run
from pfl_bench.runs.auditing import seeds
from pfl_bench.runs.runner import run
from pfl_bench.types import UserInputError
from privacy import calibration
from privacy.accountant import compose_epsilon
from privacy.audit import checks_accounting, search
from privacy.audit.check import Check
from privacy.errors import PrivacyError
from tasks.digits import task
from tests.helpers import make_config
from tests.sabotage.planting import SMALL, Bug, Patch, nothing


@dataclass(frozen=True)
class Caught:
    """What came of a run.

    Attributes:
        refused: What the run was refused with; None if it ran.
        checks: Of the audit, by name; empty if it was refused.
    """

    refused: str | None
    checks: Mapping[str, Check]

    @property
    def failed(self) -> set[str]:
        """Names of the checks that failed."""
        return {name for name, check in self.checks.items() if check.outcome == "failed"}

    @property
    def incomplete(self) -> set[str]:
        """Names of the checks that could not be made because the folder lacks something."""
        return {name for name, check in self.checks.items() if check.outcome == "incomplete"}


def configured(changes: Mapping[str, Any]) -> ResolvedConfig:
    """The small run, with changes."""
    return make_config("private_federated", **{**SMALL, **changes})


def run_planted(bug: Bug, folder: Path) -> Caught:
    """Plant a bug, run, take it out again, and audit what the run has left.

    Args:
        bug: What to plant.
        folder: Of the run; need not exist.
    """
    with Patch.context() as around:
        bug.around(around)
        try:
            with Patch.context() as patch:
                bug.plant(patch)
                drive(bug, folder)
        except (UserInputError, PrivacyError) as error:
            message = explain(error)
            assert message is not None  # The command line ends with exit status 2.
            return Caught(message, {})
        bug.after(folder)
        return Caught(None, audited(folder))


def drive(bug: Bug, folder: Path) -> None:
    """Run as the bug asks for; the run of a bug that only edits its folder is shared."""
    config = configured(bug.changes)
    if bug.plant is nothing and bug.around is nothing and bug.after is not nothing:
        copy_finished(config, folder)
        return
    if bug.interrupt_after is None:
        run(config, folder)
        return
    interrupt(config, folder, bug.interrupt_after)
    bug.between(folder)
    run(config, folder, resume=True)


_finished: dict[str, Path] = {}


def finished(config: ResolvedConfig) -> Path:
    """The folder of a run that is shared; to be copied, not changed. Inside ``remembering``."""
    key = config.to_yaml()
    if key not in _finished:
        folder = Path(tempfile.mkdtemp(dir=_finished[""])) / "run"
        run(config, folder)
        _finished[key] = folder
    return _finished[key]


def copy_finished(config: ResolvedConfig, folder: Path) -> None:
    """Make a folder that is as if the configuration had been run in it."""
    shutil.copytree(finished(config), folder)


def interrupt(config: ResolvedConfig, folder: Path, after: int) -> None:
    """Run until so many rounds are recorded, and no further."""
    real = FederatedTrainer.advance

    def advance(self: FederatedTrainer, index: int) -> dict[str, float]:
        if index > after:
            raise KeyboardInterrupt
        return real(self, index)

    with Patch.context() as patch:
        patch.setattr(FederatedTrainer, "advance", advance)
        try:
            run(config, folder)
        except KeyboardInterrupt:
            return
    raise AssertionError(f"the run has ended before round {after + 1}")


def audited(folder: Path) -> dict[str, Check]:
    """Audit a run's folder with the real code; as one run, and not one of many that were tuned."""
    return {check.name: check for check in audit_run(folder, 1).checks}


@contextmanager
def remembering() -> Iterator[None]:
    """Remember runs that are shared, and epsilons and digits: pure functions of few arguments.

    Nor does anything wait for the disk: no bug here pulls the plug.
    """
    composed: dict[str, float] = {}

    def compose(parts: Any, delta: float, accountant: str, *rest: Any) -> float:
        key = repr((list(parts), delta, accountant, rest))
        if key not in composed:
            composed[key] = compose_epsilon(parts, delta, accountant, *rest)
        return composed[key]

    with Patch.context() as patch, tempfile.TemporaryDirectory() as place:
        patch.setitem(_finished, "", Path(place))
        for module in (calibration, checks_accounting, search):
            patch.setattr(module, "compose_epsilon", compose)
        # No bug here edits a file of the code; test_audit_of_shared_bugs has those of its digest.
        patch.setattr(seeds, "covers_all_code", functools.cache(seeds.covers_all_code))
        patch.setattr(os, "fsync", lambda descriptor: None)
        build: Callable[..., Any] = functools.cache(task.build)
        patch.setattr(task, "build", build)
        try:
            yield
        finally:
            _finished.clear()
