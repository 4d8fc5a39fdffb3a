"""Takes a run's steps of DP-SGD again, by the reference, and compares them with its ledger.

Batches and noise are drawn anew for each step that the run recorded; sums and parameters are
computed again from the first step on, and from each checkpoint on, until the time is up. Data,
model and the streams of random numbers are the run's; the steps are those of
``privacy.reference.dp_sgd``.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pfl_bench.client.forward import Forward
from pfl_bench.client.machine import keep_freed_memory
from pfl_bench.profiling import one_thread
from pfl_bench.rng import Purpose, stream, torch_seed
from pfl_bench.runs.auditing import starts
from pfl_bench.runs.auditing.kept_state import (
    kept_moments,
    kept_problems,
    load_optimizer,
    statistics_problems,
)
from pfl_bench.runs.auditing.opened import OpenedRun
from pfl_bench.runs.checkpoint import load, steps_saved
from pfl_bench.types import FederatedSplit
from privacy.audit.check import Check, Comparison, conclude
from privacy.audit.evidence import STRIPPED, Evidence, IncompleteError, SkippedError
from privacy.audit.inputs import AuditInputs, as_number
from privacy.audit.recomputed_noise import ULP
from privacy.audit.rounding import PART_OF_ONE, ROUNDING
from privacy.recording.step_observation import BLOCKS, StepSketcher, batch_digest
from privacy.reference.central import Optimizer, rate
from privacy.reference.dp_sgd import DpSgd, Settings, batches_of_epoch, noise_of_step

CHECKS = {
    "cohort_replay": "Each step's batch is the one that the run's scheme draws from its seed.",
    "noise_replay": "Each step's noise is the one that the run's seed draws, at the claimed scale.",
    "recomputation": "Each step's clipped sum and parameters are those of the reference.",
}
# So many roundings of float32 parameters may be off by.
_UNITS = 2.0**9
# Trials of a step from disturbed parameters, at most (each turns a ReLU near zero over with
# probability 1/2), and by how many roundings they are.
_TRIALS = 16
_DISTURBED = 2.0**6
# Noise, noised sum, quotient and product are rounded once each.
_ROUNDINGS = 4.0
# Opacus divides by the norm and this: a clipped gradient is shorter by less than this.
_CLIP_SLACK = 1e-6


@one_thread()
def recompute_dp_sgd(
    run: OpenedRun, inputs: AuditInputs, evidence: Evidence, seconds: float
) -> list[Check]:
    """Take the steps of a run of DP-SGD again; gives the checks of ``CHECKS``, in that order.

    Sums and parameters are computed for ``seconds``, but one step at least; after as long again,
    the drawing of batches and noise ends too.
    """
    keep_freed_memory()
    try:
        work = _Run(run, inputs, evidence, seconds)
    except SkippedError as error:
        return [Check(name, error.outcome, claim, str(error)) for name, claim in CHECKS.items()]
    started = time.monotonic()
    for index in range(len(evidence.steps)):
        if index and time.monotonic() - started > 2.0 * seconds:
            break
        work.take(index)
    return list(work.checks())


class _Run:
    """A run whose steps are taken again, in order, from the first."""

    def __init__(
        self, run: OpenedRun, inputs: AuditInputs, evidence: Evidence, seconds: float
    ) -> None:
        steps, seed = evidence.steps, inputs.seed.value
        noise_multiplier = as_number(inputs.statement.get("noise_multiplier"))
        if steps.missing:
            raise IncompleteError(f"the ledger does not record the steps of each epoch{STRIPPED}")
        if not any(steps.counts[:1]):
            raise SkippedError("no step was taken yet")
        if seed is None:
            raise IncompleteError("neither environment.json nor a checkpoint has the run's seed")
        if not 0.0 <= noise_multiplier < math.inf:
            raise SkippedError("the statement has no noise multiplier that noise has")
        if isinstance(run.opened, str):
            raise SkippedError(run.opened)
        if not run.is_known_model:
            raise IncompleteError(
                "the model that is built today is not the one that the run began with: audit it by "
                "the code, versions and weights of the run"
            )
        resolved, central = run.resolved, run.resolved.config.central
        assert central is not None
        self._resolved, self._options, self._steps, self._seed = resolved, central, steps, seed
        task, self._model = run.opened
        model = self._model
        self._split: FederatedSplit = task.split("train")
        self._forward = Forward(model.module, task, model.device)
        model.module.train()
        per_epoch = steps.counts[0]
        self.settings = Settings(
            num_examples=self._split.num_examples,
            batch_size=central.batch_size,
            steps_per_epoch=per_epoch,
            sampling=central.sampling,
            clip_norm=resolved.tree["privacy"]["mechanism"]["clip_norm"],
            noise_multiplier=noise_multiplier,
        )
        released = starts.release_statistics(resolved.config, self._split, self._forward, seed)
        self._reference = DpSgd(self.settings, model.module, task.loss)
        self._sketcher = StepSketcher(self._reference.shapes, model.device)
        self._width = -(-model.num_parameters // BLOCKS)
        self._total = per_epoch * central.num_epochs
        self._relative = ROUNDING[resolved.config.precision]
        self._generator, self._no_noise = starts.noise_generator(run)
        self._no_sums = run.other_reading or starts.random_layer(model.module)
        # Why no further step could be computed after one.
        self._stopped = ""
        if self._generator is not None:
            self._generator.manual_seed(torch_seed(seed, Purpose.NOISE))
        self._found = {name: Comparison() for name in CHECKS}
        # By their epoch: with the first step, the starts among which the time for sums is shared.
        self._saved = saved = steps_saved(run.folder / "checkpoints")
        self._checkpoints = {e: path for e, path in saved.items() if e * per_epoch < len(steps)}
        problems = self._found["recomputation"].problems
        statistics = evidence.constants.get("statistics")
        problems += statistics_problems(statistics, released)
        after = steps.sketches("parameters")[per_epoch - 1 :: per_epoch]
        problems += kept_problems(model, after, self._sketch, saved, statistics)
        self._begin()
        self._share = seconds / (1 + len(self._checkpoints))

    def _begin(self, saved: Mapping[str, Any] | None = None) -> None:
        """Begin with parameters that are known bit for bit: the first, or those of a checkpoint."""
        length = self._model.num_parameters
        self._optimizer = Optimizer(self._options.optimizer, length)
        if saved is not None:
            self._model.vector.copy_(saved["central"])
            load_optimizer(self._optimizer, saved["optimizer"])
        self._goes_on = saved is None or not self._found["recomputation"].problems
        self._spent = 0.0
        self._reference.start()
        # Takes the steps from where rounding may have led, which is that far from the parameters.
        self._disturbed, self._shift = copy.deepcopy(self._optimizer), torch.zeros(length)
        self._apart, self._off = 0.0, np.zeros(1)

    def take(self, index: int) -> None:
        """Take a step, counted from 0, and compare it; its sum while the start's time lasts."""
        epoch, number = (1 + part for part in divmod(index, self.settings.steps_per_epoch))
        self._place = f"epoch {epoch}, step {number}"
        if number == 1:
            rng = stream(self._seed, Purpose.CENTRAL_BATCHES, epoch)
            self._batches = batches_of_epoch(self.settings, rng)
            if epoch - 1 in self._checkpoints:
                self._begin(load(self._checkpoints[epoch - 1])["trainer"])
        batch = next(self._batches)
        self._compare_batch(index, batch)
        noise = None
        if self._generator is not None:
            noise = noise_of_step(self.settings, self._reference.shapes, self._generator)
            self._compare_noise(index, noise)
        if self._goes_on and not self._no_sums:
            started = time.monotonic()
            examples = self._read(epoch, number, batch)
            self._goes_on = self._compute(index, examples, len(batch), noise)
            self._spent += time.monotonic() - started
            if self._goes_on and number == self.settings.steps_per_epoch and epoch in self._saved:
                kept = kept_moments(self._saved[epoch], self._optimizer, self._disturbed)
                found = self._found["recomputation"].problems
                found += (f"{self._place}: {problem}" for problem in kept)
            self._goes_on &= self._spent <= self._share

    def checks(self) -> Iterator[Check]:
        """The checks made, with the differences found."""
        batches, noise, sums = (self._found[name] for name in CHECKS)
        of = f"of {len(self._steps)} steps"
        again = f"clipped sums and parameters of {sums.steps} {of} computed again"
        if self._checkpoints:
            names = ", ".join(map(str, sorted(self._checkpoints)))
            again += f", from the start and from the checkpoints of epochs {names}"
        if self._stopped:
            again += f" (no further: {self._stopped})"
        stopped = "" if sums.steps else self._stopped
        rows = (
            (batches, "", f"batches of {batches.steps} {of} drawn anew, by their digests"),
            (noise, self._no_noise, f"noise of {noise.steps} {of} drawn anew"),
            (sums, "" if sums.problems else self._no_sums or stopped, again),
        )
        for (name, claim), (found, reason, text) in zip(CHECKS.items(), rows, strict=True):
            if reason:
                # No other check looks at the noise of a step.
                is_noise = found is noise
                yield Check(name, "incomplete" if is_noise else "skipped", claim, reason)
            else:
                yield conclude(name, claim, found.compared(text))

    def _compare_batch(self, index: int, batch: NDArray[np.int64]) -> None:
        found, recorded = self._found["cohort_replay"], self._steps.sizes[index]
        found.steps += 1
        if recorded != len(batch):
            flaw = f"{recorded} examples, where the seed draws {len(batch)}"
        else:
            flaw = f"other examples than the {len(batch)} that the seed draws"
        # Of other numbers, the digests differ.
        is_other = self._steps.digest(index) != batch_digest(batch)
        found.add(is_other or recorded != len(batch), f"{self._place}: the batch has {flaw}")

    def _sketch(self) -> NDArray[np.float64]:
        """Sketch of the parameters that the module has now; shape (1 + BLOCKS,)."""
        self._reference.start()
        return self._sketcher.sketch_flat(self._reference.parameters)

    def _compare_noise(self, index: int, noise: Tensor) -> None:
        found = self._found["noise_replay"]
        found.steps += 1
        recorded = self._steps.sketches("noise")[index]
        own = self._sketcher.sketch_flat(noise)
        rounded = float(self._steps.sketches("sum")[index, 0]) + own[0]
        allowed = _ROUNDINGS * ULP * rounded * self._width**0.5
        found.compare(f"{self._place}: the noise", recorded, own, allowed)

    def _compute(
        self, index: int, examples: tuple[Tensor, Tensor], count: int, noise: Tensor | None
    ) -> bool:
        """Compute a step of ``count`` examples again, compare it; whether the next can be."""
        found, place = self._found["recomputation"], self._place
        total = self._reference.sum(*examples)
        apart = self._reference.remembers(*examples) if count else 0.0
        if apart > self._relative * self.settings.clip_norm:
            found.problems.append(
                f"{place}: the gradient of an example, computed once more, is another: it hangs on "
                "the examples before it"
            )
            return False
        own = self._sketcher.sketch_flat(total)
        scale = max(float(own[0]), math.sqrt(max(1, count)) * self.settings.clip_norm)
        allowed = self._relative * scale + _CLIP_SLACK * count
        recorded, moved = self._steps.sketches("sum")[index], 0.0
        off = np.abs(recorded - own)
        if not off.max() <= allowed:
            moved = self._moved(examples, total, float(off.max()) - allowed)
        is_unclear = off.max() > allowed + moved or moved > self.settings.clip_norm
        # Rounding of many examples that go one way, or of bfloat16, explains more than one of them.
        is_unclear |= off.max() > PART_OF_ONE * self.settings.clip_norm
        if is_unclear and off.max() <= allowed + 4.0 * moved:
            # Trials have long tails, and what may be an example would be hidden.
            self._stopped = "what the model makes of rounding could hide an example"
            return False
        found.compare(f"{place}: the clipped sum", recorded, own, allowed + moved)
        found.steps += 1
        if noise is None:
            self._stopped = self._no_noise
            return False
        options = self._options
        eta = rate(options.learning_rate, options.schedule, index + 1, self._total)
        before, moments = self._reference.parameters, copy.copy(self._optimizer)
        gradient = self._reference.step(total, noise, self._optimizer, eta)
        # The blocks estimate the distance of the sums; trials show what a ReLU makes of rounding.
        apart = max(2.0 * float(np.linalg.norm(off[1:])), moved / 4.0)
        self._disturb(before, gradient, eta, apart / self.settings.batch_size)
        own = self._sketcher.sketch_flat(self._reference.parameters)
        recorded = self._steps.sketches("parameters")[index]
        allowed = _UNITS * ULP * max(1.0, float(own[0])) + self._apart
        hidden = PART_OF_ONE * self.settings.clip_norm / self.settings.batch_size
        off_by = gradient + hidden / math.sqrt(len(before))
        one = moments.step(before, off_by, eta) - self._reference.parameters
        # The parameters keep what earlier steps have put them off by.
        moved_off, self._off = np.abs(recorded - own - self._off).max(), recorded - own
        could_hide = moved_off > float(one.norm()) and np.abs(self._off).max() <= allowed
        if could_hide and not found.problems:
            self._stopped = "parameters differ by what could hide an example, within rounding"
            found.steps -= 1
            return False
        found.compare(f"{place}: the model's parameters", recorded, own, allowed)
        return not found.problems

    def _disturb(self, before: Tensor, gradient: Tensor, eta: float, apart: float) -> None:
        """Take a step along a gradient that is off by a distance, in all elements alike."""
        is_linear = self._options.optimizer.name == "sgd"
        # An adaptive optimizer's step of an element near zero may turn round.
        rounding = 0.0 if is_linear else _ROUNDINGS * ULP * float(gradient.norm())
        signs = torch.randint(0, 2, before.shape, generator=torch.Generator().manual_seed(_TRIALS))
        off = (2.0 * signs - 1.0) * ((apart + rounding) / math.sqrt(len(before)))
        after = self._disturbed.step(before + self._shift, gradient + off, eta)
        self._shift = after - self._reference.parameters
        self._apart = (1.0 if is_linear else 4.0) * float(self._shift.norm())

    def _moved(self, examples: tuple[Tensor, Tensor], total: Tensor, wanted: float) -> float:
        """Four times the most that the sum moves by in trials, which end when this is ``wanted``.

        The parameters are disturbed by roundings, and by the distance that they may have by now (in
        every other trial four times that, which is an estimate), which may all be of one tensor. A
        ReLU or a maximum that turns over changes a gradient by more than rounding.
        """
        start, moved = self._reference.parameters, 0.0
        counts = [shape.numel() for shape in self._reference.shapes]
        spread = torch.cat([torch.full((n,), self._apart / math.sqrt(n)) for n in counts])
        for place in range(_TRIALS):
            if moved >= wanted:
                break
            generator = torch.Generator().manual_seed(place)
            signs = torch.randint(0, 2, start.shape, generator=generator) * 2.0 - 1.0
            off = _DISTURBED * ULP * start.abs() + (1.0 + 3.0 * (place % 2)) * spread
            self._reference.place(start + signs * off)
            moved = max(moved, 4.0 * float((self._reference.sum(*examples) - total).norm()))
        self._reference.place(start)
        return moved

    def _read(self, epoch: int, number: int, batch: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Inputs as the model takes them, and targets: augmented by the step's own stream."""
        if not len(batch):
            return torch.zeros(0), torch.zeros(0)
        rng = stream(self._resolved.config.seed, Purpose.AUGMENTATION, epoch, number)
        draws = self._forward.draw(len(batch), rng)
        inputs, targets = [], []
        size = self._options.physical_batch_size
        for start in range(0, len(batch), size):
            part = slice(start, start + size)
            examples = self._split.read_examples(batch[part], rng.spawn(1)[0])
            # One at a time: what mixes the examples of a batch would bound none of them.
            for place in range(len(examples)):
                one = slice(place, place + 1)
                of_one = None if draws is None else draws[part][one]
                inputs.append(self._forward.prepare(examples.inputs[one], of_one))
            targets.append(examples.targets)
        return torch.cat(inputs), torch.cat(targets)
