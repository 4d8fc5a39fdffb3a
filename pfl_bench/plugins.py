"""Plug-ins by folder scan: a name in a configuration becomes a module, loaded when first used.

A task is a folder ``tasks/<name>/`` with ``task.py`` and ``models.py``; algorithms, mechanisms and
metrics are one file each. Every plug-in module exposes a pydantic model ``Options`` and a function,
``build`` for most kinds. Nothing is registered by hand, and nothing is imported that is not asked
for.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

from pydantic import BaseModel

from pfl_bench.types import PluginError, did_you_mean

_Base = TypeVar("_Base")


@dataclass(frozen=True, slots=True)
class PluginKind:
    """A kind of plug-in and where its modules are.

    Attributes:
        word: What messages call it.
        package: Package that is scanned.
        module: Module inside a plug-in's folder; None when a plug-in is one file.
        function: What its modules expose beside ``Options``.
        has_options: Whether its modules have ``Options``.
    """

    word: str
    package: str
    module: str | None = None
    function: str = "build"
    has_options: bool = True


TASK = PluginKind("task", "tasks", "task")
MODEL = PluginKind("task's models", "tasks", "models")
PREPARE = PluginKind("preparable task", "tasks", "prepare", "prepare")
GENERATE = PluginKind("task with a generator", "tasks", "generate", "generate")
STATISTICS = PluginKind("task with statistics", "tasks", "statistics", "statistics")
CATALOGUE = PluginKind("catalogue of data sets", "tasks.common", "catalogue", "DATA_SETS", False)
ALGORITHM = PluginKind("algorithm", "pfl_bench.federated.algorithms")
MECHANISM = PluginKind("mechanism", "privacy.mechanisms")
METRIC = PluginKind("metric family", "pfl_bench.metrics")
ENGINE = PluginKind("engine", "pfl_bench.client.engines")
AGGREGATION = PluginKind("aggregation", "pfl_bench.federated.aggregation")
COMPRESSION = PluginKind("compression", "pfl_bench.federated.compression")
SELECTION = PluginKind("selection", "pfl_bench.simulation.selection")

# Kinds with options.
KINDS = (
    TASK,
    MODEL,
    PREPARE,
    GENERATE,
    STATISTICS,
    ALGORITHM,
    MECHANISM,
    METRIC,
    ENGINE,
    AGGREGATION,
    COMPRESSION,
    SELECTION,
)


def available(kind: PluginKind) -> list[str]:
    """List the names of all plug-ins of a kind, sorted, without importing them."""
    spec = importlib.util.find_spec(kind.package)
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    names = set()
    for folder in map(Path, folders):
        if kind.module is None:
            names |= {p.stem for p in folder.glob("*.py") if not p.stem.startswith("_")}
        else:
            names |= {p.parent.name for p in folder.glob(f"*/{kind.module}.py")}
    return sorted(names)


def load(kind: PluginKind, name: str) -> ModuleType:
    """Import the plug-in ``name`` of a kind.

    Raises:
        PluginError: There is none of that name (with the nearest one), or its module lacks
            ``Options`` or the kind's function.
    """
    names = available(kind)
    if name not in names:
        hint = did_you_mean(name, names, ".")
        raise PluginError(f"no {kind.word} named '{name}'{hint} There are: {', '.join(names)}.")
    path = f"{kind.package}.{name}" + (f".{kind.module}" if kind.module else "")
    module = importlib.import_module(path)
    wanted = ("Options", kind.function) if kind.has_options else (kind.function,)
    missing = [attribute for attribute in wanted if not hasattr(module, attribute)]
    if missing:
        model = "a pydantic model 'Options' and " if kind.has_options else ""
        raise PluginError(
            f"plug-in module {path} lacks {' and '.join(missing)}: a {kind.word} exposes {model}"
            f"'{kind.function}'."
        )
    return module


def options_type(kind: PluginKind, name: str) -> type[BaseModel]:
    """The typed options of a plug-in."""
    return cast("type[BaseModel]", load(kind, name).Options)


def build(kind: PluginKind, name: str, options: BaseModel, *args: Any) -> Any:
    """Build a plug-in from validated options."""
    return load(kind, name).build(options, *args)


def checked(built: object, base: type[_Base], kind: PluginKind, name: str) -> _Base:
    """What a plug-in has built, if it derives from the base of its kind.

    Raises:
        PluginError: It does not.
    """
    if not isinstance(built, base):
        raise PluginError(
            f"the {kind.word} '{name}' builds a {type(built).__name__}, which does not derive from "
            f"{base.__module__}.{base.__name__}; derive its class from it, which has the defaults "
            "of all that a plug-in need not say"
        )
    return built
