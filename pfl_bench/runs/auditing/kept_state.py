"""Holds what a run keeps, in checkpoints and of canaries, against rounds and steps done again."""

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
from pfl_bench.federated.canaries import build_canaries, canary_result
from pfl_bench.files import read_json, to_json_value
from pfl_bench.runs.auditing.opened import OpenedRun
from pfl_bench.runs.checkpoint import load, restoring
from privacy.audit.inputs import json_equal
from privacy.audit.recomputed_noise import ULP, recorded_number
from privacy.audit.rounding import is_same_sketch, of_moment
from privacy.empirical.canary_options import CanaryOptions
from privacy.reference.central import Optimizer
from privacy.reference.round import Round, State

# Relative: numbers that other orders of additions alone change, such as the time on the clock.
CLOCK = 1e-9
# Distance that rounding explains of a moment, shape (P,), by its name.
OfMoment = Callable[[str, Tensor], float]
Array = NDArray[np.float64]
# Roundings of float32 that each vector of noise may be off by in a round.
_ROUNDINGS = 8.0
# Relative: noise is recorded as the released sum less that of the data, in float64.
_OF_NOISE = 1e-6
# Relative, of all scores together: what rounding of sums and products alone moves is far less.
_OF_SCORES = 1e-3
# Scores may be off by so many times the part of a round that rounding explains.
_TIMES = 4.0
# Methods whose bound follows from sums that are in no file; of others the scores are.
_OF_SUMS = ("one_run_gaussian", "one_run_independent")


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


class SeenCanaries:
    """The canaries of a run, shown rounds of the reference in place of the run's own.

    Args:
        run: With canaries, and data that are open.
        options: Those of its canaries.
        seed: The private seed.
        initial: Central parameters before the first round, shape (P,).
    """

    def __init__(self, run: OpenedRun, options: CanaryOptions, seed: int, initial: Tensor) -> None:
        plan = run.federated[2]
        assert plan is not None
        self._canaries = build_canaries(options, plan, seed, initial.device)
        self._plan, self._folder, self._initial = plan, run.folder, initial
        self._near, self._moved = _OF_SCORES, 0.0

    def load(self, saved: Mapping[str, Any]) -> None:
        """Go on from what a checkpoint has."""
        self._canaries.load_state_dict(saved)

    def see(self, number: int, made: Round) -> None:
        """Show them a round, from 1; PrivacyError if it is not finite."""
        assert made.reports is not None
        self._canaries.know_others(made.reports.float())
        self._canaries.updates(number, made.bound)
        mean = (made.total + made.noise) / self._plan.request.cohort_size
        moved = made.central - self._initial
        self._canaries.observe(number, mean.float(), moved)
        self._moved = float(moved.norm())

    def allow(self, share: float, central: float) -> None:
        """Take what rounding explains: of the round a part, of the central parameters a distance.

        It is called after each round that was seen, and what is explained of one stays.
        """
        away = central / self._moved if self._moved else 0.0
        self._near = max(self._near, _TIMES * share, _TIMES * away)

    def others(self, saved: Mapping[str, Any]) -> Iterator[str]:
        """Problems of what a checkpoint has of their scores, in words."""
        own = self._canaries.state_dict()["scores"]
        return other_values("checkpoint's canaries.scores", saved["scores"], own, self._most)

    def others_on_file(self, rounds: int) -> Iterator[str]:
        """Problems of what ``canaries.json`` has after so many rounds, the last, in words."""
        found = read_json(self._folder / "canaries.json")
        if found is None:
            return
        own = canary_result(self._canaries, self._plan, rounds)
        bound = ("lower_bound",) if own["method"] in _OF_SUMS else ()
        for key in ("scores", "trials", *bound):
            value = own.get(key)
            known = torch.tensor(value) if isinstance(value, list) else value
            try:
                if known is not None:
                    yield from other_values(f"canaries' {key}", found[key], known, self._most)
            except (KeyError, TypeError, ValueError, RuntimeError):
                yield f"canaries.json has no {key} of such a form as canaries give"

    def _most(self, known: Tensor) -> float:
        # Of one number, such as a count, a part of 1 too.
        return self._near * max(float(known.double().norm()), float(known.dim() == 0))
