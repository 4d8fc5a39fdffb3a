"""The federated trainer: one loop for private and non-private federated learning.

Privacy is a mechanism in the loop's shard; "none" is one more mechanism. A round, in order: would
it exceed the budget, draw the cohort, train and clip client by client into a running sum, noise
the sum once, write the ledger, take the central step. With several processes
(``pfl_bench.federated.workers``) only the training is shared out: sums come back to the one that
does all the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from pfl_bench.client import machine
from pfl_bench.client.flat_model import FlatModel, batchnorm_layers
from pfl_bench.client.optimizers import build_optimizer, rate_factor, set_rate
from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.federated import private_seed
from pfl_bench.federated.aggregation import LeavesRoundsOut
from pfl_bench.federated.cohort import CohortTraining, UpdateAggregator
from pfl_bench.federated.notices import RoundNotices
from pfl_bench.federated.participants import Participants, SampledParticipants
from pfl_bench.federated.parts import (
    build_aggregation,
    build_algorithm,
    build_engine,
    build_transforms,
    needs_one_process,
)
from pfl_bench.federated.privacy_session import PrivateRounds, make_federated_plan
from pfl_bench.federated.private_seed import PrivateSeed
from pfl_bench.federated.sampling import build_sampler
from pfl_bench.federated.shards import num_shards
from pfl_bench.federated.update_pipeline import download_bytes, upload_bytes
from pfl_bench.federated.workers.messages import Begin, Built, SharedTraining, await_workers
from pfl_bench.profiling import phase
from pfl_bench.rng import Purpose, stream
from pfl_bench.simulation.devices.cohorts import SimulatedParticipants, digest_of
from pfl_bench.simulation.devices.devices import Devices
from pfl_bench.simulation.devices.sources import open_devices
from pfl_bench.types import ConfigError, HasState, SingleProcess, Task, WorkerGroup
from privacy.mechanism import Mechanism
from privacy.prefetched_noise import prefetched_noise


class FederatedTrainer:
    """Trains a model over rounds; the runner drives it.

    Args:
        resolved: The configuration, with a ``federated`` section.
        task: Data and loss.
        model: Its memory is the clients' working copy; its initial values are the start.
        folder: The run's folder, where a private run keeps its ledger.
        notice: Called with what a person must know.
        group: The processes of the run, which this one leads.

    Attributes:
        total: Rounds of the run.
        central: Shape (P,): the central parameters.
        plan: What the run claims; None for a run that is not private.
        engine: What trains the clients, as far as it decides the rounding of results.
        private_seed: What cohorts and noise are drawn from; None for a run that is not private.

    Raises:
        ConfigError: The settings do not fit the data or one another.
        privacy.errors.PlanError: The accounting of the settings would be wrong.
    """

    unit = "round"

    def __init__(
        self,
        resolved: ResolvedConfig,
        task: Task,
        model: FlatModel,
        folder: Path,
        notice: Callable[[str], None],
        group: WorkerGroup | None = None,
    ) -> None:
        options = resolved.config.federated
        group = group or SingleProcess()
        if options is None:
            raise ConfigError("a federated trainer needs the section 'federated'")
        self.total = options.num_rounds
        self._options = options
        self._checksum = task.facts.checksum
        self._algorithm = build_algorithm(resolved, options)
        engine = build_engine(resolved, options, task, model, self._algorithm, notice)
        self.engine = engine.description
        shards = num_shards(options.cohort_size)
        if not engine.trains_alone:
            # Who trains beside whom decides the last bits of updates, and of their sum.
            shards = group.size
            if group.size > 1:
                self.engine += f", {group.description}"
        self._split = task.split("train")
        systems = resolved.config.systems
        devices = None
        if systems is not None:
            devices = open_devices(systems.source, self._split.num_users)
            notice(f"systems: devices are {devices.source}")
        self._cohort_seed = resolved.config.seed
        self.private_seed: PrivateSeed | None = None
        if resolved.config.setting == "private_federated":
            self.private_seed = private_seed.derive(
                resolved,
                self._checksum,
                model.initial_digest,
                model.device,
                engine=f"{self.engine}, {shards} shards",
                traces="" if devices is None else digest_of(devices),
            )
            self._cohort_seed = self.private_seed.value
        self._accountant = resolved.config.privacy.accountant if resolved.config.privacy else ""
        self._notices = RoundNotices(notice, self._split.client_ids)
        self._model = model
        self._transforms = build_transforms(resolved, self._algorithm, model)
        self._participants = self._build_participants(resolved, devices, folder)
        self.plan = make_federated_plan(
            resolved,
            self._split,
            self._algorithm,
            self._transforms,
            self._participants,
            model,
            task.facts,
        )
        layers = batchnorm_layers(model.module)
        if layers and self.plan is None:
            raise ConfigError(
                f"model: BatchNorm layers keep running statistics ({', '.join(layers[:3])}), which "
                "federated training neither sends nor averages; use GroupNorm or frozen statistics"
            )
        self._mechanism: Mechanism
        if self.plan is None:
            self._mechanism = build_aggregation(resolved, options)
        else:
            self._mechanism = self.plan.mechanism
        self.central = model.vector.clone()
        self._private: PrivateRounds | None = None
        aggregator = UpdateAggregator(self._mechanism, self._cohort_seed, None)
        if self.plan is not None:
            self._private = PrivateRounds(
                self.plan, resolved, self._cohort_seed, self.central, folder / "ledger.jsonl"
            )
            aggregator = self._private.aggregator
        if group.size > 1 and needs_one_process(resolved, options):
            raise ConfigError(
                f"federated: {group.description} cannot share what is kept of clients' updates "
                "(aggregation, algorithm or compression with a state); set federated.workers: 1"
            )
        if group.size > 1:
            noise = None if self.plan is None else self.plan.noise
            digest = model.initial_digest
            group.broadcast(Begin(resolved, noise, self._cohort_seed, digest, self._checksum))
        self._training = SharedTraining(
            group,
            CohortTraining(model, engine, aggregator, options, self._transforms),
            self._split,
            self._algorithm.local_training,
            shards,
            options.cohort_size,
        )
        identity = None if self.plan is None else machine.identity(model.device)
        await_workers(group, Built(engine.description, identity))
        self._gradient = torch.zeros_like(self.central)
        self.central.grad = self._gradient
        self._optimizer = build_optimizer(
            options.central_optimizer, [self.central], options.central_learning_rate
        )

    def _build_participants(
        self, resolved: ResolvedConfig, devices: Devices | None, folder: Path
    ) -> Participants:
        options = self._options
        down = download_bytes(self._algorithm, self._model.num_parameters)
        if devices is not None:
            up = upload_bytes(self._transforms, self._model.num_parameters)
            local = self._algorithm.local_training
            return SimulatedParticipants(resolved, devices, self._split, local, down, up, folder)
        assert options.scheme.is_drawn  # the configuration was refused
        sampler = build_sampler(
            options.scheme,
            self._split.num_users,
            options.cohort_size,
            stream(self._cohort_seed, Purpose.SAMPLING, 0),
        )
        return SampledParticipants(sampler, down)

    def advance(self, index: int) -> dict[str, float]:
        """Run one round.

        Args:
            index: The round, 1-based.

        Returns:
            The round's scalars.

        Raises:
            privacy.errors.BudgetExceededError: The round would exceed the budget; nothing was
                drawn or trained.
        """
        started = time.perf_counter()
        if self.plan is not None:
            self.plan.check_round(index)
        with phase("sampling"):
            rng = stream(self._cohort_seed, Purpose.SAMPLING, index)
            users = self._participants.draw(index, rng)
        if self._participants.rests_on and not len(users):
            self._notices.nobody(index)
        probed = -1 if self._private is None else self._private.choose_probe(index, len(users))
        noise = stream(self._cohort_seed, Purpose.NOISE, index)
        noise = prefetched_noise(noise, self._mechanism, len(self.central))
        aggregate, counted = self._training.train(users, index, self.central, probed)
        self._notices.lost(index, counted.lost)
        contributions, num_clipped = aggregate.num_contributions, aggregate.num_clipped
        if self._private is not None:
            self._private.add_canaries(aggregate, index)
        with phase("noise"):
            release = self._mechanism.release(aggregate, noise)
        del noise  # what was drawn ahead takes memory
        if self._private is not None:
            with phase("ledger"):
                self._private.record(index, users, release, aggregate, counted.users)
        with phase("central step"):
            rate = self._take_central_step(release.mean_update, index)
        if self._private is not None:
            self._private.watch(index, release, self.central)
        scalars = {
            "train/cohort_size": float(len(users)),
            "train/num_examples": float(counted.num_examples),
            "train/num_steps": float(counted.num_steps),
            "train/num_nonfinite": float(aggregate.num_nonfinite),
            "train/update_norm": float(torch.linalg.vector_norm(release.mean_update)),
            "train/central_learning_rate": rate,
            "systems/steps": float(counted.steps),
            "systems/examples": float(counted.processed),
            **self._participants.finish(index, users, counted),
        }
        local = self._algorithm.local_training
        if local.schedule is not None:
            scalars["train/local_learning_rate"] = local.rate(index)
        if contributions:
            scalars["train/loss"] = counted.loss / contributions
        if isinstance(self._mechanism, LeavesRoundsOut):
            scalars["train/rounds_left_out"] = float(self._mechanism.rounds_left_out)
            self._notices.left_out(index, self._mechanism, contributions)
        if self._private is not None:
            scalars |= self._private.scalars(release, num_clipped / max(1, contributions))
        scalars["time/round_seconds"] = time.perf_counter() - started
        return scalars

    def _take_central_step(self, mean_update: torch.Tensor, index: int) -> float:
        schedule = self._options.central_schedule
        factor = rate_factor(schedule, index, self.total)
        rate = self._options.central_learning_rate * factor
        set_rate(self._optimizer, rate)
        self._algorithm.central_gradient(mean_update.to(self.central.device), out=self._gradient)
        self._optimizer.step()
        return rate

    def close(self) -> None:
        """Close the ledger."""
        if self._private is not None:
            self._private.close()

    def load_central(self) -> None:
        """Put the central parameters into the model, for evaluation."""
        self._model.vector.copy_(self.central)

    def epsilons(self, done: int) -> dict[str, float]:
        """Both epsilons after ``done`` rounds, as scalars.

        Empty for a run without privacy, and under accountants that take seconds an answer (PLD,
        PRV), whose epsilons are in the statement alone.
        """
        if self.plan is None or self._accountant != "rdp":
            return {}
        statement = self.plan.statement(done)
        return {
            "privacy/epsilon_simulated": statement.simulated.epsilon,
            "privacy/epsilon_actual": statement.actual.epsilon,
        }

    def statement(self, done: int | None) -> dict[str, Any] | None:
        """The privacy statement after ``done`` rounds (None: as planned), as plain data."""
        if self.plan is None:
            return None
        if done is None:
            return self.plan.statement(self.plan.planned_rounds, "planned").to_json_dict()
        return self.plan.statement(done).to_json_dict()

    def begin(self, done: int) -> None:
        """Open the run's files; check that what goes on is what a private run's ledger recorded.

        Args:
            done: Rounds that the run has behind it, from its checkpoint.

        Raises:
            privacy.errors.LedgerError: The ledger is damaged or of another run.
        """
        self._participants.begin(done)
        if self._private is not None:
            self._private.begin(done)

    def ledger_digest(self, done: int) -> str | None:
        """SHA-256 of the ledger's line of round ``done``; None without privacy."""
        return None if self._private is None else self._private.ledger_digest(done)

    def canary_result(self, done: int) -> dict[str, Any] | None:
        """What the canaries of an audited run show; None without canaries."""
        return None if self._private is None else self._private.canary_result(done)

    def _with_state(self) -> list[HasState]:
        """Algorithm, transforms and participants, if they change from round to round."""
        parts: list[object] = [self._algorithm, *self._transforms, self._participants]
        return [part for part in parts if isinstance(part, HasState)]

    def state_dict(self) -> dict[str, Any]:
        """All that changes from round to round."""
        return {
            "central": self.central,
            "optimizer": self._optimizer.state_dict(),
            "mechanism": self._mechanism.state_dict(),
            "private": None if self._private is None else self._private.state_dict(),
            "clients": [part.state_dict() for part in self._with_state()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` gave."""
        self.central.copy_(state["central"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._mechanism.load_state_dict(state["mechanism"])
        for part, saved in zip(self._with_state(), state["clients"], strict=True):
            part.load_state_dict(saved)
        if self._private is not None:
            self._private.load_state_dict(state["private"])
