"""Plug-ins by name: a name in a configuration becomes a module, loaded when first used.

A task is a folder with ``task.py`` and ``models.py``; each other plug-in is one file. Every plug-in
module exposes a function, ``build`` for most kinds, and a pydantic model ``Options`` (except a
launcher). Nothing is registered by hand, and nothing is imported that is not asked for. Plug-ins
are found in three places, and a name that two places have is refused:

* in the packages of this distribution (``tasks``, ``pfl_bench.federated.algorithms``, ...);
* in folders of the user (``add_folder``, ``--plugins DIR``, ``plugins:`` in a row), which have a
  subfolder a kind: ``DIR/algorithms/momentum.py``, ``DIR/tasks/coins/task.py``;
* in installed packages, by entry points in the groups ``pfl_bench.tasks``,
  ``pfl_bench.algorithms``, ...: the name is the plug-in's, the value its module (a task's folder).
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

from pydantic import BaseModel

from pfl_bench.types import PluginError, did_you_mean, ended_by_signal

_Base = TypeVar("_Base")

FOLDERS = "PFL_BENCH_PLUGINS"
"""Environment variable of the user's folders, which worker processes inherit."""

# The folders' modules are submodules of this one: DIR/algorithms/momentum.py is
# pfl_bench.plugins.algorithms.momentum, in worker processes too.
__path__ = [folder for folder in os.environ.get(FOLDERS, "").split(os.pathsep) if folder]


@dataclass(frozen=True, slots=True)
class PluginKind:
    """A kind of plug-in and where its modules are.

    Attributes:
        word: What messages call it.
        package: Package of this distribution that is scanned.
        group: Subfolder of a user's folder, and last part of the group of entry points; None where
            users cannot bring their own.
        module: Module inside a plug-in's folder; None when a plug-in is one file.
        function: What its modules expose beside ``Options``.
        has_options: Whether its modules have ``Options``.
    """

    word: str
    package: str
    group: str | None = None
    module: str | None = None
    function: str = "build"
    has_options: bool = True

    @property
    def one(self) -> str:
        """Its word with the article."""
        return f"{'an' if self.word[0] in 'aeiou' else 'a'} {self.word}"


TASK = PluginKind("task", "tasks", "tasks", "task")
MODEL = PluginKind("task's models", "tasks", "tasks", "models")
PREPARE = PluginKind("preparable task", "tasks", "tasks", "prepare", "prepare")
GENERATE = PluginKind("task with a generator", "tasks", "tasks", "generate", "generate")
STATISTICS = PluginKind("task with statistics", "tasks", "tasks", "statistics", "statistics")
CATALOGUE = PluginKind(
    "catalogue of data sets", "tasks.common", None, "catalogue", "DATA_SETS", False
)
ALGORITHM = PluginKind("algorithm", "pfl_bench.federated.algorithms", "algorithms")
MECHANISM = PluginKind("mechanism", "privacy.mechanisms", "mechanisms")
METRIC = PluginKind("metric family", "pfl_bench.metrics", "metrics")
ENGINE = PluginKind("engine", "pfl_bench.client.engines")
AGGREGATION = PluginKind("aggregation", "pfl_bench.federated.aggregation", "aggregations")
COMPRESSION = PluginKind("compression", "pfl_bench.federated.compression", "compressions")
SELECTION = PluginKind("selection", "pfl_bench.simulation.selection", "selectors")
DEVICES = PluginKind("device source", "pfl_bench.simulation.device_sources", "devices")
ATTACK = PluginKind("attack", "pfl_bench.simulation.attacks", "attacks")
TRACKER = PluginKind("tracker", "pfl_bench.runs.trackers", "trackers")
LAUNCHER = PluginKind("launcher", "pfl_bench.runs.launchers", "launchers", has_options=False)

KINDS = (
    *(TASK, MODEL, PREPARE, GENERATE, STATISTICS, ALGORITHM, MECHANISM, METRIC),
    *(ENGINE, AGGREGATION, COMPRESSION, SELECTION, DEVICES, ATTACK, TRACKER, LAUNCHER),
)
GROUPS = tuple(dict.fromkeys(kind.group for kind in KINDS if kind.group is not None))


def add_folder(folder: Path) -> None:
    """Find plug-ins in a user's folder too; PluginError if it has no subfolder of ``GROUPS``."""
    place = str(folder.resolve())
    if place in __path__:
        return
    if os.pathsep in place:
        raise PluginError(f"plugins: {folder}: a path with {os.pathsep!r} in it cannot be used")
    if not any((folder / group).is_dir() for group in GROUPS):
        inside = [path.parent for path in sorted(folder.glob("*/*")) if path.name in GROUPS]
        example = f"which {inside[0]} has" if inside else f"as {folder / 'algorithms/mine.py'}"
        raise PluginError(
            f"plugins: {folder} {'has none' if folder.is_dir() else 'is no folder'}: a folder of "
            f"plug-ins has at least one of the subfolders {', '.join(GROUPS)}, {example}"
        )
    __path__.append(place)
    os.environ[FOLDERS] = os.pathsep.join(__path__)
    importlib.invalidate_caches()


