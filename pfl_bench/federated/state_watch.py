"""Refuses plug-ins whose state a checkpoint would not hold: they would resume wrongly, unseen."""

from __future__ import annotations

import copy
import hashlib
import random
from collections.abc import Iterator, Mapping, MutableMapping, MutableSequence, MutableSet
from dataclasses import is_dataclass
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel
from torch import Tensor

from pfl_bench.types import PluginError, Stateful, is_of_user
from pfl_bench.types.state import attributes, is_plain

# What changes as it is used, and is not among what ``Stateful`` can save.
_UNSAVABLE = (
    torch.Generator, torch.optim.Optimizer, torch.nn.Module,
    np.random.Generator, np.random.RandomState, random.Random,
    Iterator, MutableMapping, MutableSequence, MutableSet,
)  # fmt: skip
# Calls do not change these, or ``Stateful`` saves what they change.
_FIXED = (FunctionType, BuiltinFunctionType, MethodType, ModuleType, type, BaseModel, Stateful)


class StateWatch:
    """Watches the plug-ins of a run, by what messages call them, through their first round.

    One that keeps what cannot be saved is refused at once, and one that writes ``state_dict`` or
    ``load_state_dict`` alone.
    """

    def __init__(self, parts: Mapping[str, Stateful]) -> None:
        self._parts = parts
        self._before: dict[str, dict[str, Any]] = {}
        for label, part in parts.items():
            _check_types(label, part)

    def begin(self) -> None:
        """Take note of what there is before the first round of this process."""
        self._before = {
            label: {name: _snapshot(value) for name, value in attributes(part).items()}
            for label, part in self._parts.items()
        }

    def check(self, index: int) -> None:
        """Check, once, what a round that has ended has changed: ``state_dict`` must hold it."""
        for label, before in self._before.items():
            part = self._parts[label]
            state = part.state_dict()
            for name, value in attributes(part).items():
                is_held = name in state or name.strip("_") in state or _is_among(value, state)
                if _snapshot(value) != before.get(name) and not is_held:
                    raise PluginError(
                        f"{label}: its attribute '{name}' changed in round {index}, but its "
                        "state_dict() does not hold it: a resumed run would go on with another "
                        f"value. {_mend(name, value)}; or name it in the class's 'scratch' if "
                        "nothing of it lasts to the next round"
                    )
        self._before = {}


class ClientWatch:
    """Refuses a user's plug-ins if what clients send rests on state that only one process has.

    ``clients`` must not change while clients train, and ``centre`` never: what the centre changes
    does not reach the clients of other processes. By what messages call them; ``reason`` says what
    is wrong with it, and how to mend it.
    """

    def __init__(self, clients: Mapping[str, Any], centre: Mapping[str, Any], reason: str) -> None:
        self._clients, self._centre = (
            {label: part for label, part in parts.items() if is_of_user(type(part))}
            for parts in (clients, centre)
        )
        self._reason = reason
        self._fixed = {label: _values(part) for label, part in self._centre.items()}
        self._before: dict[str, dict[str, Any]] = {}

    def begin(self) -> None:
        """Take note of what there is before clients of a round are trained."""
        self._compare(self._centre, self._fixed, "at the centre, between two rounds or on resuming")
        self._before = {label: _values(part) for label, part in self._clients.items()}

    def check(self) -> None:
        """Check what training has changed, before anything of it is released."""
        self._compare(self._clients, self._before, "while clients were trained")

    def _compare(
        self, parts: Mapping[str, Any], before: Mapping[str, dict[str, Any]], when: str
    ) -> None:
        for label, part in parts.items():
            for name, value in _values(part, is_copied=False).items():
                if name not in before[label] or not _equal(value, before[label][name]):
                    raise PluginError(
                        f"{label}: its attribute '{name}' changed {when}, {self._reason}; or name "
                        "it in its class's 'scratch' if nothing of it lasts to the next client"
                    )


def _values(part: Any, is_copied: bool = True) -> dict[str, Any]:
    """Values of a plug-in, and of those that it refers to, that can be saved, by name."""
    others = {f"{name}.": it for name, it in attributes(part).items() if isinstance(it, Stateful)}
    found = {
        f"{prefix}{key}": value
        for prefix, one in {"": part, **others}.items()
        # A state of its own may leave attributes out, and hold what is none.
        for key, value in {**Stateful.state_dict(one), **one.state_dict()}.items()
    }
    return copy.deepcopy(found) if is_copied else found


