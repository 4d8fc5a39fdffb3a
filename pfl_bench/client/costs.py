"""Costs of training: FLOPs and bytes, in all and until a metric reaches a value.

FLOPs are those of matrix products and convolutions in forward and backward passes of training, as
``torch.utils.flop_counter`` counts them: a multiplication and an addition are two, biases,
activations, normalisation, embeddings looked up and optimizer steps are none, and an operation that
torch has no formula for counts as 0 in silence, unless the model itself has one (``CountsFlops``).
They are counted once, on the real model and an example of the data, for a step and for an example
of it; a client's are those of the steps that it really took and of the examples that really went
through them.

Bytes are those of the trainable parameters in float32, once down and once up for each client of
each round, unless a compression or an algorithm says what it needs; no protocol around them, and
without the one bit a client that adaptive clipping asks for. Parameters that are frozen, and
buffers, reach clients once, before training, and are not counted. Central training sends nothing.
Example-level DP needs more FLOPs than are counted, which are those of the plain step. What clients
fine-tune before evaluation is not training and not counted.

LEAF counts a client's examples down to a multiple of the batch size, whatever its last batch holds,
and all operations of the graph that its profiler knows, biases and activations too.

Source: Caldas et al. 2018 (LEAF), section 3 (systems metrics); its published code.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from pfl_bench.client.flat_model import FlatModel
from pfl_bench.client.forward import Forward
from pfl_bench.config.sections import BudgetTarget
from pfl_bench.metrics import MetricDirections
from pfl_bench.profiling import one_thread
from pfl_bench.types import CountsFlops, FederatedSplit

BYTES_PER_PARAMETER = 4
_COSTS = ("flops", "bytes_down", "bytes_up")
# Totals of runs with simulated devices, which the trainer gives as they are.
_SIMULATED = ("simulated_seconds", "stragglers", "lost")


@dataclass(frozen=True, slots=True)
class StepFlops:
    """FLOPs of one training step, forward and backward.

    Attributes:
        per_step: What a step needs however large its batch is.
        per_example: What each of its examples adds.
        saved_bytes: What each of its examples adds to what is kept for the backward pass.
    """

    per_step: int
    per_example: int
    saved_bytes: int = field(default=0, compare=False)

    def of(self, steps: int, examples: int) -> int:
        """FLOPs of some steps through which so many examples went, all together."""
        return steps * self.per_step + examples * self.per_example


def measure_step(forward: Forward, model: FlatModel, split: FederatedSplit) -> StepFlops:
    """Count the FLOPs of a training step on the split's first example, repeated.

    Leaves the model as it was, weights, buffers, gradients and modes, and the random streams too.
    """
    devices = [model.device] if model.device.type == "cuda" else []
    with untouched(model, devices), _countable():
        model.module.train()
        # Not 1: normalisation over a batch has nothing to go by there.
        (two, kept), (three, more) = (_count(forward, model, split, n) for n in (2, 3))
    per_example = three - two
    return StepFlops(two - 2 * per_example, per_example, max(0, more - kept))


def _count(forward: Forward, model: FlatModel, split: FederatedSplit, size: int) -> tuple[int, int]:
    """FLOPs of a step of some examples, and bytes of all memory that its backward pass reads."""
    from torch.utils.flop_counter import FlopCounterMode

    one = split.read_range(0, 1)
    again = torch.zeros(size, dtype=torch.int64)
    draws = forward.draw(size, np.random.default_rng(0))
    device = model.device
    batch = (one.inputs[again].to(device), one.targets[again].to(device))
    counter = FlopCounterMode(display=False)
    saved: dict[int, int] = {}
    gradients = [parameter.grad for parameter in model.parameters]

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout == torch.strided:
            memory = tensor.untyped_storage()
            saved[memory.data_ptr()] = memory.nbytes()
        return tensor

    with counter, torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        # All outputs, those too that training may leave out: what the model is said to cost.
        outputs = forward.outputs(batch[0], None if draws is None else draws.to(device))
        loss = forward.mean_loss(outputs, batch[1])
        # The counter's hooks refuse autograd.grad() where a module is given a parameter.
        model.module.zero_grad()
        torch.autograd.backward(loss, inputs=model.parameters)
    for parameter, gradient in zip(model.parameters, gradients, strict=True):
        parameter.grad = gradient
    total = int(counter.get_total_flops())
    if isinstance(model.module, CountsFlops):
        total += model.module.own_flops(forward.prepare(batch[0], None))
    return total, sum(saved.values())


@contextlib.contextmanager
def untouched(model: FlatModel, devices: Sequence[torch.device] = ()) -> Iterator[None]:
    """Put all weights, buffers, modes and random streams, of devices too, back after the block."""
    modes = [(module, module.training) for module in model.module.modules()]
    try:
        with model.kept(), torch.random.fork_rng(devices=devices):
            yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextlib.contextmanager
def _countable() -> Iterator[None]:
    """Without fused LSTMs, which have no formula; their plain steps are the same products.

    One thread, because an LSTM's plain steps are thousands of small operations.
    """
    cudnn = torch.backends.cudnn.enabled
    with warnings.catch_warnings(), one_thread():
        # Putting oneDNN's settings back warns of hardware that is not there.
        warnings.simplefilter("ignore")
        # ``cudnn.flags()`` would also change what cuDNN makes of float32.
        torch.backends.cudnn.enabled = False
        try:
            with torch.backends.mkldnn.flags(enabled=False):
                yield
        finally:
            torch.backends.cudnn.enabled = cudnn


class CostMeter:
    """Adds up the costs of a run, and notes at which cost the wanted values were reached.

    Without ``directions`` all families say which of their metrics are better when lower.
    """

    def __init__(
        self,
        step: StepFlops,
        targets: Sequence[BudgetTarget],
        directions: MetricDirections | None = None,
    ) -> None:
        self._step = step
        self._directions = directions or MetricDirections.of_recorded(None)
        self._targets = tuple(targets)
        self._totals: dict[str, float] = dict.fromkeys(_COSTS, 0)
        self._reached: list[dict[str, Any] | None] = [None] * len(self._targets)

    def add(self, scalars: dict[str, float]) -> dict[str, float]:
        """Add a round.

        Args:
            scalars: The trainer's, with "systems/steps" and "systems/examples" (from which FLOPs
                follow) or "systems/flops" itself, and "systems/bytes_down" and "systems/bytes_up"
                if anything was sent. What is not there is 0. With simulated devices also
                "systems/total_simulated_seconds", "systems/total_stragglers", "systems/total_lost".

        Returns:
            The round's costs "systems/flops", "systems/bytes_down", "systems/bytes_up", and
            "systems/total_..." of all rounds so far.
        """
        counted = self._step.of(
            int(scalars.get("systems/steps", 0)), int(scalars.get("systems/examples", 0))
        )
        result: dict[str, float] = {}
        for name in _COSTS:
            default = counted if name == "flops" else 0
            cost = int(scalars.get(f"systems/{name}", default))
            self._totals[name] += cost
            result[f"systems/{name}"] = float(cost)
        result |= {f"systems/total_{name}": float(self._totals[name]) for name in _COSTS}
        for name in _SIMULATED:
            if f"systems/total_{name}" in scalars:
                self._totals[name] = scalars[f"systems/total_{name}"]
        return result

    def watch(self, index: int, scalars: dict[str, float]) -> None:
        """Note the wanted values that the evaluation after round ``index`` is the first to reach.

        The round is already added; NaN reaches nothing.
        """
        for place, target in enumerate(self._targets):
            if self._reached[place] is not None:
                continue
            value = scalars.get(target.metric, math.nan)
            low = self._directions.lower_is_better(target.metric)
            if value <= target.value if low else value >= target.value:
                self._reached[place] = {"index": index, "value": value, **self._totals}

    @property
    def totals(self) -> dict[str, float]:
        """Costs of the run so far: "flops", "bytes_down", "bytes_up".

        With simulated devices also "simulated_seconds", "stragglers" and "lost".
        """
        return dict(self._totals)

    def budgets(self) -> list[dict[str, Any]]:
        """Of each wanted value: whether, when and at which costs so far it was first reached.

        What was not reached has None for the round, the value and the costs.
        """
        nothing = dict.fromkeys(("index", "value", *self._totals))
        return [
            {
                "metric": target.metric,
                "target": target.value,
                "reached": reached is not None,
                **(reached or nothing),
            }
            for target, reached in zip(self._targets, self._reached, strict=True)
        ]

    def state_dict(self) -> dict[str, Any]:
        """All that changes from round to round."""
        return {"totals": dict(self._totals), "reached": list(self._reached)}

    @staticmethod
    def state_form(num_targets: int) -> dict[str, Any]:
        """Form of what ``state_dict`` gives, of so many wanted values."""
        totals = dict.fromkeys((*_COSTS, *_SIMULATED), 0.0)
        reached = {"index": 0, "value": 0.0, **totals}
        return {"totals": totals, "reached": [reached] * num_targets}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` gave, which must be of as many budgets."""
        if len(state["reached"]) != len(self._targets):
            raise ValueError(f"{len(state['reached'])} budgets, not {len(self._targets)}")
        self._totals = dict(state["totals"])
        self._reached = list(state["reached"])
