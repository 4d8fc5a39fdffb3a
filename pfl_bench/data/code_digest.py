"""Digest of a Python object's code: of what it runs, not of how its source is laid out."""

from __future__ import annotations

import dis
import functools
import hashlib
import inspect
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import numpy as np
import torch

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis))
# What Python adds to a class by itself, or what decides nothing.
_ADDED = frozenset(
    [
        "__module__",
        "__dict__",
        "__weakref__",
        "__doc__",
        "__firstlineno__",
        "__static_attributes__",
        "__annotations__",
        "__annotate__",
        "__annotate_func__",
        "__annotations_cache__",
        "__abstractmethods__",
        "_abc_impl",
    ]
)
_FOREIGN = ("site-packages", "dist-packages", "lib/python", "Lib")


def code_digest(*objects: object) -> str:
    """Digest of functions, classes, modules of torch and values, "sha256:<hex>".

    Of a function it takes in bytecode, constants, defaults and closure; of a class its attributes
    and bases; of either all functions, classes and values of its module that it names, and what
    those name. The bytecode is hashed, not the source: a notebook has the source of the cell that
    was run last, and comments decide nothing. Of what is installed (torch, say) it takes in the
    name, and of other modules the file.
    """
    digest = hashlib.sha256()
    for part in _Walk().parts(objects):
        digest.update(f"{len(part)}:".encode() + part)
    return f"sha256:{digest.hexdigest()}"


class _Walk:
    def __init__(self) -> None:
        # By identity, in order; it keeps objects alive so that no identity comes twice.
        self._seen: dict[int, tuple[int, object]] = {}

    def parts(self, value: Any) -> Iterator[bytes]:
        if isinstance(value, _PLAIN):
            yield f"{type(value).__name__} {value!r}".encode()
            return
        if id(value) in self._seen:
            yield f"again {self._seen[id(value)][0]}".encode()
            return
        self._seen[id(value)] = (len(self._seen), value)
        yield type(value).__qualname__.encode()
        if isinstance(value, ModuleType):
            yield value.__name__.encode()
            yield from _file(value)
        elif isinstance(value, CodeType):
            yield value.co_code
            yield from self.parts([value.co_names, value.co_varnames, value.co_consts])
        elif isinstance(value, frozenset | set):
            yield from sorted(b"".join(_Walk().parts(item)) for item in value)
        elif isinstance(value, Mapping):
            for key in value:
                yield from self.parts(key)
                yield from self.parts(value[key])
        elif isinstance(value, list | tuple):
            yield str(len(value)).encode()
            for item in value:
                yield from self.parts(item)
        elif isinstance(value, torch.Tensor | np.ndarray):
            array = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value
            yield f"{array.dtype} {array.shape}".encode()
            yield array.tobytes()
        elif isinstance(value, functools.partial):
            yield from self.parts([value.func, value.args, value.keywords])
        elif inspect.isfunction(value) or inspect.isclass(value):
            yield value.__qualname__.encode()
            if _is_foreign(value.__module__):
                yield value.__module__.encode()
            else:
                yield from self._class(value) if inspect.isclass(value) else self._function(value)
        elif isinstance(value, staticmethod | classmethod) or inspect.ismethod(value):
            owner = getattr(value, "__self__", None)
            yield from self.parts([value.__func__, owner])
        elif isinstance(value, property):
            yield from self.parts([value.fget, value.fset])
        elif hasattr(value, "__dict__"):
            yield from self.parts([type(value), dict(value.__dict__)])
        else:
            shown = getattr(value, "__qualname__", None) or repr(value)
            # An address differs from process to process.
            yield str(shown).partition(" at 0x")[0].encode()

    def _function(self, function: Any) -> Iterator[bytes]:
        cells = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
        yield from self.parts([function.__code__, function.__defaults__, function.__kwdefaults__])
        yield from self.parts(cells)
        for name in sorted(_names(function.__code__)):
            if name in function.__globals__:
                yield name.encode()
                yield from self.parts(function.__globals__[name])

    def _class(self, cls: type) -> Iterator[bytes]:
        yield from self.parts(list(cls.__bases__))
        for name, value in sorted(vars(cls).items()):
            if name not in _ADDED:
                yield name.encode()
                yield from self.parts(value)


def _names(code: CodeType) -> set[str]:
    """Names of the module's globals that a function and those within it read."""
    inner = (_names(part) for part in code.co_consts if isinstance(part, CodeType))
    read = ("LOAD_GLOBAL", "LOAD_NAME")
    own = (step.argval for step in dis.get_instructions(code) if step.opname in read)
    return set(own).union(*inner)


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


@functools.cache
def _is_foreign(module: str) -> bool:
    """Whether a module is built in or installed, so that its version speaks for it."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if module == "__main__":
        return False
    return file is None or any(part in Path(file).as_posix() for part in _FOREIGN)


def _file(module: ModuleType) -> Iterator[bytes]:
    file = getattr(module, "__file__", None)
    if file is not None and not _is_foreign(module.__name__) and Path(file).is_file():
        yield Path(file).read_bytes()
