"""The federated trainer: one loop for private and non-private federated learning.

Privacy is a mechanism in the loop's hand; "none" is one more mechanism. A round, in order: would
it exceed the budget, draw the cohort, train and clip client by client into a running sum, noise
the sum once, write the ledger, take the central step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from pfl_bench.building import build_algorithm, build_engine, build_mechanism
from pfl_bench.config_file import ResolvedConfig
from pfl_bench.config_training import FederatedOptions
from pfl_bench.flat_model import FlatModel, batchnorm_layers
from pfl_bench.optimizers import build_optimizer, rate_factor, set_rate
from pfl_bench.private_rounds import PrivateRounds, make_federated_plan
from pfl_bench.rng import Purpose, stream
from pfl_bench.sampling import build_sampler
from pfl_bench.systems import BYTES_PER_PARAMETER
from pfl_bench.types import ConfigError, LocalResult, Task
from privacy.aggregate import Aggregate
from privacy.clipping import ClipOutcome
from privacy.mechanism import Mechanism, NoiseScale, Release


class FederatedTrainer:
    """Trains a model over rounds; the runner drives it.

    Args:
        resolved: The configuration, with a ``federated`` section.
        task: Data and loss.
        model: Its memory is the clients' working copy; its initial values are the start.
        folder: The run's folder, where a private run keeps its ledger.
        notice: Called with what a person must know.

    Attributes:
        total: Rounds of the run.
        central: Shape (P,): the central parameters.
        plan: What the run claims; None for a run that is not private.

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
    ) -> None:
        options = resolved.config.federated
        if options is None:
            raise ConfigError("a federated trainer needs the section 'federated'")
        self.total = options.num_rounds
        self._options = options
        self._checksum = task.facts.checksum
        self._cohort_seed = resolved.config.seed
        if resolved.config.setting == "private_federated":
            self._cohort_seed = resolved.private_seed(
                self._checksum, model.initial_digest, model.device.type
            )
        self._accountant = resolved.config.privacy.accountant if resolved.config.privacy else ""
        self._notice = notice
        self._model = model
        self._split = task.split("train")
        self._sampler = build_sampler(
            options.sampling,
            self._split.num_users,
            options.cohort_size,
            options.separation,
            stream(self._cohort_seed, Purpose.SAMPLING, 0),
        )
        self._algorithm = build_algorithm(resolved, options)
        layers = batchnorm_layers(model.module)
        self.plan = make_federated_plan(
            resolved,
            options,
            self._split,
            self._algorithm.uploads,
            layers,
            model.num_parameters,
            self._checksum,
            task.facts.artificial_users,
        )
        if layers and self.plan is None:
            raise ConfigError(
                f"model: BatchNorm layers keep running statistics ({', '.join(layers[:3])}), which "
                "federated training neither sends nor averages; use GroupNorm or frozen statistics"
            )
        self._mechanism: Mechanism
        if self.plan is None:
            self._mechanism = build_mechanism("none", None, _no_noise(options))
        else:
            self._mechanism = self.plan.mechanism
        self._buffers = model.buffers()
        self._engine = build_engine(resolved, options, task, model, self._algorithm, notice)
        self.central = model.vector.clone()
        self._private: PrivateRounds | None = None
        if self.plan is not None:
            self._private = PrivateRounds(
                self.plan, resolved, self._cohort_seed, self.central, folder / "ledger.jsonl"
            )
        self._gradient = torch.zeros_like(self.central)
        self.central.grad = self._gradient
        self._optimizer = build_optimizer(
            options.central_optimizer, [self.central], options.central_learning_rate
        )

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
        users = self._sampler.draw(stream(self._cohort_seed, Purpose.SAMPLING, index), index)
        aggregate = Aggregate.zeros(self._model.num_parameters, self.central.device)
        loss_sum = torch.zeros((), device=self.central.device)
        num_examples = num_steps = steps = processed = 0
        lost: list[int] = []
        if self._private is not None:
            self._private.start_round(index, users)
        for result in self._engine.train(users, index, self.central):
            by_examples = self._options.weighting == "examples"
            weight = float(result.num_examples) if by_examples else 1.0
            steps += result.num_steps
            processed += result.num_processed
            if self._take_in(aggregate, result, weight, index).finite:
                loss_sum += result.loss
                num_examples += result.num_examples
                num_steps += result.num_steps
            else:
                lost.append(result.user)
        self._check_buffers()
        if lost:
            self._name_lost_clients(lost, index)
        contributions, num_clipped = aggregate.num_contributions, aggregate.num_clipped
        if self._private is not None:
            self._private.add_canaries(aggregate, index)
        noise = stream(self._cohort_seed, Purpose.NOISE, index)
        release = self._mechanism.release(aggregate, noise)
        if self._private is not None:
            self._private.record(index, release, aggregate)
        rate = self._take_central_step(release.mean_update, index)
        if self._private is not None:
            self._private.watch(index, release, self.central)
        scalars = {
            "train/cohort_size": float(len(users)),
            "train/num_examples": float(num_examples),
            "train/num_steps": float(num_steps),
            "train/num_nonfinite": float(aggregate.num_nonfinite),
            "train/update_norm": float(torch.linalg.vector_norm(release.mean_update)),
            "train/central_learning_rate": rate,
            **self._systems_scalars(len(users), steps, processed),
        }
        if contributions:
            scalars["train/loss"] = float(loss_sum) / contributions
        if self.plan is not None:
            scalars |= _privacy_scalars(release, num_clipped / max(1, contributions))
        scalars["time/round_seconds"] = time.perf_counter() - started
        return scalars

    def _take_in(
        self, aggregate: Aggregate, result: LocalResult, weight: float, index: int
    ) -> ClipOutcome:
        if self._private is None:
            return self._mechanism.accumulate(aggregate, result.update, weight)
        return self._private.take_in(aggregate, result.update, weight, index, result.user)

    def _systems_scalars(self, clients: int, steps: int, processed: int) -> dict[str, float]:
        """What a round costs its clients: those too whose update was lost have had the cost."""
        size = float(clients * self._model.num_parameters * BYTES_PER_PARAMETER)
        return {
            "systems/steps": float(steps),
            "systems/examples": float(processed),
            "systems/bytes_down": size,
            "systems/bytes_up": size,
        }

    def _check_buffers(self) -> None:
        """Refuse a model whose buffers training moves: no update carries them, no clip bounds them.

        Nothing of the round has been released when this is called.
        """
        for name, buffer in self._model.module.named_buffers():
            if not torch.equal(buffer, self._buffers[name]):
                raise ConfigError(
                    f"model: training changed its buffer '{name}', which would leave the clients "
                    "outside the update, neither averaged nor protected; use layers without "
                    "running statistics, such as GroupNorm"
                )

    def _take_central_step(self, mean_update: torch.Tensor, index: int) -> float:
        schedule = self._options.central_schedule
        factor = rate_factor(schedule, index, self.total)
        rate = self._options.central_learning_rate * factor
        set_rate(self._optimizer, rate)
        self._algorithm.central_gradient(mean_update, out=self._gradient)
        self._optimizer.step()
        return rate

    def _name_lost_clients(self, users: list[int], index: int) -> None:
        ids = self._split.client_ids()
        names = ", ".join(f"'{ids[user]}'" for user in users[:10])
        more = f" and {len(users) - 10} more" if len(users) > 10 else ""
        self._notice(
            f"round {index}: the update of client {names}{more} was not finite and contributed "
            "nothing; a lower federated.local_learning_rate usually mends this"
        )

    def close(self) -> None:
        """Close the ledger."""
        if self._private is not None:
            self._private.close()

    @property
    def engine(self) -> str:
        """What trains the clients, as far as it decides the rounding of results."""
        return self._engine.description

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
        """Open a private run's ledger; check that what goes on is what it has recorded.

        Args:
            done: Rounds that the run has behind it, from its checkpoint.

        Raises:
            privacy.errors.LedgerError: The ledger is damaged or of another run.
        """
        if self._private is not None:
            self._private.begin(done)

    def ledger_digest(self, done: int) -> str | None:
        """SHA-256 of the ledger's line of round ``done``; None without privacy."""
        return None if self._private is None else self._private.ledger_digest(done)

    def canary_result(self, done: int) -> dict[str, Any] | None:
        """What the canaries of an audited run show; None without canaries."""
        return None if self._private is None else self._private.canary_result(done)

    def state_dict(self) -> dict[str, Any]:
        """All that changes from round to round."""
        return {
            "central": self.central,
            "optimizer": self._optimizer.state_dict(),
            "mechanism": self._mechanism.state_dict(),
            "private": None if self._private is None else self._private.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` gave."""
        self.central.copy_(state["central"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._mechanism.load_state_dict(state["mechanism"])
        if self._private is not None:
            self._private.load_state_dict(state["private"])


def _privacy_scalars(release: Release, fraction_clipped: float) -> dict[str, float]:
    """What a private round's line of metrics adds; the fraction of clients clipped is bare."""
    scalars = {
        "privacy/clip_norm": float(release.clip_norm or 0.0),
        "privacy/update_noise_stddev": release.update_noise_stddev,
        "privacy/fraction_clipped": fraction_clipped,
    }
    if release.noisy_fraction_unclipped is not None:
        scalars["privacy/noisy_fraction_unclipped"] = release.noisy_fraction_unclipped
    return scalars


def _no_noise(options: FederatedOptions) -> NoiseScale:
    return NoiseScale(0.0, options.cohort_size, options.cohort_size)
