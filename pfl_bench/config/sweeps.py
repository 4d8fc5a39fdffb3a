"""Sweeps: one row with many combinations of some settings, chosen by validation data alone."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pfl_bench.config.loading import ResolvedConfig, read_typed, resolve
from pfl_bench.config.row_files import bundled_configs
from pfl_bench.config.schema import TRAINERS
from pfl_bench.config.sweep_file import (
    HalvingOptions,
    OptunaOptions,
    Range,
    Scalar,
    SelectionOptions,
    Sweep,
    points_of,
)
from pfl_bench.config.yaml_text import read_yaml, with_overrides
from pfl_bench.types import ConfigError

# A sweep sets these itself: no run of it may test, and each has a name of its own.
_OWN_KEYS = ("evaluation.final_splits", "evaluation.select_best", "expected", "name")
_MAX_SLUG = 120


@dataclass(frozen=True)
class Combination:
    """One point of the grid.

    Attributes:
        number: Its place in the grid, or in Optuna's order, from 1.
        slug: Its values as the name of a folder.
        overrides: What ``pfl-bench run`` takes to train it.
        resolved: The configuration, which tests nothing.
    """

    number: int
    values: dict[str, Scalar]
    slug: str
    overrides: tuple[str, ...]
    resolved: ResolvedConfig


@dataclass(frozen=True)
class LoadedSweep:
    """A sweep whose every combination is a valid configuration; see ``Sweep``.

    Attributes:
        base: The row as it stands, with the overrides of the command.
        tree: The row as its file has it.
        shared: Overrides of all runs.
        grid: The values of each key.
        combinations: The points of the grid, the last key fastest; of a random search as drawn; of
            Optuna's, whose points are not known yet, some that have each value and each end.
    """

    path: Path
    row: Path
    metric: str
    base: ResolvedConfig
    tree: Mapping[str, Any]
    shared: tuple[str, ...]
    grid: Mapping[str, list[Scalar] | Range]
    combinations: tuple[Combination, ...] = ()
    selection: SelectionOptions | None = None
    halving: HalvingOptions | None = None
    optuna: OptunaOptions | None = None

    def point(self, number: int, values: dict[str, Scalar]) -> Combination:
        """A point of the grid, which is the ``number``-th, from 1; ConfigError if it is wrong."""
        texts = (*self.shared, *(override_text(key, value) for key, value in values.items()))
        slug = _slug(values)
        own = (
            "evaluation.final_splits=[]",
            f"evaluation.select_best={self.metric}",
            "expected=[]",
            f"name={self.base.config.name}-{re.sub('[^A-Za-z0-9._-]', '-', slug)}",
        )
        resolved = _resolved(self.tree, self.row, (*texts, *own))
        return Combination(number, values, slug, texts, resolved)

    def rungs(self) -> list[int | None]:
        """Rounds of the runs of each step of halving; the last step's, None, are the row's."""
        if self.halving is None:
            return [None]
        section, key = _length_key(self.base)
        rounds, shorter = self.halving.rounds, list[int | None]()
        while rounds < self.base.tree[section][key]:
            shorter.append(rounds)
            rounds *= self.halving.factor
        return [*shorter, None]

    def shortened(self, point: Combination, rounds: int | None) -> Combination:
        """A point that is trained for so many rounds, with a folder of its own; None for all."""
        if rounds is None:
            return point
        text = f"{'.'.join(_length_key(self.base))}={rounds}"
        return self._changed(point, text, f"rounds-{rounds},{point.slug}")

    def trial(self, number: int, point: int, seed: int) -> Combination:
        """A trial of a point of the grid, with a seed and folder of its own; both count from 1."""
        drawn = self.combinations[point - 1]
        slug = f"trial-{number:03d},{drawn.slug}"[:_MAX_SLUG]
        return self._changed(drawn, f"seed={seed}", slug)

    def _changed(self, point: Combination, text: str, slug: str) -> Combination:
        """A point with one more override, and a folder of its own."""
        tree = with_overrides(point.resolved.tree, [text])
        resolved = resolve(tree, self.row, (*point.resolved.overrides, text))
        return replace(point, slug=slug, overrides=(*point.overrides, text), resolved=resolved)


def load_sweep(
    path: Path,
    overrides: Sequence[str] = (),
    of_row: Callable[[Path], Sequence[str]] = lambda _: (),
) -> LoadedSweep:
    """Read a sweep and resolve each of its combinations.

    The texts ``key=value`` are for all runs; one of a key of the grid leaves the grid that value
    alone. ``of_row`` gives texts that its row has to itself, over which the others win; those of
    what a sweep sets itself are left out.
    """
    sweep = read_typed(path, Sweep)
    row = path.parent / sweep.row
    if not row.is_file() and (bundled_configs() / sweep.row).is_file():
        row = bundled_configs() / sweep.row
    if not row.is_file():
        raise ConfigError(
            f"{path}: row: '{sweep.row}' is no file; give the row's place as seen from the sweep's "
            f"folder, such as ../table1/federated.yaml, or a bundled row, such as "
            f"demo/federated.yaml (looked for {row.resolve()})"
        )
    own = [text for text in of_row(row) if text.partition("=")[0] not in _OWN_KEYS]
    overrides = [*own, *overrides]
    grid, shared = _narrowed(sweep.grid, overrides, path)
    points = list(points_of(grid, sweep, path))
    tree = read_yaml(row)
    base = _resolved(tree, row, overrides)
    _check_splits(base, sweep.metric, path)
    if sweep.selection is not None:
        _check_selection(sweep, base, path)
    if sweep.halving is not None:
        _check_halving(sweep, grid, base, path)
    chosen_by = {name: getattr(sweep, name) for name in ("selection", "halving", "optuna")}
    loaded = LoadedSweep(path, row, sweep.metric, base, tree, shared, grid, **chosen_by)
    found = tuple(loaded.point(number, values) for number, values in enumerate(points, start=1))
    return replace(loaded, combinations=found)


def _length_key(base: ResolvedConfig) -> tuple[str, str]:
    """Section and key of a row's length; ("", "") of a setting that has none."""
    section = next((name for name in ("federated", "central") if base.tree[name]), "")
    return section, TRAINERS.get(section, "")


