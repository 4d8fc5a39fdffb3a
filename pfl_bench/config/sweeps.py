"""Sweeps: one row with many combinations of some settings, chosen by validation data alone."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt, model_validator

from pfl_bench.config.bundled_rows import bundled_configs
from pfl_bench.config.loading import ResolvedConfig, resolve
from pfl_bench.config.row_files import read_typed
from pfl_bench.config.training import Strict
from pfl_bench.config.yaml_text import read_yaml, with_overrides
from pfl_bench.types import ConfigError
from privacy.errors import PrivacyError
from privacy.tuning import Trials

Scalar = bool | int | float | str | None
# A sweep sets these itself: no run of it may test, and each has a name of its own.
_OWN_KEYS = ("evaluation.final_splits", "evaluation.select_best", "expected", "name")
_MAX_SLUG = 120
# Draws of a random search for each run that it wants, before it says that the grid has no more.
_MOST_DRAWS = 100


class SelectionOptions(Strict):
    """A random number of trials, of which the best alone is released.

    Its guarantee is that of ``privacy.tuning``.

    Attributes:
        distribution: Law of the number of trials.
        mean: Expected number of trials, at least 1.
        eta: Shape of the truncated negative binomial, above -1.
        gamma: Instead of the mean: probability of stopping, in (0, 1]; not of "poisson".
        seed: Seed of the number of trials and of the points that they draw; None for the row's.
    """

    distribution: Literal["poisson", "geometric", "truncated_negative_binomial"]
    mean: float | None = None
    eta: float | None = None
    gamma: float | None = None
    seed: Annotated[int, Field(ge=0)] | None = None

    def trials(self, path: Path) -> Trials:
        """The distribution.

        Raises:
            ConfigError: A number is missing, does not belong, or is out of its range.
        """
        try:
            return Trials.named(self.distribution, self.mean, self.eta, self.gamma)
        except PrivacyError as error:
            raise ConfigError(f"{path}: selection: {error}") from None


class Range(Strict):
    """Values from ``low`` to ``high``, of which a random search draws.

    Numbers have four significant digits; those between whole bounds are whole.

    Attributes:
        low: The least.
        high: The most.
        log: Whether they are uniform on a logarithmic scale.
    """

    low: int | float
    high: int | float
    log: bool = False

    @model_validator(mode="after")
    def _is_a_range(self) -> Range:
        if not (math.isfinite(self.low) and self.low < self.high < math.inf):
            raise ValueError(f"low {self.low} must be below high {self.high}, both finite")
        if self.log and self.low <= 0:
            raise ValueError(f"low {self.low} must be above 0 on a logarithmic scale")
        return self

    def draw(self, rng: random.Random) -> int | float:
        """Draw a value."""
        if self.log:
            value = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
        else:
            value = rng.uniform(self.low, self.high)
        if isinstance(self.low, int) and isinstance(self.high, int):
            return min(max(round(value), self.low), self.high)
        return float(f"{min(max(value, self.low), self.high):.4g}")


class RandomOptions(Strict):
    """Random search: so many points of the grid, drawn independently for each key.

    Attributes:
        runs: How many; more of them keep the first ones.
        seed: Of the draws.
    """

    runs: PositiveInt
    seed: Annotated[int, Field(ge=0)] = 0


class HalvingOptions(Strict):
    """Successive halving: all points for few rounds, the best of them for more.

    Each run begins anew: schedule and noise are those of its own number of rounds.

    Attributes:
        rounds: Of the first runs (central training: epochs), fewer than the row's.
        factor: By how much each step multiplies the rounds and divides the points.

    Source: Jamieson and Talwalkar 2016, "Non-stochastic best arm identification and hyperparameter
    optimization", figure 3.
    """

    rounds: PositiveInt
    factor: Annotated[int, Field(ge=2)] = 3


class Sweep(Strict):
    """A sweep as its file has it.

    Attributes:
        version: Version of the configuration format.
        row: File of the row, from the folder of the sweep's file; or a bundled row, such as
            demo/federated.yaml.
        metric: What the best model of each run is chosen by, and the best run, such as
            "val/c_ap": higher is better; of losses, perplexities and standard deviations, by
            client or stratum too, lower.
        grid: The values of each dotted key: a list, or with ``random`` also a range.
        random: Draws points of the grid; None to run all of them.
        halving: Runs all points for few rounds, and the best for more; None to run each once.
        selection: How many points are drawn from the grid, where the choice is to have a price;
            None to run all of them.
    """

    version: int
    row: str
    metric: Annotated[str, Field(pattern=r"^[^/]+/.+$")]
    grid: Annotated[
        dict[str, Annotated[list[Scalar], Field(min_length=1)] | Range],
        Field(min_length=1),
    ]
    random: RandomOptions | None = None
    halving: HalvingOptions | None = None
    selection: SelectionOptions | None = None


@dataclass(frozen=True)
class Combination:
    """One point of the grid.

    Attributes:
        number: Its place in the grid, from 1.
        values: The value of each key.
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
    """A sweep whose every combination is a valid configuration.

    Attributes:
        path: Its file.
        row: File of the row.
        metric: See ``Sweep``.
        base: The row as it stands, with the overrides of the command.
        keys: Keys of the grid.
        combinations: The points of the grid, the last key fastest; of a random search as drawn.
        selection: See ``Sweep``.
        halving: See ``Sweep``.
    """

    path: Path
    row: Path
    metric: str
    base: ResolvedConfig
    keys: tuple[str, ...]
    combinations: tuple[Combination, ...]
    selection: SelectionOptions | None = None
    halving: HalvingOptions | None = None

    def rungs(self) -> list[int]:
        """Rounds of the runs of each step; the last are the row's."""
        if self.halving is None:
            return [0]
        section, key = _length_key(self.base)
        total = self.base.tree[section][key]
        rounds = itertools.accumulate(
            itertools.repeat(self.halving.factor),
            lambda before, factor: before * factor,
            initial=self.halving.rounds,
        )
        return [*itertools.takewhile(lambda number: number < total, rounds), total]

    def shortened(self, point: Combination, rounds: int) -> Combination:
        """A point that is trained for so many rounds, with a folder of its own."""
        if rounds == self.rungs()[-1]:
            return point
        text = f"{'.'.join(_length_key(self.base))}={rounds}"
        resolved = resolve(
            with_overrides(point.resolved.tree, [text]), self.row, (*point.overrides, text)
        )
        slug = f"rounds-{rounds},{point.slug}"[:_MAX_SLUG]
        return Combination(point.number, point.values, slug, (*point.overrides, text), resolved)

    def trial(self, number: int, point: int, seed: int) -> Combination:
        """A trial of a point of the grid, with a seed and a folder of its own.

        Args:
            number: Of the trial, from 1.
            point: Place of the point in the grid, from 1.
            seed: Of its cohorts, noise and initial model.
        """
        drawn = self.combinations[point - 1]
        overrides = (*drawn.overrides, f"seed={seed}")
        tree = with_overrides(drawn.resolved.tree, [f"seed={seed}"])
        resolved = resolve(tree, self.row, (*drawn.resolved.overrides, f"seed={seed}"))
        slug = f"trial-{number:03d},{drawn.slug}"[:_MAX_SLUG]
        return Combination(point, drawn.values, slug, overrides, resolved)


