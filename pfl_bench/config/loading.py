"""Reading a configuration: overrides, plug-in options, errors with a place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from pfl_bench import plugins
from pfl_bench.config.errors import Given
from pfl_bench.config.row_differences import from_head, head_lines, is_harmless, row_differences
from pfl_bench.config.row_files import claimed_rows
from pfl_bench.config.schema import CONFIG_VERSION, RunConfig
from pfl_bench.config.sections import ATTACK_SPLIT
from pfl_bench.config.yaml_text import read_yaml, with_overrides
from pfl_bench.files import read_json
from pfl_bench.types import ConfigError, PluginError

M = TypeVar("M", bound=BaseModel)

# What changes how a run is computed or watched, not what it releases.
_NOT_TRAINING = {
    "": (
        *("name", "plugins", "device", "num_threads"),
        *("evaluation", "checkpoint", "logging", "expected"),
    ),
    "federated": ("engine", "engine_lanes", "data_workers", "workers"),
    "central": ("data_workers",),
}

# What the tensors of a run hold: 64 bits of a whole number, 32 of a float.
_LARGEST = {int: 2.0**63, float: 3.4e38}

RECORD_NAME = "config.yaml"
"""The configuration in a run folder: the record of a run, which names no code to import."""

# The plug-ins of sections, in the order in which they are checked.
_PLUGINS = {
    "federated.aggregation": plugins.AGGREGATION,
    "federated.compression": plugins.COMPRESSION,
    "federated.selection": plugins.SELECTION,
    "systems.source": plugins.DEVICES,
    "federated.algorithm": plugins.ALGORITHM,
    "privacy.mechanism": plugins.MECHANISM,
}


@dataclass(frozen=True)
class ResolvedConfig:
    """A configuration that is complete and valid.

    Attributes:
        config: The typed configuration.
        task_options: Options of the task plug-in.
        model_options: Options of the model, its name among them.
        algorithm_options: Options of the algorithm; None for central training.
        mechanism_options: Options of the mechanism; None without ``privacy``.
        federated_options: Options of the other plug-ins of ``federated`` and ``systems``, by their
            key, such as "aggregation"; without those that are null.
        tree: The whole as plain data, every default filled in.
        overrides: The ``key=value`` texts that were given.
        source: The file that it was read from.
        not_the_row: How it differs from the row in that file, or from the bundled row whose name or
            source of a number it has; a text each difference, empty for a configuration that is the
            row.
        attack_options: Options of the attack; None without ``attack``.
        tracker_options: Options of the trackers, by their names.
    """

    config: RunConfig
    task_options: BaseModel
    model_options: BaseModel
    algorithm_options: BaseModel | None
    mechanism_options: BaseModel | None
    federated_options: Mapping[str, BaseModel]
    tree: dict[str, Any]
    overrides: tuple[str, ...]
    source: Path
    not_the_row: tuple[str, ...] = ()
    attack_options: BaseModel | None = None
    tracker_options: Mapping[str, BaseModel] = field(default_factory=dict)

    @property
    def training_tree(self) -> dict[str, Any]:
        """The parts of the tree that decide what the run trains and releases."""
        kept = {key: value for key, value in self.tree.items() if key not in _NOT_TRAINING[""]}
        for section in ("federated", "central"):
            left_out = _NOT_TRAINING[section]
            parts = kept[section] or {}
            kept[section] = {key: value for key, value in parts.items() if key not in left_out}
        return kept

    @property
    def used_plugins(self) -> set[tuple[plugins.PluginKind, str]]:
        """Kind and name of each plug-in that it names."""
        used = {(plugins.TASK, self.tree["task"]["name"])}
        for where, kind in _PLUGINS.items():
            section, key = where.split(".")
            part = (self.tree[section] or {}).get(key) or {}
            used |= {(kind, part["name"])} if "name" in part else set()
        if self.config.attack is not None:
            used.add((plugins.ATTACK, self.config.attack.kind))
        used |= {(plugins.METRIC, name) for name in self.config.evaluation.metrics}
        return used | {(plugins.TRACKER, name) for name in self.tracker_options}

    @property
    def plugin_origins(self) -> set[str]:
        """Names of the user's folders and packages that it names, or takes a plug-in from."""
        found = {plugins.origin_of(kind, name) for kind, name in self.used_plugins}
        folders = {Path(folder).name for folder in self.config.plugins}
        return folders | {name for name in found if name is not None}

    def to_yaml(self) -> str:
        """The resolved configuration as YAML, overridden keys listed in its head."""
        head = ["# Resolved configuration: every default is filled in."]
        head += [f"# override: {text}" for text in self.overrides]
        head += head_lines(self.not_the_row)
        body: str = yaml.safe_dump(self.tree, sort_keys=False, allow_unicode=True)
        return "\n".join(head) + "\n" + body


