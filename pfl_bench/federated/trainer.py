"""The federated trainer: the state of a run, private or not, that ``run_round`` moves on.

Privacy is a mechanism that rounds are given; "none" is one of them. With several processes
(``pfl_bench.federated.workers``) each trains some of the clients; the leading process does all the
rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pfl_bench.client import machine
from pfl_bench.client.optimizers import build_optimizer, optimizer_form, rate_factor, set_rate
from pfl_bench.federated import private_seed
from pfl_bench.federated.central_gradient import write_gradient
from pfl_bench.federated.cohort import CohortTraining
from pfl_bench.federated.notices import RoundNotices
from pfl_bench.federated.parts import FederatedParts, build_engine
from pfl_bench.federated.privacy_session import (
    PrivateRounds,
    PublicRounds,
    check_private_users,
    make_federated_plan,
)
from pfl_bench.federated.round import RoundParts, run_round
from pfl_bench.federated.sampling import build_participants
from pfl_bench.federated.shards import expected_work, num_shards
from pfl_bench.federated.state_watch import StateWatch
from pfl_bench.federated.workers.messages import Begin, Built, SharedTraining, await_workers
from pfl_bench.types import (
    ConfigError,
    Engine,
    ExpectedWork,
    OwnModels,
    Participants,
    SingleProcess,
    Stateful,
    Trainer,
    WorkerGroup,
    is_of_user,
)
from privacy.mechanism import Mechanism
from privacy.mechanisms.buffered_toeplitz import MOST_BUFFERS
from privacy.plan.plan import PrivacyPlan
from privacy.statement.statement import PrivacyStatement


class FederatedTrainer(Trainer):
    """Trains a model over rounds; the runner drives it.

    The model's initial values are the start, and its memory the clients' working copy. This process
    leads those of the ``group``. A private run keeps its ledger in the ``folder``. ``notice`` is
    called with what a person must know.

    Attributes:
        central: Shape (P,): the central parameters.
        plan: What the run claims; None for a run that is not private.
    """

    def __init__(
        self,
        parts: FederatedParts,
        folder: Path,
        notice: Callable[[str], None],
        group: WorkerGroup | None = None,
    ) -> None:
        resolved, options, model = parts.resolved, parts.options, parts.model
        group = group or SingleProcess()
        self._parts, self._options, self._algorithm = parts, options, parts.algorithm
        self.total = self.last = options.num_rounds
        engine = build_engine(parts, notice)
        self.engine, shards = _shards_of(engine, group, options.cohort_size)
        devices, traces = None, ""
        if resolved.config.systems is not None:
            from pfl_bench.simulation.devices.cohorts import digest_of, open_devices

            devices = open_devices(resolved, parts.split.num_users)
            traces = digest_of(devices)
            notice(f"systems: devices are {devices.source}")
        self._cohort_seed = resolved.config.seed
        if resolved.config.setting == "private_federated":
            check_private_users(parts)
            checksum, sums = parts.task.facts.checksum, f"{self.engine}, {shards} shards"
            self.private_seed = private_seed.derive(
                resolved, checksum, model.initial_digest, model.device, sums, traces
            )
            self._cohort_seed = self.private_seed.value
        self._participants = build_participants(parts, devices, self._cohort_seed, folder)
        self._changing = parts.changing(self._participants)
        self.central = model.vector.clone()
        self._own_models: OwnModels | None = None
        if self._algorithm.personal_training is not None:
            from pfl_bench.federated.personal import KeptModels

            self._own_models = KeptModels(parts, notice)
        self.plan = make_federated_plan(parts, self._participants)
        self._rounds = PublicRounds(parts.aggregation, self._cohort_seed)
        if self.plan is not None:
            self.accountant = self.plan.request.accountant
            self.last = self.plan.planned_rounds
            self._rounds = PrivateRounds(
                self.plan, resolved, self._cohort_seed, self.central, folder / "ledger.jsonl"
            )
        self._mechanism = self._rounds.mechanism
        self._watch = StateWatch(self._plugins())
        own = CohortTraining(parts, engine, self._rounds.aggregator, group.size == 1)
        if group.size > 1:
            self._start_workers(group)
        identity = None if self.plan is None else machine.identity(model.device)
        await_workers(group, Built(engine.description, identity))
        self._gradient = self.central.grad = torch.zeros_like(self.central)
        self._optimizer = build_optimizer(
            options.central_optimizer, [self.central], options.central_learning_rate
        )
        self._round = RoundParts(
            parts=parts,
            seed=self._cohort_seed,
            participants=self._participants,
            rounds=self._rounds,
            training=SharedTraining(group, own, parts, shards),
            watch=self._watch,
            notices=RoundNotices(notice, parts.split.client_ids),
            central=self.central,
        )

    def _plugins(self) -> dict[str, Stateful]:
        """The run's plug-ins that may change from round to round, by what messages call them."""
        parts = self._parts
        plugins: dict[str, Stateful] = {parts.name_of("algorithm"): self._algorithm}
        for key, transform in parts.transforms.items():
            suffix = ", its transform" if key == "algorithm" else ""
            plugins[parts.name_of(key) + suffix] = transform
        if self.plan is None:
            plugins[parts.name_of("aggregation")] = parts.aggregation
        if self._participants.selector is not None:
            plugins[parts.name_of("selection")] = self._participants.selector
        return plugins

    def _start_workers(self, group: WorkerGroup) -> None:
        keeping = self._parts.needs_one_process
        if "task" in keeping:
            raise ConfigError(
                f"federated: {group.description} cannot share data and model of an in-memory task, "
                "which this process alone has; set federated.workers: 1, or write the task as a "
                "plug-in (pfl-bench new task)"
            )
        if keeping:
            raise ConfigError(
                f"federated: {group.description} cannot share what {' and '.join(keeping)} keeps "
                "of clients; set federated.workers: 1"
            )
        noise = None if self.plan is None else self.plan.noise
        digest, checksum = self._parts.model.initial_digest, self._parts.task.facts.checksum
        group.broadcast(Begin(self._parts.resolved, noise, self._cohort_seed, digest, checksum))

    def advance(self, index: int) -> dict[str, float]:
        """Run round ``index``, from 1, and give its scalars; past the budget nothing is drawn."""
        return run_round(self._round, index, self._take_central_step)

    def _take_central_step(self, mean_update: Tensor, index: int) -> float:
        factor = rate_factor(self._options.central_schedule, index, self.total)
        rate = self._options.central_learning_rate * factor
        set_rate(self._optimizer, rate)
        write_gradient(self._algorithm, mean_update.to(self.central.device), self._gradient)
        self._optimizer.step()
        return rate

    def expected_work(self) -> ExpectedWork:
        """Of rounds within the budget, with whole cohorts of mean clients."""
        parts, cohort_size = self._parts, self._options.cohort_size
        each = expected_work(np.diff(parts.split.offsets), parts.algorithm.local_training)
        clients = float(self.last * cohort_size)
        steps, examples = (clients * float(work.mean()) for work in each)
        down, up = clients * parts.download_bytes, clients * parts.upload_bytes
        return ExpectedWork(cohort_size, clients, steps, examples, None, down, up)

    def close(self) -> None:
        """Close the ledger."""
        self._rounds.close()

    @property
    def beside(self) -> OwnModels | None:
        """The models that clients keep, if the algorithm has them."""
        return self._own_models

    def load_central(self) -> None:
        """Put the central parameters into the model, for evaluation."""
        self._parts.model.vector.copy_(self.central)

    def claim(self, done: int | None) -> PrivacyStatement | None:
        """The privacy statement after ``done`` rounds (None: as planned)."""
        if self.plan is None:
            return None
        if done is None:
            return self.plan.statement(self.plan.planned_rounds, "planned")
        return self.plan.statement(done)

    def begin(self, done: int) -> None:
        """Open the run's files; check that what goes on is what a private run's ledger recorded."""
        self._participants.begin(done)
        self._rounds.begin(done)
        self._watch.begin()

    def ledger_digest(self, done: int) -> str | None:
        """SHA-256 of the ledger's line of round ``done``; None without privacy."""
        return self._rounds.ledger_digest(done)

    def canary_result(self, done: int) -> dict[str, Any] | None:
        """Result of the canaries of an audited run; None without canaries."""
        return self._rounds.canary_result(done)

    def state_dict(self) -> dict[str, Any]:
        """All that changes from round to round."""
        return {
            "central": self.central,
            "optimizer": self._optimizer.state_dict(),
            "mechanism": self._mechanism.state_dict(),
            "private": self._rounds.state_dict(),
            "clients": {key: part.state_dict() for key, part in self._changing.items()},
        }

    def state_form(self) -> dict[str, Any]:
        """Form that a saved state must have; plug-ins may keep another kind of value each round."""
        forms: dict[str, Any] = {"clients": dict.fromkeys(self._changing)}
        if self.plan is None:
            forms["mechanism"] = None
        return self.state_dict() | forms

    @staticmethod
    def saved_form(
        parts: FederatedParts, participants: Participants, plan: PrivacyPlan
    ) -> dict[str, Any]:
        """Form of what ``state_dict`` gives of a private run, by its parts as it begins.

        None stands for anything: what a user's plug-in keeps is its own.
        """
        vector = parts.model.vector
        # At most; a mechanism knows how many it keeps.
        noise = [vector] * max(MOST_BUFFERS, parts.options.num_rounds)
        private = PrivateRounds(plan, parts.resolved, 0, vector, Path()).state_dict()
        clients = {key: _state_form(part) for key, part in parts.changing(participants).items()}
        if participants.selector is not None:
            clients["participants"]["selection"] = _state_form(participants.selector)
        return {
            "central": vector,
            "optimizer": optimizer_form(parts.options.central_optimizer, [vector]),
            "mechanism": _state_form(plan.mechanism, noise),
            "private": {**private, "ledger": "", "canaries": private["canaries"] or {}},
            "clients": clients,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` gave."""
        self.central.copy_(state["central"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._mechanism.load_state_dict(state["mechanism"])
        for key, part in self._changing.items():
            part.load_state_dict(state["clients"][key])
        self._rounds.load_state_dict(state["private"])


def _state_form(part: Stateful | Participants | Mechanism, growing: Sequence[Any] = ()) -> Any:
    if is_of_user(type(part)):
        return None
    state = part.state_dict()
    return {key: [*growing] if value == [] else value for key, value in state.items()}


def _shards_of(engine: Engine, group: WorkerGroup, cohort_size: int) -> tuple[str, int]:
    """Description of what decides the rounding of results, and the number of shards."""
    if engine.trains_alone:
        return engine.description, num_shards(cohort_size)
    # Who trains beside whom decides the last bits of updates, and of their sum.
    processes = f", {group.description}" if group.size > 1 else ""
    return engine.description + processes, group.size
