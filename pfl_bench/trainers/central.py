"""The central trainer: the pooled training split, with or without example-level DP.

Guarantee with a ``privacy`` section: unit one example, each example's gradient clipped to
``clip_norm`` in L2 norm over all parameters, Gaussian noise by Opacus, and the *expected* batch
size as denominator. Batches are Poisson samples with rate batch_size / examples (adjacency add or
remove one example), or cut from an order that each epoch draws anew (zero-out): the scheme that
draws them is the one that is accounted. Statistics that the model normalises by are released before
the first step, and accounted. Normalisation over examples of a batch is refused by Opacus' own
validator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pfl_bench.client import machine
from pfl_bench.client.flat_model import FlatModel, clip_each, clip_global
from pfl_bench.client.optimizers import build_optimizer, rate_factor, set_rate
from pfl_bench.client.precision import new_loss_sum
from pfl_bench.client.prefetch import MicroBatch, prefetch
from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.federated import private_seed
from pfl_bench.federated.parts import RunParts
from pfl_bench.rng import Purpose, seed_torch, stream, torch_seed
from pfl_bench.trainers.dp_sgd import PrivateSteps
from pfl_bench.trainers.private_statistics import release_statistics, requested_statistics
from pfl_bench.types import ConfigError, ExpectedWork, FederatedSplit, Trainer
from privacy.errors import BudgetExceededError
from privacy.ledger import Ledger
from privacy.mechanisms import gaussian
from privacy.plan.budget import Budget
from privacy.plan.example_level import (
    ExampleLevelPlan,
    ExampleLevelRequest,
    make_example_level_plan,
)
from privacy.plan.plan import tensor_digest
from privacy.recording.step_observation import StepObserver
from privacy.sampling_scheme import Participation
from privacy.statement.statement import PrivacyStatement


def make_central_plan(
    resolved: ResolvedConfig, split: FederatedSplit, model: FlatModel
) -> ExampleLevelPlan | None:
    """Build the plan of a run's section ``central``; None for a run that claims no privacy.

    ConfigError where the mechanism is not one of central training; privacy.errors.PlanError where
    the accounting of the settings would be wrong.
    """
    privacy, options = resolved.config.privacy, resolved.config.central
    assert options is not None
    if privacy is None:
        return None
    mechanism = resolved.tree["privacy"]["mechanism"]
    # Opacus' noise is the Gaussian mechanism's, and takes no option but its bound.
    if type(resolved.mechanism_options) is not gaussian.Options:
        raise ConfigError(
            f"privacy.mechanism.name: '{mechanism['name']}' is not available for central "
            "training; example-level DP is DP-SGD: use {name: gaussian, clip_norm: ...}"
        )
    examples = Participation.named(options.sampling, split.num_examples, options.batch_size)
    return make_example_level_plan(
        ExampleLevelRequest(
            num_examples=split.num_examples,
            batch_size=options.batch_size,
            steps=examples.scheme.rounds_of_epoch(examples) * options.num_epochs,
            clip_norm=mechanism["clip_norm"],
            budget=Budget(
                privacy.epsilon, privacy.noise_multiplier, privacy.delta, privacy.accountant
            ),
            num_parameters=model.num_parameters,
            selected_by=resolved.config.evaluation.select_best,
            nonce=privacy.nonce,
            plugins=machine.plugin_digests(),
            sampling=options.sampling,
            statistics=requested_statistics(model, privacy),
        )
    )


class CentralTrainer(Trainer):
    """Trains a model, in place, on pooled examples; the runner drives it, one epoch a step.

    A private run keeps its ledger in ``folder``; ``plan`` is what it claims, None for other runs.
    ConfigError if the settings do not fit the data or one another, privacy.errors.PrivacyError if
    the claim cannot be met.
    """

    unit = "epoch"

    def __init__(self, parts: RunParts, folder: Path, notice: Callable[[str], None]) -> None:
        resolved, task, model = parts.resolved, parts.task, parts.model
        options = resolved.config.central
        assert options is not None, "a central trainer needs the section 'central'"
        self._options = options
        self._split: FederatedSplit = task.split("train")
        self._model = model
        self._forward = parts.forward
        self._seed = resolved.config.seed
        self._notice = notice
        self.total = self.last = options.num_epochs
        if options.batch_size > self._split.num_examples:
            raise ConfigError(
                f"central.batch_size: {options.batch_size} is more than the "
                f"{self._split.num_examples} training examples; lower it"
            )
        self._examples = Participation.named(
            options.sampling, self._split.num_examples, options.batch_size
        )
        self._steps_per_epoch = self._examples.scheme.rounds_of_epoch(self._examples)
        self._statistics = requested_statistics(model, resolved.config.privacy)
        self._optimizer = build_optimizer(
            options.optimizer, model.parameters, options.learning_rate
        )
        self.plan = make_central_plan(resolved, self._split, model)
        self._ledger: Ledger | None = None
        self._digest: str | None = None
        self._ledger_path = folder / "ledger.jsonl"
        self._batch_seed = self._seed
        if self.plan is not None:
            self.accountant = self.plan.setting.accountant
            if self.plan.max_steps is not None:
                self.last = self.plan.max_steps // self._steps_per_epoch
                self._check_budget(self.plan, 1)
            self._observer = StepObserver(model.slices, options.batch_size)
            self._private = PrivateSteps(
                self.plan, model, self._optimizer, task, self._forward, options, self._observer
            )
            self.private_seed = private_seed.derive(
                resolved, task.facts.checksum, model.initial_digest, model.device
            )
            self._batch_seed = self.private_seed.value
            self._private.generator.manual_seed(torch_seed(self._batch_seed, Purpose.NOISE))
            self._constants = self.plan.ledger_constants(task.facts.checksum)
            self._released: dict[str, Any] | None = None

    def advance(self, index: int) -> dict[str, float]:
        """Run epoch ``index``, 1-based, and give its scalars; past the budget nothing is drawn."""
        if self.plan is not None:
            self._check_budget(self.plan, index)
        rng = stream(self._batch_seed, Purpose.CENTRAL_BATCHES, index)
        seed_torch(self._seed, Purpose.CENTRAL_MODEL, self._model.device, index)
        self._model.module.train()
        loss_sum = new_loss_sum(self._model.device)
        fixed = {} if self.plan is None else self._model.fixed()
        seen, lost, rate = 0, 0, 0.0
        batches = self._shuffled(rng)
        if self.plan is not None:
            batches = self._observer.batches(self._drawn(rng))
        total_steps = self._steps_per_epoch * self.total
        for micro_batch in prefetch(self._jobs(batches, index), self._options.data_workers):
            step = (index - 1) * self._steps_per_epoch + micro_batch.step + 1
            rate = self._options.learning_rate
            rate *= rate_factor(self._options.schedule, step, total_steps)
            set_rate(self._optimizer, rate)
            if self.plan is None:
                loss_sum += self._plain_step(micro_batch) * micro_batch.size
            else:
                micro_loss, micro_lost = self._private.take(micro_batch)
                loss_sum += micro_loss
                lost += micro_lost
            seen += micro_batch.size
        scalars = {
            "train/num_examples": float(seen),
            "train/num_steps": float(self._steps_per_epoch),
            "train/learning_rate": rate,
            "systems/steps": float(self._steps_per_epoch),
            "systems/examples": float(seen),
        }
        if seen:
            scalars["train/loss"] = float(loss_sum) / seen
        if self.plan is not None:
            if moved := self._model.moved(fixed):
                raise ConfigError(
                    f"model: training changed its {moved}, which is released with the "
                    "model, but neither clipped nor noised; use layers without running statistics"
                )
            scalars["train/num_nonfinite"] = float(lost)
            self._record(index, lost)
            if lost:
                self._notice(
                    f"epoch {index}: the gradients of {lost} examples were not finite and "
                    "contributed nothing; a lower central.learning_rate usually mends this"
                )
        return scalars

    def expected_work(self) -> ExpectedWork:
        """Of the epochs within the budget, each with as many examples as there are."""
        steps, examples = self._steps_per_epoch, self._split.num_examples
        return ExpectedWork(steps, None, float(steps * self.last), float(examples * self.last))

    def _record(self, epoch: int, lost: int) -> None:
        """Write the epoch's line of the ledger: its steps, what was seen of them, and a digest."""
        if self._ledger is None:
            return
        self._ledger.append(
            {
                **self._constants,
                **({} if self._released is None else {"statistics": self._released}),
                "round": epoch,
                "steps": epoch * self._steps_per_epoch,
                "num_nonfinite": lost,
                "observed": self._observer.record(),
                "release_sha256": tensor_digest(self._model.vector),
            }
        )
        self._digest = self._ledger.digest(epoch)

    def begin(self, done: int) -> None:
        """Open a private run's ledger; check that the run goes on from it; see ``Trainer``."""
        if self.plan is not None:
            if self._statistics is not None and self._released is None:
                # Of a run that goes on, they came with its checkpoint.
                rng = stream(self._batch_seed, Purpose.STATISTICS)
                self._released = release_statistics(
                    self._statistics, self._model, self._split, self._forward, rng
                )
            self._ledger = Ledger(self._ledger_path)
            self._ledger.check_resume(done, self._constants, self._digest)

    def ledger_digest(self, done: int) -> str | None:
        """SHA-256 of the ledger's line of epoch ``done``; None without privacy."""
        return None if self._ledger is None else self._ledger.digest(done)

    def _check_budget(self, plan: ExampleLevelPlan, epoch: int) -> None:
        last_step = epoch * self._steps_per_epoch
        if plan.max_steps is not None and last_step > plan.max_steps:
            raise BudgetExceededError(
                f"epoch {epoch} would end at step {last_step}; the budget epsilon = "
                f"{plan.request.budget.epsilon:g} is spent after step {plan.max_steps}; a larger "
                "one, or more noise, allows more"
            )

    def _shuffled(self, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        order = rng.permutation(self._split.num_examples)
        for start in range(0, len(order), self._options.batch_size):
            yield order[start : start + self._options.batch_size]

    def _drawn(self, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        """The batches of a private epoch, as they are accounted."""
        scheme, count = self._examples.scheme, self._split.num_examples
        if not scheme.is_independent:
            order = scheme.assign(self._examples, rng)
            for step in range(1, self._steps_per_epoch + 1):
                yield scheme.draw(self._examples, rng, step, order)
            return
        # Not by the scheme's own draw, which is the same law: runs of a seed would be others.
        rate = self._examples.sampling_probability
        for _ in range(self._steps_per_epoch):
            yield np.flatnonzero(rng.random(count) < rate).astype(np.int64)

    def _jobs(
        self, batches: Iterable[NDArray[np.int64]], index: int
    ) -> Iterator[Callable[[], MicroBatch]]:
        """Ways to read the epoch's batches; under DP in micro-batches that fit the memory.

        Draws are a step's, not a micro-batch's: what memory there is changes nothing of what is
        released.
        """
        for step, batch in enumerate(batches):
            size = len(batch) if self.plan is None else self._options.physical_batch_size
            rng = stream(self._seed, Purpose.AUGMENTATION, index, step + 1)
            draws = self._forward.draw(len(batch), rng)
            for start in range(0, max(1, len(batch)), max(1, size)):
                part = slice(start, start + size)
                of_part = None if draws is None else draws[part]
                is_last = start + size >= len(batch)
                yield partial(self._read, batch[part], rng.spawn(1)[0], step, is_last, of_part)

    def _read(
        self,
        part: NDArray[np.int64],
        rng: np.random.Generator,
        step: int,
        is_last: bool,
        draws: Tensor | None,
    ) -> MicroBatch:
        examples = self._split.read_examples(part, rng) if len(part) else None
        return MicroBatch(step, len(part), is_last, examples, draws)

    def _plain_step(self, micro_batch: MicroBatch) -> Tensor:
        loss = self._forward.loss(*micro_batch.to(self._model.device))
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self._clip()
        self._optimizer.step()
        return loss.detach()

    def _clip(self) -> None:
        """Clip the gradients as configured, and make them dense: optimizers may want them so."""
        trained = [p for p in self._model.parameters if p.grad is not None]
        gradients = tuple(cast("Tensor", p.grad) for p in trained)
        if not gradients:
            return
        if self._options.gradient_clip_norm is not None:
            gradients = clip_each(gradients, self._options.gradient_clip_norm)
        elif self._options.gradient_clip_global_norm is not None:
            gradients = clip_global(gradients, self._options.gradient_clip_global_norm)
        for parameter, gradient in zip(trained, gradients, strict=True):
            parameter.grad = gradient.to_dense() if gradient.is_sparse else gradient

    def close(self) -> None:
        """Close the ledger, and take off the model what training has put on it."""
        if self.plan is not None:
            self._private.close()
        if self._ledger is not None:
            self._ledger.close()

    def claim(self, done: int | None) -> PrivacyStatement | None:
        """The privacy statement after ``done`` epochs (None: as planned)."""
        if self.plan is None:
            return None
        if done is not None:
            return self.plan.statement(done * self._steps_per_epoch)
        return self.plan.statement(self.last * self._steps_per_epoch, "planned")

    def state_dict(self) -> dict[str, Any]:
        """All that changes from epoch to epoch."""
        state: dict[str, Any] = {
            "central": self._model.vector.clone(),
            "optimizer": self._optimizer.state_dict(),
            "buffers": self._model.buffers(),
        }
        if self.plan is not None:
            state["noise_generator"] = self._private.generator.get_state()
            state["ledger"] = self._digest
            state["seed"] = self._batch_seed
            if self._released is not None:
                state["statistics"] = self._released
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` gave; RunFolderError of a private run of other streams."""
        if self.plan is not None and state["seed"] != self._batch_seed:
            raise private_seed.OtherSeedError(self._ledger_path.parent)
        self._model.vector.copy_(state["central"])
        self._model.load_buffers(state["buffers"])
        self._optimizer.load_state_dict(state["optimizer"])
        if self.plan is not None:
            self._private.generator.set_state(state["noise_generator"])
            self._digest = state["ledger"]
            self._released = state.get("statistics")
