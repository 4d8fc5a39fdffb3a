"""A run's privacy statement and its seed's parts, from configuration and data of today."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pfl_bench.client.flat_model import FlatModel
from pfl_bench.client.forward import Forward
from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.config.yaml_text import read_yaml
from pfl_bench.federated import private_seed
from pfl_bench.federated.parts import FederatedParts, RunParts
from pfl_bench.federated.privacy_session import make_federated_plan
from pfl_bench.federated.sampling import build_participants
from pfl_bench.simulation.devices.cohorts import digest_of
from pfl_bench.simulation.devices.devices import Devices
from pfl_bench.simulation.devices.sources import open_devices
from pfl_bench.trainers.central import make_central_plan
from pfl_bench.types import Task, UserInputError
from privacy.audit.inputs import Rebuilt, SeedRecord
from privacy.errors import PrivacyError
from privacy.statement.statement import PrivacyStatement, Status

Opened = tuple[Task, FlatModel]


def read_seed(
    folder: Path,
    resolved: ResolvedConfig,
    environment: Mapping[str, Any],
    saved: int | None,
    opened: Opened | str,
) -> SeedRecord:
    """Read a run's private seed from all places that have it, and its parts once more.

    ``saved`` is the newest checkpoint's; ``opened`` are data and model, or why they are not at
    hand.
    """
    recorded = environment.get("private_seed")
    recorded = recorded if isinstance(recorded, Mapping) else {}
    parts = recorded.get("parts")
    nonce = None if resolved.config.privacy is None else resolved.config.privacy.nonce
    values = {"environment.json": _number(recorded.get("value"))}
    if isinstance(parts, Mapping):
        values["its parts"] = private_seed.value_of(resolved.config.seed, nonce, parts)
    values["the checkpoint"] = saved
    engine = environment.get("engine")
    return SeedRecord(
        values={where: value for where, value in values.items() if value is not None},
        configured=resolved.config.seed,
        nonce=nonce,
        parts=parts if isinstance(parts, Mapping) else None,
        engine=str(engine.get("name") or "") if isinstance(engine, Mapping) else "",
        today=opened if isinstance(opened, str) else _parts_today(folder, resolved, *opened),
    )


def _number(value: Any) -> int | None:
    try:
        number = -1 if value is None else int(str(value), 16)
    except ValueError:
        return None
    return number if number >= 0 else None


def _parts_today(
    folder: Path, resolved: ResolvedConfig, task: Task, model: FlatModel
) -> Mapping[str, Any] | str:
    try:
        devices = _devices(resolved, task)
        # As it is written there: what this version fills in has not decided the run.
        written = replace(resolved, tree=read_yaml(folder / "config.yaml"))
        return private_seed.derive(
            written,
            task.facts.checksum,
            model.initial_digest,
            model.device,
            traces="" if devices is None else digest_of(devices),
        ).parts
    except (UserInputError, OSError, LookupError, TypeError, AttributeError) as error:
        return f"the parts of the seed cannot be computed anew ({error})"


def _devices(resolved: ResolvedConfig, task: Task) -> Devices | None:
    systems = resolved.config.systems
    if systems is None:
        return None
    return open_devices(systems.source, task.split("train").num_users)


def rebuild(
    folder: Path, resolved: ResolvedConfig, status: Status, opened: Opened | str
) -> Rebuilt | str:
    """State anew what a run guarantees, from its configuration and its data alone.

    Of ``folder`` nothing is read. Gives the statement, or why the configuration has none; in words,
    such as those of ``opened``, why that is not known.
    """
    if isinstance(opened, str):
        return opened
    try:
        if resolved.config.central is not None:
            stated = _central_statement(resolved, *opened, status)
        else:
            stated = _federated_statement(folder, resolved, *opened, status)
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
    devices = _devices(resolved, task)
    participants = build_participants(parts, devices, resolved.config.seed, folder)
    plan = make_federated_plan(parts, participants)
    return None if plan is None else plan.statement(plan.planned_rounds, status)
