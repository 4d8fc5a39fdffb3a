"""A run's folder, opened for an audit: data, model and parts as they are made today."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from pfl_bench import plugins
from pfl_bench.client.flat_model import FlatModel
from pfl_bench.client.forward import Forward
from pfl_bench.client.model_checks import batchnorm_layers
from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.federated.parts import FederatedParts, RunParts, build_task
from pfl_bench.federated.privacy_session import make_federated_plan
from pfl_bench.federated.sampling import build_participants
from pfl_bench.files import read_json
from pfl_bench.rng import Purpose, seed_torch
from pfl_bench.simulation.devices.cohorts import open_devices
from pfl_bench.simulation.devices.devices import Devices
from pfl_bench.trainers.central import make_central_plan
from pfl_bench.types import Participants, ReadsAlike, Task, UserInputError
from privacy.audit.inputs import DataAtHand, Rebuilt
from privacy.errors import PrivacyError
from privacy.plan.plan import PrivacyPlan
from privacy.recording.central_record import central_state
from privacy.statement.statement import PrivacyStatement, Status

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class OpenedRun:
    """A run's folder, and its data and model as they are built today, on the CPU.

    Attributes:
        environment: Content of ``environment.json``; empty if there is none.
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
    def ran_on(self) -> str:
        """Kind of device that the run was on; "cpu" where nothing says it."""
        return str(self.recorded("private_seed", "parts", "arithmetic", "device") or "cpu")

    @property
    def other_reading(self) -> str:
        """Reason why examples are not read here as the run read them; empty if they are."""
        if self.ran_on == "cpu" or isinstance(self.opened, str):
            return ""
        task = self.opened[0]
        if isinstance(task, ReadsAlike) and not task.reads_alike:
            return (
                f"examples were decoded for another device ({self.ran_on}), which gives other "
                "pixels"
            )
        return ""

    @property
    def is_known_model(self) -> bool:
        """Whether the model is built with the parameters that the run began with.

        These are as the private seed has them: ``private_seed`` says so where they are others.
        """
        begun = self.recorded("private_seed", "parts", "initial_model")
        return not isinstance(self.opened, str) and begun == self.opened[1].initial_digest

    @functools.cached_property
    def devices(self) -> Devices | None:
        """The devices that the run simulates, if it does, of data that are open.

        UserInputError or OSError if they are not there, or not sound.
        """
        assert not isinstance(self.opened, str)
        if self.resolved.config.systems is None:
            return None
        return open_devices(self.resolved, self.opened[0].split("train").num_users)

    def parts(self) -> FederatedParts:
        """The parts of a federated run whose data are open, as it begins with them."""
        assert not isinstance(self.opened, str)
        task, model = self.opened
        # Nothing is computed by it: any machine has this one.
        forward = Forward(model.module, task, model.device)
        return FederatedParts.of(RunParts(self.resolved, task, model, forward))

    @functools.cached_property
    def federated(self) -> tuple[FederatedParts, Participants, PrivacyPlan | None]:
        """Parts, participants and plan of a federated run whose data are open, before any round.

        UserInputError, PrivacyError or OSError where the configuration cannot be run here.
        """
        parts = self.parts()
        seed = self.resolved.config.seed
        participants = build_participants(parts, self.devices, seed, self.folder)
        return parts, participants, make_federated_plan(parts, participants)


def open_run(folder: Path, resolved: ResolvedConfig) -> OpenedRun:
    """Open data and model of a run; RunFolderError if ``environment.json`` is damaged."""
    environment = read_json(folder / "environment.json") or {}
    try:
        task = build_task(resolved, _CPU)
        split = task.split("train")
    except (UserInputError, OSError) as error:
        is_held = resolved.tree["task"]["name"] == "in_memory"
        mend = "" if is_held else "; --data names the file, where it has moved"
        why = f"the data cannot be opened ({error}){mend}"
        return OpenedRun(folder, resolved, environment, DataAtHand(why_absent=why), why)
    units = split.num_users if resolved.config.central is None else split.num_examples
    data = DataAtHand(units, task.facts.checksum)
    try:
        model = initial_model(resolved, task)
    except (UserInputError, OSError, ValueError) as error:
        why = f"the model cannot be built ({error})"
        return OpenedRun(folder, resolved, environment, replace(data, why_absent=why), why)
    layers = batchnorm_layers(model.module)
    data = replace(data, num_parameters=model.num_parameters, batchnorm_layers=layers)
    run = OpenedRun(folder, resolved, environment, data, (task, model))
    # A model that is drawn otherwise by this machine or this version is not the run's.
    initial = central_state(model.vector) if run.is_known_model else None
    return replace(run, data=replace(data, initial=initial))


def initial_model(resolved: ResolvedConfig, task: Task) -> FlatModel:
    """The model that a run should begin with, built anew on the CPU.

    The run's own ``build_model`` is given the whole task. This is not it, and has the facts alone.
    """
    seed_torch(resolved.config.seed, Purpose.MODEL_INIT, _CPU)
    name, facts = resolved.tree["task"]["name"], task.facts
    module = plugins.build(plugins.MODEL, name, resolved.model_options, facts)
    return FlatModel(module, _CPU, resolved.config.channels_last)


def rebuild(run: OpenedRun, status: Status) -> Rebuilt:
    """State anew what a run guarantees, from its configuration and its data alone.

    Of its folder nothing is read.
    """
    if isinstance(run.opened, str):
        return Rebuilt(unknown=run.opened)
    try:
        return Rebuilt(_stated(run, *run.opened, status).to_json_dict())
    except (UserInputError, PrivacyError) as error:
        return Rebuilt(refused=f"the configuration cannot be run: {error}")
    except OSError as error:
        return Rebuilt(unknown=f"the statement cannot be computed anew ({error})")


def _stated(run: OpenedRun, task: Task, model: FlatModel, status: Status) -> PrivacyStatement:
    config = run.resolved.config
    if config.central is None:
        plan = run.federated[2]
        assert plan is not None
        return plan.statement(plan.planned_rounds, status)
    of_examples = make_central_plan(run.resolved, task.split("train"), model)
    assert of_examples is not None
    steps = planned = of_examples.request.steps
    if of_examples.max_steps is not None:
        steps = min(steps, of_examples.max_steps)
    if status == "final":
        # An epoch that the budget does not allow is not begun.
        steps -= steps % (planned // config.central.num_epochs)
    return of_examples.statement(steps, status)
