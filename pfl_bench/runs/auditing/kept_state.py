"""Holds the state that a checkpoint keeps from step to step against that of the reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pfl_bench.client.optimizers import optimizer_form
from privacy.audit.recomputed_noise import ULP
from privacy.reference.central import Optimizer
from privacy.reference.round import State

# Relative: numbers that other orders of additions alone change, such as the time on the clock.
CLOCK = 1e-9
# Distance that rounding explains of a moment, shape (P,), by its name.
OfMoment = Callable[[str, Tensor], float]
# Roundings of float32 that each vector of noise may be off by in a round.
_ROUNDINGS = 8.0


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
