"""Holds what checkpoints keep, models, buffers and moments, against rounds and steps done again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pfl_bench.client.flat_model import FlatModel
from pfl_bench.client.optimizers import optimizer_form
from pfl_bench.files import to_json_value
from pfl_bench.runs.checkpoint import load, restoring
from privacy.audit.inputs import json_equal
from privacy.audit.recomputed_noise import ULP, recorded_number
from privacy.audit.rounding import is_same_sketch, of_moment
from privacy.reference.central import Optimizer
from privacy.reference.round import State

# Relative: numbers that other orders of additions alone change, such as the time on the clock.
CLOCK = 1e-9
# Distance that rounding explains of a moment, shape (P,), by its name.
OfMoment = Callable[[str, Tensor], float]
Array = NDArray[np.float64]
# Roundings of float32 that each vector of noise may be off by in a round.
_ROUNDINGS = 8.0
# Relative: noise is recorded as the released sum less that of the data, in float64.
_OF_NOISE = 1e-6


def other_values(name: str, saved: Any, own: Any, most: Callable[[Tensor], float]) -> Iterator[str]:
    """Problems of saved numbers and tensors that are not those of the reference, in words.

    Of what ``own`` has, in mappings and sequences, of any shape; ``most`` is the distance that
    rounding explains of one of these. ``saved`` has the same names at least.
    """
    if isinstance(own, Sequence) and len(own) != len(saved):
        yield f"the {name} has {len(saved)} elements, not {len(own)}"
        return
    if isinstance(own, (Mapping, Sequence)):
        for key in own if isinstance(own, Mapping) else range(len(own)):
            yield from other_values(f"{name}.{key}", saved[key], own[key], most)
        return
    found, known = (torch.as_tensor(value) for value in (saved, own))
    same = found.shape == known.shape
    apart = float((found.double() - known.double()).norm()) if same else math.inf
    if not apart <= (near := most(known)) and bool(known.double().norm().isfinite()):
        yield f"the {name} is off by {apart:.3g}, where rounding explains {near:.2g}"


def other_optimizer(
    optimizer: Optimizer, saved: Mapping[str, Any], most: OfMoment
) -> Iterator[str]:
    """Problems of a saved optimizer: moments may be off by ``most``, other numbers not."""
    options, steps = optimizer.options, optimizer.steps
    (group,) = optimizer_form(options, [])["param_groups"]
    group |= {"lr": optimizer.eta, "steps": steps}
    if options.epsilon_hat:
        group["eps"] = options.epsilon / math.sqrt(1.0 - options.beta2**steps)
    numbers = {key: own for key, own in group.items() if isinstance(own, (float, tuple))}
    own = {
        "param_groups": [numbers],
        "state": {key: {"step": steps} for key, one in saved["state"].items() if "step" in one},
    }
    yield from other_values(
        "checkpoint's optimizer", saved, own, lambda one: CLOCK * float(one.double().norm())
    )
    for name, found in _moments(saved).items():
        own = getattr(optimizer, name)
        yield from other_values(
            f"checkpoint's optimizer's {name} moment", found, own, partial(most, name)
        )


def other_state(state: State, saved: Mapping[str, Any], of_moment: OfMoment) -> Iterator[str]:
    """Problems of what a trainer saved after a round, beside its central parameters."""
    yield from other_optimizer(state.optimizer, saved["optimizer"], of_moment)
    near = _ROUNDINGS * ULP * math.sqrt(state.mechanism.number)
    now = 0.0 if state.devices is None else state.devices.now

    def most(value: Tensor) -> float:
        """More of floating point numbers: vectors are noise, others may be of the clock."""
        length = float(value.double().norm())
        if not value.is_floating_point():
            return CLOCK * length
        return near * length if value.dim() else CLOCK * max(length, now)

    history = {"counts": state.counts, "last": state.last}
    own = {
        "mechanism": state.mechanism.state(),
        "private": {"history": history},
    }
    if state.devices is not None:
        clock = {"now": state.devices.now, "totals": state.devices.totals}
        own["clients"] = {"participants": {"clock": clock, "limits": history}}
    yield from other_values("checkpoint's trainer", saved, own, most)


def load_optimizer(optimizer: Optimizer, saved: Mapping[str, Any]) -> None:
    """Put the moments that torch's optimizer keeps of its tensors into the reference's, flat."""
    states = list(saved["state"].values())
    optimizer.steps = int(states[0].get("step", 0)) if states else 0
    for name, found in _moments(saved).items():
        setattr(optimizer, name, found)


def _moments(saved: Mapping[str, Any]) -> dict[str, Tensor]:
    moments, states = {}, saved["state"].values()
    for name, keys in (
        ("first", ("momentum_buffer", "exp_avg", "first")),
        ("second", ("sum", "exp_avg_sq", "second")),
    ):
        parts = [
            s[key].double().flatten() for s in states for key in keys if s.get(key) is not None
        ]
        if parts:
            moments[name] = torch.cat(parts)
    return moments


def kept_problems(
    model: FlatModel,
    sketches: Array,
    sketch: Callable[[], Array],
    saved: Mapping[int, Path],
    statistics: Any,
) -> Iterator[str]:
    """Differences of the checkpoints ``saved``, by epoch, from the record, in words.

    The ledger has the ``sketches`` of the parameters after each epoch, shape (E, k), by which the
    steps are followed, and of which a digest says nothing. ``sketch`` gives that of the parameters
    that the model has, shape (k,); they are the same afterwards. No step moves buffers. Each
    checkpoint repeats what the ledger has of released ``statistics``, None for none.
    """
    own, before = dict(model.module.named_buffers()), model.vector.clone()
    for epoch, path in saved.items():
        state = load(path)
        best = state.get("best") or {}
        if not json_equal(to_json_value(state["trainer"].get("statistics")), statistics):
            yield f"the checkpoint of epoch {epoch} has other statistics than the ledger"
        for number, holder, key in (
            (epoch, state["trainer"], "central"),
            (best.get("index", 0), best, "vector"),
        ):
            vector = holder.get(key)
            if vector is not None and number in range(1, 1 + len(sketches)):
                model.vector.copy_(vector)
                now = sketch()
                if not is_same_sketch(sketches[number - 1], now, float(now[0])):
                    yield (
                        f"the checkpoint of epoch {epoch} holds another model than the steps of "
                        f"epoch {number} end with"
                    )
            for name, buffer in holder.get("buffers", {}).items():
                known = own.get(name)
                same = known is not None and buffer.shape == known.shape
                if known is not None and same:
                    near = 1e-4 if known.is_floating_point() else 0.0
                    same = torch.allclose(buffer, known, rtol=near, atol=near / 1e3)
                if not same:
                    yield (
                        f"the checkpoint of epoch {epoch} has another buffer '{name}' than the "
                        "model (or its released statistics)"
                    )
    model.vector.copy_(before)


def statistics_problems(recorded: Any, own: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """Numbers ``recorded`` of the noise of released statistics that are not its own, in words."""
    for name, numbers in own.items():
        found = recorded.get(name) if isinstance(recorded, Mapping) else None
        part = found if isinstance(found, Mapping) else {}
        for key, number in numbers.items():
            what = f"noise of the {name} of statistics: its {key.replace('_', ' of ')}"
            yield from recorded_number(what, part, key, number, _OF_NOISE * number)


def kept_moments(path: Path, optimizer: Optimizer, disturbed: Optimizer) -> Iterator[str]:
    """Moments of a checkpoint that are not those of the ``optimizer`` after the same steps.

    ``disturbed`` has taken them from where rounding may have led.
    """
    with restoring(path, {"trainer": {}}, {}):
        saved = load(path)["trainer"]["optimizer"]
        yield from other_optimizer(optimizer, saved, partial(of_moment, disturbed))
