"""A device of type "mps", emulated on the CPU, for tests of code that runs on a Mac.

Its tensors compute what the CPU computes. They say that they live on "mps", refuse float64 as Metal
does, and refuse to meet tensors of the CPU in one operation, as tensors of every accelerator do.
What it cannot show: Metal's own rounding, its missing operations, and ``autograd.Function``, whose
outputs lose the mark.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import torch
import torch._dynamo  # by optimizers otherwise, when functions are patched
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

MPS = torch.device("mps")
_REAL_GENERATOR = torch.Generator
# Operations that take tensors of two devices, and questions about tensors.
_MOVES = ("cpu", "to", "copy_", "_foreach_copy_", "__getitem__", "__setitem__")
_QUESTIONS = ("_has_compatible_shallow_copy_type",)


class OnDevice(torch.Tensor):
    """A tensor that says that it is on the emulated device."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]


class _Emulation(TorchFunctionMode):
    def __init__(self, checks_devices: bool) -> None:
        super().__init__()
        self._checks_devices = checks_devices

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(function, "__name__", "")
        if name in ("__get__", "__set__"):
            name = function.__self__.__name__  # type: ignore[attr-defined]
            if name == "device" and isinstance(args[0], OnDevice):
                return MPS
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        here = _device_of_result(name, args, kwargs, inputs)
        if self._checks_devices and name not in (*_MOVES, *_QUESTIONS):
            _check_neighbours(name, inputs)
        if function is torch.device or name in ("requires_grad_", "_parse_to"):
            return function(*args, **kwargs)
        args, kwargs = tree_map(_on_cpu, (tuple(args), kwargs))
        result = function(*args, **kwargs)
        known = {id(tensor) for tensor in inputs}

        def mark(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            if id(value) in known:
                if name not in ("to", "cpu") or isinstance(value, OnDevice) == here:
                    return value
                value = value.clone()  # as a move to another memory gives
            if not here:
                return value.as_subclass(torch.Tensor) if isinstance(value, OnDevice) else value
            if value.dtype == torch.float64:
                raise TypeError(f"{name}: cannot make a float64 tensor: the MPS framework has none")
            return value if isinstance(value, OnDevice) else value.as_subclass(OnDevice)

        return tree_map(mark, result)


def _is_mps(value: Any) -> bool:
    if isinstance(value, OnDevice):
        return True
    if isinstance(value, torch.Tensor):
        return False
    return isinstance(value, torch.device | str) and str(value).partition(":")[0] == "mps"


def _device_of_result(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], inputs: Sequence[torch.Tensor]
) -> bool:
    """Whether new tensors of a call are on the emulated device."""
    if kwargs.get("device") is not None:
        return _is_mps(kwargs["device"])
    if name in ("cpu", "numpy"):
        return False
    if name == "to":
        for value in args[1:]:
            if isinstance(value, torch.Tensor | torch.device | str):
                return _is_mps(value)
    return any(isinstance(tensor, OnDevice) for tensor in inputs)


def _check_neighbours(name: str, inputs: Sequence[torch.Tensor]) -> None:
    far = any(isinstance(tensor, OnDevice) for tensor in inputs)
    if far and any(not isinstance(t, OnDevice) and t.dim() for t in inputs):
        raise RuntimeError(f"{name}: expected all tensors on the same device, found mps and cpu")


def _on_cpu(value: Any) -> Any:
    if isinstance(value, torch.Tensor) or not _is_mps(value):
        return value
    return torch.device("cpu")


@functools.wraps(torch.backends.mps.is_available)
def _available() -> bool:
    return True


def _seed(seed: int) -> None:
    torch.default_generator.manual_seed(seed)


class _Generator(torch.Generator):
    """Of the CPU, whatever the device."""

    def __new__(cls, device: torch.device) -> torch.Generator:  # type: ignore[misc]
        return _REAL_GENERATOR()


@contextlib.contextmanager
def emulated_mps(checks_devices: bool = True) -> Iterator[None]:
    """Emulate an available device "mps" within the context.

    Args:
        checks_devices: Refuse operations on tensors of the device and of the CPU together. Without
            it where backward hooks are at work, which are given tensors without the mark.
    """
    before = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        with (
            mock.patch.object(torch.backends.mps, "is_available", _available),
            mock.patch.object(torch.mps, "manual_seed", _seed),
            mock.patch.object(torch, "Generator", _Generator),
            _Emulation(checks_devices),
        ):
            yield
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(before)