def in_folder(kind: PluginKind, folder: Path) -> list[str]:
    """List the names of the plug-ins of a kind that a user's folder has, sorted."""
    if kind.group is None:
        return []
    return sorted(name for name, _ in _in_folders(kind, "", [str(folder / kind.group)]))


def user_files() -> dict[str, list[tuple[str, Path]]]:
    """Python files that the user's plug-ins consist of, each with its relative path and its path.

    Of a folder and of an installed package these are all of its files, helpers among them, of an
    installed module its file. Keys are the folder's path, and the package's or module's name.

    Raises:
        PluginError: An installed plug-in has no file, so that its code cannot be told from another.
    """
    found = {folder: python_files(Path(folder)) for folder in __path__}
    modules = {module for each in _entry_points().values() for _, module, _ in each}
    for root in sorted({module.partition(".")[0] for module in modules}):
        if not root or importlib.util.find_spec(root) is None:
            continue  # It is not there, which ``spec_of`` says.
        found[root] = _installed_files(root)
        if not found[root]:
            raise PluginError(
                f"the installed package '{root}' offers plug-ins, but has no Python files, which "
                "the seed of a private run's noise is derived from; install it as .py files, or "
                "uninstall it"
            )
    return found


def _installed_files(root: str) -> list[tuple[str, Path]]:
    spec = importlib.util.find_spec(root)
    assert spec is not None
    if spec.submodule_search_locations is not None:
        return [f for place in spec.submodule_search_locations for f in python_files(Path(place))]
    file = Path(spec.origin or "")
    return [(file.name, file)] if file.is_file() else []


def python_files(folder: Path) -> list[tuple[str, Path]]:
    """The modules' files in a folder, with their relative paths, in the order of these."""
    found = ((path.relative_to(folder), path) for path in sorted(folder.rglob("*.py")))
    # Editors leave locks and copies there, whose names begin with a dot.
    return [
        (place.as_posix(), path)
        for place, path in found
        if path.is_file() and not any(part.startswith(".") for part in place.parts)
    ]


def available(kind: PluginKind) -> list[str]:
    """List the names of all plug-ins of a kind, sorted, without importing them."""
    return sorted({name for name, _ in _modules(kind)})


def load(kind: PluginKind, name: str) -> ModuleType:
    """Import the plug-in ``name`` of a kind.

    Raises:
        PluginError: As ``spec_of`` says, or its module lacks ``Options`` or the kind's function, or
            ``Options`` is no pydantic model.
    """
    path = spec_of(kind, name).name
    module = importlib.import_module(path)
    wanted = ("Options", kind.function) if kind.has_options else (kind.function,)
    missing = [attribute for attribute in wanted if not hasattr(module, attribute)]
    if missing:
        model = "a pydantic model 'Options' and " if kind.has_options else ""
        raise PluginError(
            f"plug-in module {path} ({_file_of(path)}) lacks {' and '.join(missing)}: "
            f"{kind.word} exposes {model}'{kind.function}'."
        )
    if kind.has_options and not (
        isinstance(own := module.Options, type) and issubclass(own, BaseModel) and own != BaseModel
    ):
        raise PluginError(
            f"plug-in module {path} ({_file_of(path)}): Options is {own!r:.80}, no pydantic model "
            "of its own; derive a class from pydantic.BaseModel"
        )
    return module


def module_of(kind: PluginKind, name: str) -> str:
    """Dotted module of the plug-in ``name`` of a kind, which is not imported.

    Raises:
        PluginError: There is none of that name (with the nearest one), or several places have one.
    """
    places = sorted({module for found, module in _modules(kind) if found == name})
    if len(places) > 1:
        # One file that is found twice: in a folder, and as part of an installed package.
        files = {os.path.realpath(_file_of(place)): place for place in reversed(places)}
        places = sorted(files.values())
    if not places:
        names = available(kind)
        hint = did_you_mean(name, names, ".")
        raise PluginError(f"no {kind.word} named '{name}'{hint} There are: {', '.join(names)}.")
    if len(places) > 1:
        where = " and ".join(_file_of(place) + _package_of(kind, place) for place in places)
        raise PluginError(f"two plug-ins are the {kind.word} '{name}': {where}; rename one")
    return places[0]