def _check_halving(sweep: Sweep, grid: Mapping[str, Any], base: ResolvedConfig, path: Path) -> None:
    """Check that points can be trained for fewer rounds first."""
    assert sweep.halving is not None
    section, key = _length_key(base)
    if not section:
        raise ConfigError(
            f"{path}: halving: a run of the setting {base.config.setting} has no rounds"
        )
    if sweep.selection is not None:
        raise ConfigError(f"{path}: halving: a selection draws whole runs; leave one of them out")
    if f"{section}.{key}" in grid:
        raise ConfigError(f"{path}: grid.{section}.{key}: halving sets it itself; leave it out")
    if sweep.halving.rounds >= base.tree[section][key]:
        raise ConfigError(
            f"{path}: halving.rounds: {sweep.halving.rounds} is not below the row's {key}, "
            f"{base.tree[section][key]}"
        )


def _check_selection(sweep: Sweep, base: ResolvedConfig, path: Path) -> None:
    """Check that a selection can be accounted, and that each trial draws what it has to itself."""
    assert sweep.selection is not None
    sweep.selection.trials(path)
    privacy = base.config.privacy
    if privacy is None or base.tree["privacy"]["mechanism"]["name"] == "none":
        raise ConfigError(
            f"{path}: selection: the row claims no privacy, so that choosing among its runs has no "
            "price; leave selection out, or take a private row"
        )
    for key in ("seed", "privacy.nonce"):
        if key in sweep.grid:
            raise ConfigError(
                f"{path}: grid.{key}: a selection gives each trial a seed of its own, so that no "
                "two share their noise; leave it out of the grid"
            )


def _resolved(tree: Mapping[str, Any], row: Path, overrides: Sequence[str]) -> ResolvedConfig:
    """As ``load_config``, of a file that was read: reading it takes most of the time."""
    return resolve(with_overrides(tree, overrides), row, tuple(overrides))


def _narrowed(
    grid: Mapping[str, list[Scalar] | Range], overrides: Sequence[str], path: Path
) -> tuple[dict[str, list[Scalar] | Range], tuple[str, ...]]:
    """The grid with the keys that the command fixes, and the command's other overrides."""
    narrowed = dict(grid)
    for key, values in narrowed.items():
        _check_key(key, f"{path}: grid.{key}")
        if isinstance(values, Range):
            continue
        texts = [override_text(key, value) for value in values]
        if len(set(texts)) < len(texts):
            raise ConfigError(f"{path}: grid.{key}: a value stands twice: {', '.join(texts)}")
    shared = []
    for text in overrides:
        key = text.partition("=")[0].strip()
        _check_key(key, f"override '{text}'")
        if key in narrowed:
            narrowed[key] = [_read_value(key, text)]
        else:
            shared.append(text)
    return narrowed, tuple(shared)


def _check_key(key: str, where: str) -> None:
    if key in _OWN_KEYS:
        raise ConfigError(
            f"{where}: a sweep sets {key} itself, so that none of its runs looks at test data or "
            "has another's name; leave it out"
        )


def _check_splits(base: ResolvedConfig, metric: str, path: Path) -> None:
    """Check that the metric is measured while a run trains, and test data are not."""
    splits, split = base.config.evaluation.splits, metric.partition("/")[0]
    if "test" in splits or split == "test":
        raise ConfigError(
            f"{path}: metric '{metric}', evaluation.splits {splits}: a sweep may not look at test "
            "data, whose one use is to test what was chosen; take a metric of val and "
            "evaluation.splits=[val]"
        )
    if split not in splits:
        raise ConfigError(
            f"{path}: metric: '{metric}' is of a split that the row does not evaluate while it "
            f"trains; its evaluation.splits are {splits}"
        )


def override_text(key: str, value: Scalar) -> str:
    """Write a setting as ``key=value``, so that reading it gives the same value."""
    plain, quoted = f"{key}={value}", f"{key}={json.dumps(value)}"
    try:
        return plain if isinstance(value, str) and _read_value(key, plain) == value else quoted
    except ConfigError:
        return quoted


def _read_value(key: str, text: str) -> Any:
    """The value of an override, as the configuration reads it."""
    node: Any = with_overrides({}, [text])
    for part in key.split("."):
        node = node[part]
    return node


def _slug(point: Mapping[str, Scalar]) -> str:
    """Name a combination by its values, so that its folder stays its own when the grid grows."""
    lasts = [key.rpartition(".")[2] for key in point]
    names = lasts if len(set(lasts)) == len(lasts) else list(point)
    texts = [override_text(name, value) for name, value in zip(names, point.values(), strict=True)]
    slug = re.sub(r"[^A-Za-z0-9._=,+-]", "-", ",".join(texts))
    exact = ",".join(texts)
    if slug == exact and len(slug) <= _MAX_SLUG:
        return slug
    # What is cut or rewritten is told apart by its digest.
    digest = hashlib.sha256(exact.encode()).hexdigest()[:12]
    return f"{slug[: _MAX_SLUG - 13]}-{digest}"