def load_config(path: Path, overrides: Sequence[str] = ()) -> ResolvedConfig:
    """Read a configuration file and resolve it, overrides ``dotted.key=value`` winning over it.

    Raises:
        ConfigError: The file or an override is wrong; the message has file, dotted path, what is
            allowed and the nearest name.
    """
    row = read_yaml(path)
    tree = with_overrides(row, overrides)
    resolved = resolve(tree, path, tuple(overrides))
    # A run folder's config.yaml is the copy of a row, and says so where it is of no row.
    differences = from_head(path.read_text(encoding="utf-8"))
    if not all(is_harmless(text.partition("=")[0].strip()) for text in overrides):
        differences += _differences(row, path, tree, resolved.tree)
    differences += claim_differences(path, resolved.tree)
    return replace(resolved, not_the_row=tuple(dict.fromkeys(differences)))


def claim_differences(path: Path, tree: Mapping[str, Any]) -> tuple[str, ...]:
    """Differences of a resolved configuration, of a file, from the nearest row that it claims."""
    rows = claimed_rows(path, tree)
    return min((_differences(read_yaml(row), row, tree, tree) for row in rows), key=len, default=())


def _differences(
    row: dict[str, Any], path: Path, tree: Mapping[str, Any], resolved: Mapping[str, Any]
) -> tuple[str, ...]:
    """Differences of a configuration from a row's file alone."""
    try:
        alone = resolve(row, path, ())
    except ConfigError:
        # The file needs the overrides: nothing can be filled in, so it is compared as written.
        return row_differences(row, tree)
    return row_differences(alone.tree, resolved)


def resolve(tree: Mapping[str, Any], path: Path, overrides: tuple[str, ...]) -> ResolvedConfig:
    """Check a configuration tree against the core's and the plug-ins' types."""
    given = Given(path, overrides)
    _check_version(tree, given)
    config = validate_tree(RunConfig, tree, "", given)
    folders = _add_plugins(config.plugins, given)
    task, task_options = _plugin(plugins.TASK, config.task, "task", given)
    model_type = plugins.options_type(plugins.MODEL, task)
    model_options = validate_tree(model_type, config.model, "model", given)
    resolved = config.model_dump(mode="json")
    resolved["plugins"] = folders
    resolved["task"] = {"name": task, **task_options.model_dump(mode="json")}
    resolved["model"] = model_options.model_dump(mode="json")
    found: dict[str, BaseModel] = {}
    for where, kind in _PLUGINS.items():
        section, key = where.split(".")
        part = getattr(getattr(config, section), key, None)
        if where == "federated.selection" and part is None and config.systems is not None:
            part = {"name": "available"}
        if part is not None:
            name, found[where] = _plugin(kind, part, where, given)
            resolved[section][key] = {"name": name, **found[where].model_dump(mode="json")}
    if config.federated is not None and config.federated.engine != "auto":
        with _blaming("federated.engine", given):
            plugins.load(plugins.ENGINE, config.federated.engine)
    attack_options = _attack_options(config, given)
    _check_numbers(tree, "", given)
    if config.attack is not None and attack_options is not None:
        own = attack_options.model_dump(mode="json")
        resolved["attack"] = {**config.attack.shared, **own}
    trackers = _tracker_options(config, given)
    resolved["logging"] = {name: own.model_dump(mode="json") for name, own in trackers.items()}
    return ResolvedConfig(
        validate_tree(RunConfig, resolved, "", given),
        task_options,
        model_options,
        found.pop("federated.algorithm", None),
        found.pop("privacy.mechanism", None),
        {where.partition(".")[2]: options for where, options in found.items()},
        resolved,
        overrides,
        path,
        attack_options=attack_options,
        tracker_options=trackers,
    )


def _check_numbers(value: Any, dotted: str, given: Given) -> None:
    """Refuse numbers, wherever they stand in a configuration, that no tensor holds, or NaN."""
    parts: Iterable[tuple[object, Any]] = ()
    if isinstance(value, Mapping):
        parts = value.items()
    elif isinstance(value, list):
        parts = enumerate(value)
    for key, part in parts:
        _check_numbers(part, f"{dotted}.{key}".lstrip("."), given)
    largest = _LARGEST.get(type(value))
    if largest is not None and not abs(value) < largest:
        raise ConfigError(
            f"{given.blame(dotted)}must be less than {largest:.2g} in size (given: {value:.4g})"
        )