def spec_of(kind: PluginKind, name: str) -> ModuleSpec:
    """Find the module of a plug-in, which is not imported, though packages that it is in are.

    Raises:
        PluginError: As ``module_of`` says, or the entry point of an installed package names a
            module that is not there.
    """
    module = module_of(kind, name)
    spec = _find(module)
    if spec is None:
        # A file that was written a moment ago need not be in what Python remembers of its folder.
        importlib.invalidate_caches()
        spec = _find(module)
    if spec is None:
        raise PluginError(
            f"the {kind.word} '{name}'{_package_of(kind, module)}: there is no module '{module}', "
            "which its entry point names (NAME = PACKAGE.MODULE, without an attribute): install "
            "that package anew, or uninstall it"
        )
    return spec


def _find(module: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(module) if all(module.split(".")) else None
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise  # what the package itself imports
        return None


def origin_of(kind: PluginKind, name: str) -> str | None:
    """Name of the user's folder or the package that has a plug-in; None for one of ours, or none.

    The name is that of its digest (``pfl_bench.client.machine.plugin_digests``).
    """
    if kind.group is None or name not in available(kind):
        return None
    module = module_of(kind, name)
    if module.startswith(f"{kind.package}."):
        return None
    if not module.startswith(f"{__name__}."):
        return module.partition(".")[0]
    file = Path(_file_of(module))
    return next(Path(folder).name for folder in __path__ if file.is_relative_to(folder))


def options_type(kind: PluginKind, name: str) -> type[BaseModel]:
    """The typed options of a plug-in."""
    return cast("type[BaseModel]", load(kind, name).Options)


def build(kind: PluginKind, name: str, options: BaseModel, *args: Any) -> Any:
    """Build a plug-in from validated options; PluginError if its ``build`` returns None."""
    built = load(kind, name).build(options, *args)
    if built is None and kind is not TRACKER:  # which its options may turn off
        file = _file_of(module_of(kind, name))
        raise PluginError(f"the {kind.word} '{name}' ({file}): build() returns None; return it")
    return built


def checked(built: object, base: type[_Base], kind: PluginKind, name: str) -> _Base:
    """The object that a plug-in has built, which has to derive from the base of its kind."""
    if not isinstance(built, base):
        raise PluginError(
            f"the {kind.word} '{name}' builds a {type(built).__name__}, which does not derive from "
            f"{base.__module__}.{base.__name__}; derive its class from it, which has the defaults "
            "of all that a plug-in need not say"
        )
    return built


def _modules(kind: PluginKind) -> Iterator[tuple[str, str]]:
    """Name and dotted module of each plug-in of a kind, wherever it is."""
    spec = importlib.util.find_spec(kind.package)
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    yield from _in_folders(kind, kind.package, folders)
    if kind.group is None:
        return
    own = [os.path.join(folder, kind.group) for folder in __path__]
    yield from _in_folders(kind, f"{__name__}.{kind.group}", own)
    for name, module, _ in _entry_points()[kind]:
        # What cannot be looked at is listed, and refused when loaded.
        if kind.module is None or _looked_at(module) is not None:
            yield name, module


def _looked_at(module: str) -> ModuleSpec | str | None:
    """A module's spec, None where there is none; its name where it cannot be looked at."""
    try:
        return importlib.util.find_spec(module) if all(module.split(".")) else module
    except (Exception, SystemExit) as error:
        if ended_by_signal(error):
            raise
        return module


def _in_folders(kind: PluginKind, package: str, folders: list[str]) -> Iterator[tuple[str, str]]:
    for folder in map(Path, folders):
        if kind.module is None:
            for path in folder.glob("*.py"):
                if not path.stem.startswith("_") and path.is_file():
                    yield path.stem, f"{package}.{path.stem}"
        else:
            for path in folder.glob(f"*/{kind.module}.py"):
                if path.is_file():
                    yield path.parent.name, f"{package}.{path.parent.name}.{kind.module}"


@cache
def _entry_points() -> dict[PluginKind, list[tuple[str, str, str]]]:
    """Name, module and, for messages, package of each installed plug-in, by kind."""
    installed = entry_points()  # It opens a file of each installed package.
    found = {}
    for kind in KINDS:
        inner = "" if kind.module is None else f".{kind.module}"
        found[kind] = [
            (entry.name, entry.value + inner, f" (package '{entry.dist and entry.dist.name}')")
            for entry in installed.select(group=f"pfl_bench.{kind.group}")
            if kind.group is not None
        ]
    return found


def _package_of(kind: PluginKind, module: str) -> str:
    return next((package for _, own, package in _entry_points().get(kind, ()) if own == module), "")


def _file_of(module: str) -> str:
    found = _looked_at(module)
    return (found.origin if isinstance(found, ModuleSpec) else None) or module
