"""Data and model of a run, its seed's parts and its privacy statement, as they are made today."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from pfl_bench.client.flat_model import FlatModel, batchnorm_layers
from pfl_bench.client.forward import Forward
from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.config.yaml_text import read_yaml
from pfl_bench.federated import private_seed
from pfl_bench.federated.parts import FederatedParts, RunParts, build_model, build_task
from pfl_bench.federated.privacy_session import make_federated_plan
from pfl_bench.federated.sampling import build_participants
from pfl_bench.runs.audit_inputs import read_environment
from pfl_bench.simulation.devices.cohorts import digest_of, open_devices
from pfl_bench.simulation.devices.devices import Devices
from pfl_bench.trainers.central import make_central_plan
from pfl_bench.types import Task, UserInputError
from privacy.audit.inputs import DataAtHand, Rebuilt, SeedRecord
from privacy.errors import PrivacyError
from privacy.plan.plan import tensor_digest
from privacy.statement.statement import PrivacyStatement, Status


@dataclass(frozen=True)
class OpenedRun:
    """A run's folder, and its data and model as they are built today, on the CPU.

    Attributes:
        environment: Content of ``environment.json``.
        data: Facts of data and model.
        opened: Data and model; in words, why they cannot be opened.
    """

    folder: Path
    resolved: ResolvedConfig
    environment: Mapping[str, Any]
    data: DataAtHand
    opened: tuple[Task, FlatModel] | str

    def recorded(self, *path: str) -> Any:
        """A member of a member ... of the environment; None if it has not got it."""
        part: Any = self.environment
        for key in path:
            part = part.get(key) if isinstance(part, Mapping) else None
        return part

    @property
    def is_known_model(self) -> bool:
        """Whether the model is built with the parameters that the run began with."""
        begun = self.recorded("model", "initial_digest")
        return not isinstance(self.opened, str) and begun == self.opened[1].initial_digest


def open_run(folder: Path, resolved: ResolvedConfig) -> OpenedRun:
    """Open data and model of a run; RunFolderError if ``environment.json`` is damaged."""
    environment, device = read_environment(folder), torch.device("cpu")
    try:
        task = build_task(resolved, device)
        split = task.split("train")
    except (UserInputError, OSError) as error:
        why = f"the data cannot be opened ({error}); --data names the file"
        return OpenedRun(folder, resolved, environment, DataAtHand(why_absent=why), why)
    units = split.num_users if resolved.config.central is None else split.num_examples
    data = DataAtHand(units, task.facts.checksum)
    try:
        model = build_model(resolved, task, device)
    except (UserInputError, OSError, ValueError) as error:
        why = f"the model cannot be built ({error})"
        return OpenedRun(folder, resolved, environment, replace(data, why_absent=why), why)
    layers = batchnorm_layers(model.module)
    data = replace(data, num_parameters=model.num_parameters, batchnorm_layers=layers)
    run = OpenedRun(folder, resolved, environment, data, (task, model))
    # A model that is drawn otherwise by this machine or this version is not the run's.
    digest = tensor_digest(model.vector) if run.is_known_model else None
    return replace(run, data=replace(data, initial_sha256=digest))


def read_seed(run: OpenedRun, saved: int | None) -> SeedRecord:
    """Read a run's private seed from all places that have it, and its parts once more.

    ``saved`` is the newest checkpoint's.
    """
    resolved, parts = run.resolved, run.recorded("private_seed", "parts")
    nonce = None if resolved.config.privacy is None else resolved.config.privacy.nonce
    values = {"environment.json": _number(run.recorded("private_seed", "value"))}
    if isinstance(parts, Mapping):
        values["its parts"] = private_seed.value_of(resolved.config.seed, nonce, parts)
    values["the checkpoint"] = saved
    return SeedRecord(
        values={where: value for where, value in values.items() if value is not None},
        configured=resolved.config.seed,
        nonce=nonce,
        parts=parts if isinstance(parts, Mapping) else None,
        engine=str(run.recorded("engine", "name") or ""),
        today=run.opened if isinstance(run.opened, str) else _parts_today(run, *run.opened),
    )


def _number(value: Any) -> int | None:
    try:
        number = -1 if value is None else int(str(value), 16)
    except ValueError:
        return None
    return number if number >= 0 else None


def _parts_today(run: OpenedRun, task: Task, model: FlatModel) -> Mapping[str, Any] | str:
    try:
        devices = devices_of(run.resolved, task)
        # As it is written there: what this version fills in has not decided the run.
        written = replace(run.resolved, tree=read_yaml(run.folder / "config.yaml"))
        return private_seed.derive(
            written,
            task.facts.checksum,
            model.initial_digest,
            model.device,
            traces="" if devices is None else digest_of(devices),
        ).parts
    except (UserInputError, OSError, LookupError, TypeError, AttributeError) as error:
        return f"the parts of the seed cannot be computed anew ({error})"


def devices_of(resolved: ResolvedConfig, task: Task) -> Devices | None:
    """Open the devices that a run simulates, if it does; UserInputError if they are not sound."""
    if resolved.config.systems is None:
        return None
    return open_devices(resolved, task.split("train").num_users)


def rebuild(run: OpenedRun, status: Status) -> Rebuilt | str:
    """State anew what a run guarantees, from its configuration and its data alone.

    Of its folder nothing is read. Gives the statement, or why the configuration has none; in words,
    such as those of ``opened``, why that is not known.
    """
    if isinstance(run.opened, str):
        return run.opened
    try:
        if run.resolved.config.central is not None:
            stated = _central_statement(run.resolved, *run.opened, status)
        else:
            stated = _federated_statement(run.folder, run.resolved, *run.opened, status)
    except (UserInputError, PrivacyError) as error:
        return Rebuilt(None, f"the configuration cannot be run: {error}")
    except OSError as error:
        return f"the statement cannot be computed anew ({error})"
    if stated is None:
        return Rebuilt(None, "the configuration claims no privacy")
    return Rebuilt(stated.to_json_dict(), "")


def _central_statement(
    resolved: ResolvedConfig, task: Task, model: FlatModel, status: Status
) -> PrivacyStatement | None:
    plan = make_central_plan(resolved, task.split("train"), model)
    assert resolved.config.central is not None
    if plan is None:
        return None
    steps, epochs = plan.request.steps, resolved.config.central.num_epochs
    steps = steps if plan.max_steps is None else min(steps, plan.max_steps)
    if status == "final":
        # An epoch that the budget does not allow is not begun.
        steps -= steps % (plan.request.steps // epochs)
    return plan.statement(steps, status)


def _federated_statement(
    folder: Path, resolved: ResolvedConfig, task: Task, model: FlatModel, status: Status
) -> PrivacyStatement | None:
    # Nothing is computed by it: any machine has this one.
    forward = Forward(model.module, task, model.device)
    parts = FederatedParts.of(RunParts(resolved, task, model, forward))
    devices = devices_of(resolved, task)
    participants = build_participants(parts, devices, resolved.config.seed, folder)
    plan = make_federated_plan(parts, participants)
    return None if plan is None else plan.statement(plan.planned_rounds, status)