def _check_types(label: str, part: Stateful) -> None:
    kind = type(part)
    writes, reads = (
        getattr(kind, name) is not getattr(Stateful, name)
        for name in ("state_dict", "load_state_dict")
    )
    if writes != reads:
        there, missing = ("state_dict", "load_state_dict")[:: 1 if writes else -1]
        raise PluginError(
            f"{label}: it has a {there}() of its own but no {missing}(), so that a run could not "
            "be resumed; write both, or neither"
        )
    for name, value in attributes(part).items() if not writes else ():
        found = _unsavable(value)
        if found is not None:
            raise PluginError(
                f"{label}: its attribute '{name}' is a {type(found).__name__}, which changes as it "
                f"is used and which a checkpoint cannot hold. {_mend(name, found)}"
            )


def _mend(name: str, value: Any) -> str:
    if is_plain(value):
        return f"Add '{name}' to state_dict() and load_state_dict()"
    return (
        "Keep a tensor, an array, numbers, texts, or a list, tuple or dict of them instead, or "
        f"write state_dict() and load_state_dict() that hold what '{name}' comes to"
    )


def _unsavable(value: Any) -> Any:
    """The value, or what it holds, that cannot be saved; None where all can."""
    if is_plain(value):
        return None
    if type(value) in (list, tuple, dict):
        items = value.values() if isinstance(value, dict) else value
        return next((found for item in items if (found := _unsavable(item)) is not None), None)
    return value if isinstance(value, _UNSAVABLE) else None


class _Version:
    """A tensor as it is now: PyTorch counts what is written to it in place."""

    def __init__(self, tensor: Tensor) -> None:
        # Held, so that no other tensor can take its place in memory meanwhile.
        self._tensor = tensor
        self._version = tensor._version

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Version)
            and self._tensor is other._tensor
            and self._version == other._version
        )

    __hash__ = None  # type: ignore[assignment]


def _snapshot(value: Any, depth: int = 3) -> Any:
    """Something that compares unequal once a value has changed; tensors are not copied."""
    if isinstance(value, Tensor):
        return _Version(value)
    if isinstance(value, np.ndarray):
        return value.shape, str(value.dtype), hashlib.sha256(value.tobytes()).hexdigest()
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, torch.Generator):
        return value.get_state().tolist()
    if isinstance(value, Mapping):
        return [(repr(key), _snapshot(item, depth)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return [type(value), *(_snapshot(item, depth) for item in value)]
    is_frozen = is_dataclass(value) and value.__dataclass_params__.frozen  # type: ignore[union-attr]
    own = {} if isinstance(value, _FIXED) or is_frozen or not depth else attributes(value)
    if own:
        return id(value), {name: _snapshot(item, depth - 1) for name, item in own.items()}
    is_number = value is None or isinstance(value, (bool, int, float, str, np.generic, set))
    return repr(value) if is_number else id(value)


def _is_among(value: Any, state: Any) -> bool:
    """Whether a saved state holds a value somewhere, under whatever name."""
    if _equal(value, state):
        return True
    items = state.values() if isinstance(state, Mapping) else state
    return isinstance(state, (Mapping, list, tuple)) and any(_is_among(value, i) for i in items)


def _equal(value: Any, saved: Any) -> bool:
    if value is saved:
        return True
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(np.array(value))
    if isinstance(saved, np.ndarray):
        saved = torch.from_numpy(np.array(saved))
    if isinstance(value, Tensor) and isinstance(saved, Tensor):
        return value.dtype == saved.dtype and torch.equal(value.cpu(), saved.cpu())
    if isinstance(value, Mapping) and isinstance(saved, Mapping):
        return value.keys() == saved.keys() and all(_equal(value[k], saved[k]) for k in value)
    if isinstance(value, (list, tuple)) and isinstance(saved, (list, tuple)):
        return len(value) == len(saved) and all(map(_equal, value, saved))
    numbers = (bool, int, float, str)
    return isinstance(value, numbers) and isinstance(saved, numbers) and repr(value) == repr(saved)