def _attack_options(config: RunConfig, given: Given) -> BaseModel | None:
    """Check the keys of the section ``attack`` that are the plug-in's."""
    if config.attack is None:
        return None
    kind = config.attack.kind
    with _blaming("attack.kind", given):
        options_type = plugins.options_type(plugins.ATTACK, kind)
    options = validate_tree(options_type, config.attack.own, "attack", given)
    evaluated = [*config.evaluation.splits, *config.evaluation.final_splits]
    if ATTACK_SPLIT in evaluated and not getattr(options, "has_target", True):
        raise ConfigError(
            f"{given.blame('evaluation')}the attack '{kind}' as it is set aims at no "
            f"label that could be counted as a success, so there is no split '{ATTACK_SPLIT}'; "
            "what it does is the fall of test/accuracy against corrupted_fraction 0"
        )
    return options


def _tracker_options(config: RunConfig, given: Given) -> dict[str, BaseModel]:
    """Check the sections of ``logging`` that are plug-ins'."""
    options = {name: getattr(config.logging, name) for name in type(config.logging).model_fields}
    for name, own in (config.logging.model_extra or {}).items():
        where = f"logging.{name}"
        with _blaming(where, given):
            options_type = plugins.options_type(plugins.TRACKER, name)
            if not isinstance(own, Mapping):
                raise PluginError(f"must be a section, such as {{}} (given: {own!r})")
        options[name] = validate_tree(options_type, own, where, given)
    return options


def _add_plugins(folders: Sequence[str], given: Given) -> list[str]:
    """Find plug-ins in folders, and give their absolute paths.

    Those that a file names are relative to the file's own folder. A row is its user's, and so is
    the code that it names. A run folder may be anybody's: of what its ``config.yaml`` names nothing
    is added that is not added already.
    """
    is_override = any(text.partition("=")[0].strip() == "plugins" for text in given.overrides)
    home = Path() if is_override else given.path.parent
    if given.path.name == RECORD_NAME and not is_override:
        _check_added(folders, given.path)
        return list(folders)
    for folder in folders:
        with _blaming("plugins", given):
            plugins.add_folder(home / folder)
    return [str((home / folder).resolve()) for folder in folders]


def _check_added(folders: Sequence[str], path: Path) -> None:
    """Check that the user has added folders of the names that a run folder's record has."""
    added = {Path(folder).name for folder in plugins.__path__}
    recorded = (read_json(path.with_name("environment.json")) or {}).get("plugins")
    for name in (Path(folder).name for folder in folders):
        if name not in added:
            digest = recorded.get(name) if isinstance(recorded, Mapping) else None
            likely = name if Path(name).is_dir() else f"path/to/{name}"
            raise ConfigError(
                f"{path}: plugins: the run took plug-ins from a folder {name!r} (digest {digest!r})"
                ". They are code, and a run folder's code is never imported. Give a folder of this "
                f"name that you trust: --plugins {likely}"
            )


def _plugin(
    kind: plugins.PluginKind, section: Mapping[str, Any], where: str, given: Given
) -> tuple[str, BaseModel]:
    name = section.get("name")
    with _blaming(f"{where}.name", given):
        if not isinstance(name, str):
            names = ", ".join(plugins.available(kind))
            raise PluginError(f"give the name of {kind.one}: {names}")
        options_type = plugins.options_type(kind, name)
    options = {key: value for key, value in section.items() if key != "name"}
    return name, validate_tree(options_type, options, where, given)


@contextmanager
def _blaming(dotted: str, given: Given) -> Iterator[None]:
    """Within it, an error of a plug-in names the place that asked for it."""
    try:
        yield
    except PluginError as error:
        raise ConfigError(given.blame(dotted) + str(error).removeprefix("plugins: ")) from None


def validate_tree(model: type[M], data: Mapping[str, Any], where: str, given: Given) -> M:
    """Check plain data, at a dotted path of a file ("" for the whole), against a type.

    Messages have a line for each wrong value.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ConfigError(given.explain(error, model, data, where)) from None


def read_typed(path: Path, model: type[M]) -> M:
    """Read a file that is not a row's: a view or a sweep."""
    tree, given = read_yaml(path), Given(path)
    _check_version(tree, given)
    if {"task", "model"} <= tree.keys():
        kind = model.__name__.lower()
        raise ConfigError(f"{path}: holds a row, no {kind}; `pfl-bench run {path}` runs it")
    return validate_tree(model, tree, "", given)


def _check_version(tree: Mapping[str, Any], given: Given) -> None:
    if (version := tree.get("version")) is None:
        missing = f"required, but missing; write 'version: {CONFIG_VERSION}'"
        raise ConfigError(f"{given.blame('version')}{missing}")
    if version != CONFIG_VERSION:
        raise ConfigError(
            f"{given.blame('version')}{version!r} is not {CONFIG_VERSION}, the version of the "
            "configuration format that this pfl-bench reads; port the file, or use the pfl-bench "
            "that it was written for"
        )


def validate_options(model: type[M], overrides: Sequence[str], where: str) -> M:
    """Read ``key=value`` texts into typed options of a command, which messages name."""
    return validate_tree(model, with_overrides({}, overrides), "", Given(Path(where)))