def load_sweep(path: Path, overrides: Sequence[str] = ()) -> LoadedSweep:
    """Read a sweep and resolve each of its combinations.

    Args:
        path: The sweep's file.
        overrides: Texts ``key=value`` for all runs; one of a key of the grid leaves the grid that
            value alone.

    Raises:
        ConfigError: The file is no sweep, the row or a combination is wrong, or test data would be
            looked at.
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
    grid, shared = _narrowed(sweep.grid, overrides, path)
    points = list(_points(grid, sweep, path))
    tree = read_yaml(row)
    base = _resolved(tree, row, overrides)
    _check_splits(base, sweep.metric, path)
    if sweep.selection is not None:
        _check_selection(sweep, base, path)
    if sweep.halving is not None:
        _check_halving(sweep, grid, base, path)
    combinations = []
    for number, point in enumerate(points, start=1):
        texts = (*shared, *(override_text(key, value) for key, value in point.items()))
        slug = _slug(point)
        own = (
            "evaluation.final_splits=[]",
            f"evaluation.select_best={sweep.metric}",
            "expected=[]",
            f"name={base.config.name}-{re.sub('[^A-Za-z0-9._-]', '-', slug)}",
        )
        resolved = _resolved(tree, row, (*texts, *own))
        combinations.append(Combination(number, point, slug, texts, resolved))
    return LoadedSweep(
        path,
        row,
        sweep.metric,
        base,
        tuple(grid),
        tuple(combinations),
        sweep.selection,
        sweep.halving,
    )


def _length_key(base: ResolvedConfig) -> tuple[str, str]:
    """Section and key of a row's length; ("", "") of a setting that has none."""
    for section, key in (("federated", "num_rounds"), ("central", "num_epochs")):
        if base.tree[section]:
            return section, key
    return "", ""


def _check_halving(sweep: Sweep, grid: Mapping[str, Any], base: ResolvedConfig, path: Path) -> None:
    """Check that points can be trained for fewer rounds first.

    Raises:
        ConfigError: They cannot.
    """
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


def _points(
    grid: Mapping[str, list[Scalar] | Range], sweep: Sweep, path: Path
) -> Iterator[dict[str, Scalar]]:
    """The points that are run: all of them, or those that a random search draws."""
    lists = {key: values for key, values in grid.items() if not isinstance(values, Range)}
    if sweep.random is None:
        if len(lists) < len(grid):
            key = next(key for key in grid if key not in lists)
            raise ConfigError(
                f"{path}: grid.{key}: has a range, which only a random search draws from; give a "
                "list of values, or add `random: {runs: 20}`"
            )
        for values in itertools.product(*lists.values()):
            yield dict(zip(lists, values, strict=True))
        return
    if sweep.selection is not None:
        raise ConfigError(
            f"{path}: random: a selection draws points of the grid itself; leave one of them out"
        )
    rng, seen = random.Random(sweep.random.seed), set[str]()
    for _ in range(_MOST_DRAWS * sweep.random.runs):
        point = {
            key: values.draw(rng) if isinstance(values, Range) else rng.choice(values)
            for key, values in grid.items()
        }
        if json.dumps(point) not in seen:
            seen.add(json.dumps(point))
            yield point
        if len(seen) == sweep.random.runs:
            return
    raise ConfigError(
        f"{path}: random.runs: {sweep.random.runs} different points are wanted, and "
        f"{_MOST_DRAWS * sweep.random.runs} draws found {len(seen)}; lower it, or widen the grid"
    )


def _check_selection(sweep: Sweep, base: ResolvedConfig, path: Path) -> None:
    """Check that a selection can be accounted.

    Raises:
        ConfigError: The row is not private, or the grid has what each trial must draw itself.
    """
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
    if value is None:
        return f"{key}=null"
    if isinstance(value, bool):
        return f"{key}={str(value).lower()}"
    if not isinstance(value, str):
        return f"{key}={value!r}"
    plain = f"{key}={value}"
    try:
        is_plain = _read_value(key, plain) == value
    except ConfigError:
        is_plain = False
    return plain if is_plain else f"{key}={json.dumps(value)}"


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
