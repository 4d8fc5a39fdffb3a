"""State that lives from round to round: what a checkpoint holds of a plug-in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Marks, in a saved state, a value that is not saved as it is.
_KIND = "pfl_bench.kind"


class Stateful:
    """Base of plug-ins that may carry something from one round to the next.

    A checkpoint holds what ``state_dict`` gives. By default that is every attribute whose value is
    a tensor, an array, a number, a text or None, or a list, tuple or mapping of these. A plug-in
    that keeps anything else, such as a random generator or an optimizer, writes both methods
    itself; without them it is refused as the run starts. After the first round a run is refused
    too whose plug-in has changed an attribute that ``state_dict`` does not hold.

    Attributes:
        scratch: Names of attributes that change but carry nothing into the next round, such as
            buffers that are overwritten.
    """

    scratch: tuple[str, ...] = ()

    def state_dict(self) -> dict[str, Any]:
        """All that changes from round to round: tensors, numbers, texts, lists and mappings."""
        return {
            name: _encoded(value) for name, value in attributes(self).items() if is_plain(value)
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` gave; a tensor that is there already is filled in place."""
        own = attributes(self)
        for name, saved in state.items():
            value = _decoded(saved)
            if _fills(own.get(name), value):
                own[name].copy_(value)
            else:
                # Frozen dataclasses too.
                object.__setattr__(self, name, value)


def attributes(part: object) -> dict[str, Any]:
    """The attributes of an instance by name, in slots or not, without its ``scratch``."""
    slots = [name for kind in type(part).__mro__ for name in _slots_of(kind)]
    found = {name: getattr(part, name) for name in slots if hasattr(part, name)}
    found |= getattr(part, "__dict__", {})
    scratch = getattr(part, "scratch", ())
    return {name: value for name, value in found.items() if name not in scratch}


def _slots_of(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


def is_plain(value: Any) -> bool:
    """Whether a checkpoint can hold a value as it is, or as ``Stateful`` encodes it."""
    import numpy as np
    import torch

    if value is None or isinstance(value, (bool, int, float, str, torch.Tensor)):
        return True
    if isinstance(value, (np.ndarray, np.generic)):
        return value.dtype.kind in "biuf"
    if type(value) in (list, tuple):
        return all(is_plain(item) for item in value)
    if type(value) is dict:
        return all(isinstance(key, (int, str)) and is_plain(v) for key, v in value.items())
    return False


def _encoded(value: Any) -> Any:
    import numpy as np
    import torch

    if isinstance(value, (np.ndarray, np.generic)):
        return {_KIND: "array", "value": torch.from_numpy(np.array(value))}
    if isinstance(value, torch.Tensor):
        value = value.detach()
        if value.device.type == "cpu":
            return value
        # Checkpoints are read into main memory.
        return {_KIND: str(value.device), "value": value}
    if isinstance(value, (list, tuple)):
        return type(value)(_encoded(item) for item in value)
    if isinstance(value, dict):
        return {key: _encoded(item) for key, item in value.items()}
    return value


def _decoded(saved: Any) -> Any:
    if isinstance(saved, Mapping) and _KIND in saved:
        value = saved["value"]
        # An array without axes comes back as the number that it was.
        return value.numpy()[()] if saved[_KIND] == "array" else value.to(saved[_KIND])
    if isinstance(saved, (list, tuple)):
        return type(saved)(_decoded(item) for item in saved)
    if isinstance(saved, Mapping):
        return {key: _decoded(item) for key, item in saved.items()}
    return saved


def _fills(there: Any, value: Any) -> bool:
    import torch

    return (
        isinstance(there, torch.Tensor)
        and isinstance(value, torch.Tensor)
        and (there.shape, there.dtype, there.requires_grad) == (value.shape, value.dtype, False)
    )
